"""The Kafka stream when its writer is killed, has a rival, or finds its topics not as it left them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import (
    StaleTail,
    StreamCorrupt,
    StreamMissing,
    StreamUnavailable,
    TailLost,
    Transient,
    Trimmed,
    Unsupported,
)
from stream_store import Outcome, StreamUrl, check, open_stream
from stream_store.kafka.address import Address
from stream_store.redaction import REDACTED_CONTENT_TYPE
from tests.crash.kafka_writer import run_and_kill
from tests.crash.stream_events import EPOCH, assert_chained, batch, ids_of, row, rows_of
from tests.crash.stream_relay import append_and_acknowledge, assert_whole
from tests.servers import kafka

ROOT = Path(__file__).parents[2]


def address_of(url: str) -> Address:
    return Address.parse(StreamUrl.parse(url))


def done(futures: dict[object, object]) -> None:
    for future in futures.values():
        future.result(30)


@pytest.fixture
def admin(kafka_servers):
    return kafka.admin(kafka_servers)


def delete_records(admin, url: str, offset: int) -> None:
    done(admin.delete_records([TopicPartition(address_of(url).topic, 0, offset)]))


def rival(url: str, **options: object) -> Producer:
    address = address_of(url)
    return Producer({"bootstrap.servers": address.servers, "transactional.id": address.transactional_id, **options})


def leave_aborted(url: str, records: int, transactions: int = 1) -> None:
    """Transactions that were begun and never came to anything."""
    producer = rival(url)
    producer.init_transactions(10)
    for _ in range(transactions):
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(address_of(url).topic, b"never", partition=0)
        producer.flush(10)
        producer.abort_transaction(10)


# ---- killed

# The first commit makes the stream, the second binds it; each further one takes a batch of three.
STEPS = [
    *(("init_transactions", when, 1) for when in ("before", "after")),
    *(("begin_transaction", when, nth) for when in ("before", "after") for nth in (1, 3)),
    *(("produce", when, nth) for when, nth in [("after", 1), ("before", 3), ("after", 4), ("after", 5), ("after", 6)]),
    *(("commit_transaction", when, nth) for when in ("before", "after") for nth in (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("step", "when", "nth"), STEPS)
def test_writer_killed_at_a_step_loses_and_doubles_nothing(kafka_url, step, when, nth):
    killed, acknowledged = run_and_kill(kafka_url, 9, step, when, nth)
    assert killed
    append_and_acknowledge(kafka_url, 9, lambda _: None)
    assert assert_whole(kafka_url, acknowledged) >= 9


def test_writer_killed_again_and_again_under_a_reader_loses_nothing(kafka_url):
    last, acknowledged, chance = 90, 0, random.Random(7)

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.crash.stream_process", *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    reader = start("follow", kafka_url, str(last))
    while acknowledged < last:
        writer = start("append", kafka_url)
        assert int(writer.stdout.readline()) >= acknowledged
        for _ in range(chance.randrange(10, 30)):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    output, errors = reader.communicate(timeout=60)
    assert int(output or 0) >= last, errors
    assert_whole(kafka_url, acknowledged)


# ---- two writers


def test_older_writer_is_fenced_out_and_stays_so(kafka_url):
    with open_stream(kafka_url, "write") as first:
        first.append(batch([1, 2]))
        with open_stream(kafka_url, "write") as second:
            assert second.append(batch([3, 4])).outcome is Outcome.APPENDED
            for _ in range(2):
                with pytest.raises(StaleTail, match="fenced"):
                    first.append(batch([3], salt="other"))
            with pytest.raises(StaleTail):
                first.bind("other", "/other")
            assert rows_of(second.read(0)) == [row(event_id) for event_id in range(1, 5)]
            assert second.info().outbox_id is None


def test_older_writer_does_not_answer_a_tail_that_is_none_any_more(kafka_url):
    """A relay that was paused would take rows that the other has deleted for lost."""
    with open_stream(kafka_url, "write") as first:
        first.append(batch([1, 2]))
        with open_stream(kafka_url, "write") as second:
            assert first.tail() == first.settle() == 2
            second.append(batch([3, 4]))
            for ask in (first.tail, first.settle):
                with pytest.raises(StaleTail, match="another writer"):
                    ask()
            assert second.tail() == second.settle() == 4


def test_companion_that_is_emptied_under_a_reader_passes(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2]))
    with open_stream(kafka_url) as reader:
        make_anew(admin, address_of(kafka_url).companion, 2, cleanup_policy="compact")
        with pytest.raises(StreamUnavailable):
            reader.info()


def test_writers_that_take_over_from_each_other_never_interleave(kafka_url):
    last, failures = 60, []
    open_stream(kafka_url, "write").close()

    def work() -> None:
        try:
            while True:
                try:
                    with open_stream(kafka_url, "write") as stream:
                        for _ in range(4):
                            tail = stream.tail()
                            if tail >= last:
                                return
                            stream.append(batch(range(tail + 1, tail + 4)))
                except Transient:
                    continue
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert_whole(kafka_url, last)


# ---- what hides or takes the tail


def test_aborted_transactions_do_not_hide_the_tail(kafka_url):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch(range(1, 6)))
    leave_aborted(kafka_url, 30, transactions=3)
    with open_stream(kafka_url) as reader:
        assert reader.tail() == 5
        assert ids_of(reader.read(0)) == [1, 2, 3, 4, 5]
    assert_whole(kafka_url, 5)


def test_aborted_transactions_before_the_first_event_are_no_events(kafka_url):
    open_stream(kafka_url, "write").close()
    leave_aborted(kafka_url, 3)
    with open_stream(kafka_url, "write") as stream:
        assert (stream.tail(), stream.info().trimmed_through, stream.find(EPOCH)) == (0, 0, 1)
    assert_whole(kafka_url, 0)


def test_transaction_left_open_is_ended_by_the_next_writer(kafka_url):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2]))
    producer = rival(kafka_url)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(address_of(kafka_url).topic, b"never", partition=0)
    producer.flush(10)
    with open_stream(kafka_url) as reader:
        assert ids_of(reader.read(0)) == [1, 2]
    assert_whole(kafka_url, 2)


def test_topic_emptied_by_others_keeps_its_tail(kafka_url, admin):
    """As Kafka's own retention does it, when its time has come."""
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch(range(1, 6)))
    delete_records(admin, kafka_url, -1)
    with open_stream(kafka_url) as reader:
        assert (reader.tail(), reader.info().trimmed_through) == (5, 5)
        with pytest.raises(Trimmed, match="through ID 5"):
            reader.read(3)
    with open_stream(kafka_url, "write") as stream:
        assert stream.append(batch([1])).outcome is Outcome.LATE
        assert stream.append(batch([9], prev_id=7)).outcome is Outcome.TAIL_LOST
        assert stream.append(batch([6, 7])).outcome is Outcome.APPENDED
        assert (stream.info().trimmed_through, ids_of(stream.read(5))) == (5, [6, 7])
    assert check(kafka_url).ok


