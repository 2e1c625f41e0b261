"""The stream's two topics: made with settings that fit, read, and judged."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from outbox.errors import StreamUnavailable, Unsupported
from outbox.row import DATA_BYTES_MAX, HEADERS_BYTES_MAX
from stream_store.kafka.clients import ANSWER_SECONDS
from stream_store.kafka.faults import DENIED, MISSING, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Consumer

    from stream_store.kafka.clients import Clients

# How long the first connection is tried for at a time: the client does not say at once why it does not come about.
TRY_SECONDS = 1.0
# Partitions of the companion: who the stream is, and its readers.
STATE, READERS = 0, 1
COMPANION_PARTITIONS = 2
REPLICAS = 3
FOREVER = str(2**63 - 1)
# Data, its headers twice over (as attributes and as they are stored), and the rest of a record.
EVENT_BYTES_MAX = DATA_BYTES_MAX + 2 * HEADERS_BYTES_MAX + 16 * 1024
MESSAGE_BYTES_MAX = 4 * 2**20
# An event keeps its own time, which the clock of a broker must not judge.
_TIMES = {"message.timestamp.before.max.ms": FOREVER, "message.timestamp.after.max.ms": FOREVER}
_EVENTS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
    "message.timestamp.type": "CreateTime",
}
# Small segments, so that what is outdated is soon compacted away.
_COMPANION = {"cleanup.policy": "compact", "segment.bytes": str(4 * 2**20), "min.cleanable.dirty.ratio": "0.1"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is. `settings` is None when we may not look at them."""

    name: str
    partitions: int
    replicas: int
    settings: dict[str, str] | None

    def number(self, name: str, default: int) -> int:
        return int((self.settings or {}).get(name, default))


@dataclass(frozen=True, slots=True)
class Remark:
    """What a setting means for the guarantee. An `error` keeps a relay from starting."""

    level: Literal["ok", "warning", "error"]
    name: str
    message: str
    fix: str | None = None


def exist(clients: Clients) -> tuple[bool, bool]:
    """Whether the topic and its companion are there."""
    address = clients.address
    with clients.consumer("probe") as consumer:
        events, companion = (_is_there(clients, consumer, name) for name in (address.topic, address.companion))
    return events, companion


def _is_there(clients: Clients, consumer: Consumer, name: str) -> bool:
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            topic = consumer.list_topics(name, TRY_SECONDS).topics[name]
        except KafkaException as failure:
            fault = clients.fault(failure, "looking for its topics", consumer)
            if clients.is_refused() or time.monotonic() > deadline:
                raise fault from failure
        else:
            if topic.error is None or topic.error.code() in MISSING:
                return topic.error is None and bool(topic.partitions)
            if topic.error.code() != KafkaError.LEADER_NOT_AVAILABLE or time.monotonic() > deadline:
                raise clients.fault(topic.error, "looking for its topics")
            time.sleep(0.02)


def create(clients: Clients) -> None:
    """Make what is missing of the two topics, and wait until the brokers know it."""
    address, admin = clients.address, clients.admin()
    try:
        brokers = len(admin.list_topics(timeout=ANSWER_SECONDS).brokers)
    except KafkaException as failure:
        raise clients.fault(failure, "looking for its brokers") from failure
    replicas = address.replication_factor or min(REPLICAS, brokers)
    safety = {"min.insync.replicas": str(max(1, replicas - 1)), "unclean.leader.election.enable": "false"}
    for times in (_TIMES, {}):  # brokers before 3.6 do not know these
        wanted = [
            NewTopic(address.topic, 1, replicas, config={**_EVENTS, **times, **safety}),
            NewTopic(address.companion, COMPANION_PARTITIONS, replicas, config={**_COMPANION, **safety}),
        ]
        failures = [_failure(future) for future in admin.create_topics(wanted, request_timeout=ANSWER_SECONDS).values()]
        known = {KafkaError.TOPIC_ALREADY_EXISTS}
        refused = [each for each in failures if each is not None and error_of(each).code() not in known]
        if not refused:
            break
        if not times or error_of(refused[0]).code() != KafkaError.INVALID_CONFIG:
            raise clients.fault(refused[0], "making its topics") from refused[0]
    deadline = time.monotonic() + ANSWER_SECONDS
    while not all(exist(clients)):
        if time.monotonic() > deadline:
            raise StreamUnavailable(f"{address.url}: its topics were made, and are not there yet")
        time.sleep(0.02)


