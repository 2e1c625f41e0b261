"""A relay into Kafka, when the broker dies, the wire is cut, privileges are taken away, or the relay is killed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from connector.rebase import apply
from outbox.errors import UsageError
from stream_store import open_stream
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import At, running, until
from tests.servers.kafka import KafkaServer
from tests.servers.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "open-sesame-17"
# Clients of a test do not wait as long as those of a user.
HURRIED = "&reconnect.backoff.max.ms=200"


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(wire: Wire) -> Iterator[KafkaServer]:
    """A broker of its own, since it is killed."""
    made = KafkaServer(wire=wire).start()
    try:
        made.add_user("relay", PASSWORD)
        yield made
    finally:
        made.destroy()


@pytest.fixture
def case(server: KafkaServer, folder: Path) -> Iterator[OutboxCase]:
    """An outbox whose relay comes over the wire, as a user with no more privileges than it needs."""
    topic = f"t{uuid.uuid4().hex[:12]}"
    server.grant("relay", topic)
    made = OutboxCase(f"sqlite:///{folder / 'app.db'}", folder)
    made.stream = server.sasl_url(topic, "relay", PASSWORD) + HURRIED
    made.write(4)
    yield made
    server.revoke("relay")


def topic_of(case: OutboxCase) -> str:
    return case.stream.partition("?")[0].rpartition("/")[2]


def finish(case: OutboxCase, relay) -> None:
    until(lambda: case.deleted_through() == max(case.committed), relay.said)
    assert relay.stop() == 0, relay.said()
    assert PASSWORD not in relay.said()
    case.assert_exactly_once()


@pytest.mark.parametrize("at", [At("kafka.commit", "before", 4), At("kafka.commit", "after", 4)], ids=str)
def test_relay_goes_on_by_itself_after_the_broker_was_killed(case: OutboxCase, server: KafkaServer, at: At) -> None:
    with running(case.orders(at, act="hold", once=False)) as relay:
        relay.wait_until_reached()
        server.crash()
        relay.go_on()
        case.write(5)
        server.start()
        finish(case, relay)


@pytest.mark.parametrize("at", [At("kafka.commit", "before", 4), At("kafka.commit", "after", 4)], ids=str)
def test_relay_goes_on_by_itself_after_the_wire_was_cut(case: OutboxCase, wire: Wire, at: At) -> None:
    with running(case.orders(at, act="hold", once=False)) as relay:
        relay.wait_until_reached()
        wire.cut()
        relay.go_on()
        wire.mend()
        for _ in range(3):
            case.write(2)
            wire.cut()
            wire.mend()
        finish(case, relay)


@pytest.mark.parametrize(
    "at", [At("kafka.commit", "before", 3), At("kafka.commit", "after", 3), At("append", "after"), At("bind")], ids=str
)
def test_relay_killed_at_a_step_loses_and_doubles_nothing(case: OutboxCase, at: At) -> None:
    with running(case.orders(at)) as relay:
        assert relay.wait() < 0, relay.said()
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_relay_waits_while_its_privileges_are_taken_away(case: OutboxCase, server: KafkaServer) -> None:
    with running(case.orders(once=False)) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        server.revoke("relay")
        case.write(2)
        until(lambda: "trying again" in relay.said(), relay.said)
        server.grant("relay", topic_of(case))
        finish(case, relay)


def test_wrong_password_is_said_without_saying_it(case: OutboxCase) -> None:
    wrong = case.stream.replace(PASSWORD, "not-the-password")
    with pytest.raises(UsageError, match="does not let us in") as caught:
        open_stream(wrong)
    assert "not-the-password" not in str(caught.value)


def test_missing_privilege_names_what_is_needed(case: OutboxCase, server: KafkaServer) -> None:
    server.revoke("relay")
    with pytest.raises(UsageError, match=f"transactional ID outbox.{topic_of(case)}"):
        open_stream(case.stream)


def test_topic_made_anew_stops_the_relay_until_the_loss_is_recorded(case: OutboxCase, server: KafkaServer) -> None:
    assert case.relay_once() == 0
    through = case.deleted_through()
    server.ask("delete_topics", [topic_of(case)], operation_timeout=10)
    case.write(2)
    assert case.relay_once() == 4
    assert [step.kind for step in apply(case.database, case.table, case.stream)] == ["record-loss"]
    assert case.relay_once() == 0
    case.committed = {key: content for key, content in case.committed.items() if key > through}
    case.assert_exactly_once(recorded_lost=through)


def test_both_topics_made_anew_are_another_stream(case: OutboxCase, server: KafkaServer) -> None:
    assert case.relay_once(delete_after=NEVER) == 0
    names = [topic_of(case), f"{topic_of(case)}.outbox"]
    server.ask("delete_topics", names, operation_timeout=10)
    assert case.relay_once() == 4
    assert case.rebase() == ["bind-stream"]
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_events_that_kafka_has_deleted_by_itself_are_no_loss_of_the_tail(case: OutboxCase, server: KafkaServer) -> None:
    assert case.relay_once() == 0
    held = case.tail()
    server.ask("delete_records", [TopicPartition(topic_of(case), 0, -1)])
    old, case.committed = case.committed, {}
    case.write(2)
    assert case.relay_once() == 0
    assert case.streamed() == case.committed
    assert case.tail() == max(case.committed) > held >= max(old)