def test_front_deleted_by_others_is_trimmed_and_said(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2, 5], prev_id=0))
        stream.append(batch([9, 10], prev_id=5))
        delete_records(admin, kafka_url, 3)  # the marker of the first commit comes before 9
        assert stream.info().trimmed_through == 5
        assert ids_of(stream.read(5)) == ids_of(stream.read(7)) == [9, 10]
        with pytest.raises(Trimmed, match="read from ID 6"):
            stream.read(4)


def test_records_deleted_under_a_reader_are_an_error_not_a_gap(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream, open_stream(kafka_url) as reader:
        for first in range(1, 31, 3):
            stream.append(batch(range(first, first + 3)))
        batches = reader.read(0)
        stream.trim(20)
        with pytest.raises(Trimmed, match="through ID 20"):
            list(batches)
        assert ids_of(reader.read(20)) == list(range(21, 31))


def make_anew(admin, name: str, partitions: int = 1, **config: str) -> None:
    done(admin.delete_topics([name], operation_timeout=10))
    while name in admin.list_topics(timeout=10).topics:
        pass
    settings = {name.replace("_", "."): value for name, value in config.items()}
    done(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
    while name not in admin.list_topics(timeout=10).topics:
        pass


TIMES = {
    "message_timestamp_after_max_ms": str(2**63 - 1),
    "message_timestamp_before_max_ms": str(2**63 - 1),
}


def test_topic_made_anew_has_lost_its_tail(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch(range(1, 6)))
    make_anew(admin, address_of(kafka_url).topic, **TIMES)
    found = check(kafka_url)
    assert not found.ok
    assert "lost its end" in found.damage[0].what
    with open_stream(kafka_url, "write") as stream:
        assert stream.tail() == 0
        assert stream.append(batch([6])).outcome is Outcome.TAIL_LOST
        # Rows that were kept fill it again.
        assert stream.append(batch(range(1, 8))).outcome is Outcome.APPENDED
    assert_whole(kafka_url, 7)


def test_topic_made_anew_and_emptied_is_tail_lost_not_new(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch(range(1, 30)))
    make_anew(admin, address_of(kafka_url).topic, **TIMES)
    leave_aborted(kafka_url, 2)
    delete_records(admin, kafka_url, -1)
    with pytest.raises(TailLost, match="ID 29"):
        open_stream(kafka_url, "write")


def test_topic_made_anew_under_a_writer_ends_its_appends(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2]))
        make_anew(admin, address_of(kafka_url).topic, **TIMES)
        with pytest.raises((StreamUnavailable, StreamMissing, StaleTail, TailLost)):
            stream.append(batch([3]))
        with pytest.raises((StreamUnavailable, StreamMissing, StaleTail, TailLost)):
            stream.append(batch([4]))
    try:
        with open_stream(kafka_url, "write") as stream:
            assert (stream.tail(), stream.info().trimmed_through) == (0, 0)
    except TailLost as error:
        # The append has come through, and what was before it is gone.
        assert "under its writer" in str(error)  # noqa: PT017 - either may be