def _failure(future: Any) -> KafkaException | None:
    error: KafkaException | None = future.exception(ANSWER_SECONDS)
    return error


def delete_before(clients: Clients, offset: int) -> None:
    """Delete the topic's records before an offset."""
    admin = clients.admin()  # kept until it has answered
    place = TopicPartition(clients.address.topic, 0, offset)
    for future in admin.delete_records([place], request_timeout=ANSWER_SECONDS).values():
        failure = _failure(future)
        if failure is not None:
            raise clients.fault(failure, "trimming") from failure


def describe(clients: Clients) -> tuple[Topic, Topic]:
    """The topic and its companion, which must be there."""
    address, admin = clients.address, clients.admin()
    names = (address.topic, address.companion)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    try:
        known = admin.list_topics(timeout=ANSWER_SECONDS).topics
        futures = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS)
        settings = [_settings(futures[resource]) for resource in resources]
    except KafkaException as failure:
        raise clients.fault(failure, "looking at its settings") from failure
    found = []
    for name, setting in zip(names, settings, strict=True):
        partitions = known[name].partitions if name in known else {}
        replicas = min((len(each.replicas) for each in partitions.values()), default=0)
        found.append(Topic(name, len(partitions), replicas, setting))
    return found[0], found[1]


def _settings(future: Any) -> dict[str, str] | None:
    try:
        return {name: entry.value for name, entry in future.result(ANSWER_SECONDS).items()}
    except KafkaException as failure:
        if error_of(failure).code() in DENIED:
            return None
        raise


def require(events: Topic, companion: Topic) -> None:
    """Refuse topics on which the guarantee cannot hold."""
    for remark in judge(events, companion):
        if remark.level == "error":
            raise Unsupported(f"{remark.message}: {remark.fix}")


def judge(events: Topic, companion: Topic) -> Iterator[Remark]:
    """What the two topics' settings mean: all that is worth a word."""
    name = events.name
    if events.partitions != 1:
        yield Remark(
            "error",
            "kafka-partitions",
            f"topic {name} has {events.partitions} partitions, and order holds in one only",
            "make a topic with one partition, or let the relay make it",
        )
    if companion.partitions < COMPANION_PARTITIONS:
        yield Remark(
            "error",
            "kafka-companion",
            f"topic {companion.name} has {companion.partitions} partitions, {COMPANION_PARTITIONS} are needed",
            _alter_partitions(companion.name),
        )
    yield from _judge_copies(events)
    if events.settings is None or companion.settings is None:
        yield Remark(
            "warning",
            "kafka-settings",
            f"the settings of {name} and {companion.name} could not be looked at",
            f"grant DESCRIBE_CONFIGS on both topics, or look yourself: kafka-configs.sh --describe --topic {name}",
        )
        return
    yield from _judge_policy(events, companion)
    yield from _judge_times(events)
    yield from _judge_retention(events)
    limit_bytes = events.number("max.message.bytes", MESSAGE_BYTES_MAX)
    if limit_bytes < EVENT_BYTES_MAX:
        yield Remark(
            "warning",
            "kafka-message-size",
            f"topic {name} takes records of {limit_bytes:,} bytes at most, and an event may have {EVENT_BYTES_MAX:,}: one that is "
            "larger stops the relay",
            _alter(name, f"max.message.bytes={MESSAGE_BYTES_MAX}"),
        )


def _judge_copies(events: Topic) -> Iterator[Remark]:
    in_sync = events.number("min.insync.replicas", 1)
    if events.replicas < 2:
        yield Remark(
            "warning",
            "kafka-replicas",
            f"topic {events.name} has one replica: rows are deleted from the database once they are in it, and that copy is all "
            "there is",
            f"give it {REPLICAS} replicas (kafka-reassign-partitions.sh), or keep the rows for longer: --delete-after 24h",
        )
    elif events.settings is not None and in_sync < 2:
        yield Remark(
            "warning",
            "kafka-replicas",
            f"topic {events.name} acknowledges with one replica in sync (min.insync.replicas={in_sync}): a broker that dies then "
            "takes acknowledged events along",
            _alter(events.name, "min.insync.replicas=2"),
        )
    elif in_sync > events.replicas:
        yield Remark(
            "error",
            "kafka-replicas",
            f"topic {events.name} wants {in_sync} replicas in sync and has {events.replicas}: it takes nothing",
            _alter(events.name, f"min.insync.replicas={max(1, events.replicas - 1)}"),
        )
    else:
        yield Remark(
            "ok", "kafka-replicas", f"{events.replicas} replicas, {in_sync} of them in sync before it is acknowledged"
        )
    if (events.settings or {}).get("unclean.leader.election.enable") == "true":
        yield Remark(
            "warning",
            "kafka-unclean-election",
            f"topic {events.name} may elect a leader that misses acknowledged events",
            _alter(events.name, "unclean.leader.election.enable=false"),
        )


def _judge_policy(events: Topic, companion: Topic) -> Iterator[Remark]:
    policy = (events.settings or {}).get("cleanup.policy", "delete")
    if "compact" in policy:
        yield Remark(
            "error",
            "kafka-cleanup",
            f"topic {events.name} is compacted (cleanup.policy={policy}): events with a later one of the same subject vanish, and "
            "the chain breaks",
            _alter(events.name, "cleanup.policy=delete"),
        )
    policy = (companion.settings or {}).get("cleanup.policy", "delete")
    if policy != "compact":
        yield Remark(
            "error",
            "kafka-companion",
            f"topic {companion.name} is not compacted only (cleanup.policy={policy}): who the stream is would be deleted in time",
            _alter(companion.name, "cleanup.policy=compact"),
        )


def _judge_times(events: Topic) -> Iterator[Remark]:
    kind = (events.settings or {}).get("message.timestamp.type", "CreateTime")
    if kind != "CreateTime":
        yield Remark(
            "error",
            "kafka-timestamps",
            f"topic {events.name} gives records its own time ({kind}): an event could not be found by its time",
            _alter(events.name, "message.timestamp.type=CreateTime"),
        )
    for name in _TIMES:
        if events.number(name, int(FOREVER)) < int(FOREVER):
            yield Remark(
                "error",
                "kafka-timestamps",
                f"topic {events.name} refuses events whose time is far from the broker's clock ({name}="
                f"{events.number(name, 0)})",
                _alter(events.name, f"{name}={FOREVER}"),
            )


def _judge_retention(events: Topic) -> Iterator[Remark]:
    age_ms, size_bytes = events.number("retention.ms", -1), events.number("retention.bytes", -1)
    limits = [f"after {age_ms / 86_400_000:g} days"] if age_ms >= 0 else []
    limits += [f"beyond {size_bytes:,} bytes"] if size_bytes >= 0 else []
    if limits:
        yield Remark(
            "warning",
            "kafka-retention",
            f"Kafka deletes events of topic {events.name} {' and '.join(limits)} by the events' own times, whether or not every "
            "reader has them, and rows that the relay has deleted are nowhere then",
            f"if that is not meant: {_alter(events.name, 'retention.ms=-1,retention.bytes=-1')}; "
            "`outbox stream trim` deletes what every known reader has",
        )
    else:
        yield Remark("ok", "kafka-retention", "Kafka deletes nothing by itself")


def _alter(topic: str, settings: str) -> str:
    return f"kafka-configs.sh --bootstrap-server … --alter --entity-type topics --entity-name {topic} --add-config {settings}"


def _alter_partitions(topic: str) -> str:
    return f"kafka-topics.sh --bootstrap-server … --alter --topic {topic} --partitions {COMPANION_PARTITIONS}"