def test_companion_that_was_deleted_is_not_made_up(kafka_url, admin):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2]))
    done(admin.delete_topics([address_of(kafka_url).companion], operation_timeout=10))
    with pytest.raises(StreamMissing):
        open_stream(kafka_url)
    with pytest.raises(StreamCorrupt, match="companion was deleted"):
        open_stream(kafka_url, "write")


def test_record_of_somebody_else_is_an_error(kafka_url):
    with open_stream(kafka_url, "write") as stream:
        stream.append(batch([1, 2]))
    producer = Producer({"bootstrap.servers": address_of(kafka_url).servers})
    producer.produce(address_of(kafka_url).topic, b"hello", partition=0)
    producer.flush(10)
    with pytest.raises(StreamCorrupt, match="no event of this stream"):
        open_stream(kafka_url, "write")


def test_topic_that_breaks_the_guarantee_is_refused_with_the_command_that_mends_it(kafka_url, admin):
    address = address_of(kafka_url)
    done(admin.create_topics([NewTopic(address.topic, 3, 1)]))
    with pytest.raises(Unsupported, match="3 partitions"):
        open_stream(kafka_url, "write")
    make_anew(admin, address.topic, cleanup_policy="compact", **TIMES)
    with pytest.raises(Unsupported, match=r"kafka-configs.sh .*cleanup.policy=delete"):
        open_stream(kafka_url, "write")


def test_event_larger_than_the_topic_takes_says_which_setting_to_raise(kafka_url, admin):
    address = address_of(kafka_url)
    done(admin.create_topics([NewTopic(address.topic, 1, 1, config={
        "max.message.bytes": "20000", **{name.replace("_", "."): value for name, value in TIMES.items()}
    })]))  # fmt: skip
    with open_stream(kafka_url, "write") as stream:
        assert stream.append(batch([1])).outcome is Outcome.APPENDED
        with pytest.raises(StreamUnavailable, match=r"max.message.bytes"):
            stream.append(batch([2], salt="x" * 50_000))
        with pytest.raises(StreamUnavailable, match="open it again"):
            stream.append(batch([2]))
    assert_whole(kafka_url, 1)


# ---- what others see


def test_plain_kafka_consumer_reads_cloud_events(kafka_url):
    with open_stream(kafka_url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        stream.append(batch([3, 5, 6, 8], prev_id=0))
    address = address_of(kafka_url)
    consumer = Consumer({"bootstrap.servers": address.servers, "group.id": "plain", "auto.offset.reset": "earliest"})
    consumer.subscribe([address.topic])
    messages = []
    while len(messages) < 4:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        messages.append(message)
    consumer.close()
    previous = 0
    for message, event_id in zip(messages, [3, 5, 6, 8], strict=True):
        expected, headers = row(event_id), dict(message.headers())
        assert headers["ce_specversion"] == b"1.0"
        assert int(headers["ce_id"]) == event_id
        assert int(headers["ce_previd"]) == previous
        assert (headers["ce_type"], headers["ce_source"]) == (expected["type"].encode(), b"/shop")
        assert datetime.fromisoformat(headers["ce_time"].decode()) == expected["time"]
        assert message.timestamp()[1] == int(expected["time"].timestamp() * 1000)
        subject = expected["subject"] and expected["subject"].encode()
        assert (message.key(), headers.get("ce_subject")) == (subject, subject)
        data = expected["data"].encode() if expected["data"] else expected["data_bytes"]
        assert message.value() == data
        if data:
            assert headers["content-type"] == (expected["datacontenttype"] or "application/json").encode()
        if expected["headers"]:
            assert headers["ce_traceparent"] == json.loads(expected["headers"])["traceparent"].encode()
        previous = event_id


JSON = "application/json"
ODD = [
    {"data": "{}", "datacontenttype": JSON},
    {"data": "", "subject": ""},
    {"data": "not json", "datacontenttype": "text/plain"},
    {"data_bytes": b"{}", "datacontenttype": JSON},
    {"data_bytes": b"", "datacontenttype": None},
    {"data_bytes": b"\x00\xff", "datacontenttype": "application/avro"},
    {"datacontenttype": JSON},
    {"datacontenttype": REDACTED_CONTENT_TYPE},
    {"headers": '{"a": 1, "B": "é", "c": null, "d": true, "id": "7", "e": {"f": 2}}'},
    {"headers": "not json"},
    {"headers": "[1]"},
    {"time": datetime(1, 1, 1, tzinfo=UTC)},
    {"time": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
    {"time": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
]


def test_odd_rows_come_back_byte_for_byte(kafka_url):
    empty = {"type": "t", "subject": None, "data": None, "data_bytes": None, "datacontenttype": None, "headers": None}
    rows = [{"id": number, **empty, "time": EPOCH, **odd} for number, odd in enumerate(ODD, 1)]
    events = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    # A time that Python has no year for, and a text that is not UTF-8, as some databases hold them.
    times = pa.array([2**58, -(2**56)], pa.timestamp("us", tz="UTC"))
    texts = pa.array([b"\xff\xfe", None], pa.binary()).view(pa.string())
    more = [{"id": number, **empty, "time": EPOCH} for number in (len(rows) + 1, len(rows) + 2)]
    distant = pa.RecordBatch.from_pylist(more, schema=SCHEMA)
    distant = distant.set_column(7, SCHEMA.field("time"), times).set_column(3, SCHEMA.field("data"), texts)
    with open_stream(kafka_url, "write") as stream:
        assert stream.append(EventBatch(0, events)).outcome is Outcome.APPENDED
        assert rows_of(stream.read(0)) == rows
        assert stream.append(EventBatch(len(rows), distant)).outcome is Outcome.APPENDED
        (read,) = stream.read(len(rows))
        assert read.rows.equals(distant)
        assert stream.append(EventBatch(0, events)).outcome is Outcome.DUPLICATE


def test_reader_that_follows_learns_of_a_loss_and_of_what_follows_it(kafka_url):
    with open_stream(kafka_url, "write") as stream, open_stream(kafka_url) as reader:
        stream.append(batch([1, 2]))
        assert ids_of(reader.read(0)) == [1, 2]
        stream.lose(10)
        stream.append(batch([11]))
        batches = list(reader.read(2))
        assert_chained(batches, 10)
        assert ids_of(batches) == [11]
        assert reader.info().lost == ((2, 10),)
