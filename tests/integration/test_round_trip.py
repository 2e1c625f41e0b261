"""Content from `emit` through the relay into the stream and onto tap's lines, byte for byte."""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connector.options import DeleteAfter
from connector.sources.mysql import BULK_ROWS_MIN, MysqlSource
from connector.verify import verify
from outbox import Outbox
from outbox.event import rfc3339
from outbox.row import DATA_BYTES_MAX, Encoder, Row
from stream_store import open_stream
from stream_store.cloudevents import to_lines
from stream_store.json_text import as_buffer
from tests.integration.relays import emit, installed, relay_once, table_ids
from tests.integration.test_emit_content import DEEP, NASTY
from tests.integration.test_emit_content import events as contents
from tests.integration.writers import connect

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from outbox.batch import EventBatch

OUTBOX = Outbox()
moments = st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
events = st.builds(lambda event, time: {**event, "time": time}, contents, st.none() | moments)
FIXED = [
    {"type": "tombstone", "subject": "gone"},
    {"type": "null", "data_json": "null"},
    {"type": "empty", "subject": "", "data": ""},
    {"type": "nothing", "data_bytes": b"", "datacontenttype": "application/x-empty"},
    {"type": "bytes", "data_bytes": bytes(range(256)), "datacontenttype": "application/octet-stream"},
    {"type": "number", "data_json": "1" * 5_000},
    {"type": "number", "data_json": "[1.50, 1e400, -0, 0.1000000000000000055511151231257827]"},
    {"type": "deep", "data_json": DEEP},
    {"type": "NUL", "data": {"a\0b": "\0"}},
    {"type": "large", "data": "x" * (DATA_BYTES_MAX - 2)},
    {"type": "large", "data_bytes": b"\xff" * DATA_BYTES_MAX, "datacontenttype": "application/octet-stream"},
    {"type": "spaced", "data_json": ' {"b" : 1,\n\t"a":2 , "b":3} '},
    {
        "type": "headers",
        "data": 1,
        "headers": {"traceparent": "00-1-2-3", "n": -(2**31), "yes": True, "text": "ü 'q' \"d\""},
    },
    {"type": "t" * 255, "subject": "🦊" * 1024, "datacontenttype": "application/vnd.x+json; charset=utf-8", "data": {}},
    {"type": "time", "time": datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)},
    {"type": "time", "time": datetime(2026, 3, 1, 1, 2, 3, 999_999, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))},
    {"type": "time", "time": datetime(1000, 1, 2, tzinfo=UTC)},
    {"type": "time", "time": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)},
    {"type": "time", "time": datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)},
    *(
        {"type": "nasty", "subject": text, "data": {text: text}, "headers": {"x": text.strip("\t\n\r\x7f\x85")}}
        for text in NASTY
    ),
]


def relay(options: RelayOptions, wanted: list[dict[str, Any]]) -> list[EventBatch]:
    """Emit events in one transaction; the batches of the stream that they have become."""
    with contextlib.closing(connect(options.database.url)) as connection:
        if options.database.dialect == "sqlite":
            connection.execute("BEGIN")
        OUTBOX.emit_many(connection, wanted)
        connection.commit()
    tail = 0
    with contextlib.suppress(Exception), contextlib.closing(open_stream(options.stream)) as stream:
        tail = stream.tail()
    relay_once(options)
    with contextlib.closing(open_stream(options.stream)) as stream:
        return list(stream.read(tail))


def encoded(wanted: list[dict[str, Any]]) -> list[Row]:
    return [Encoder().encode(**event) for event in wanted]


def assert_same(rows: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(rows) == len(wanted)
    for row, expected in zip(rows, encoded(wanted), strict=True):
        for name, value in expected._asdict().items():
            if name != "time" or value is not None:
                assert row[name] == value, name


def exact(text: str) -> Any:
    """A JSON text with its numbers as they are written, and doubled names kept."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)


def assert_lines(batches: list[EventBatch], wanted: list[dict[str, Any]]) -> None:
    text = b"".join(as_buffer(column).to_pybytes() for batch in batches for column in to_lines(batch, "/shop"))
    # Only at line breaks: U+2028 and its like stand inside a line.
    lines = text.decode().split("\n")
    assert lines.pop() == ""
    ids = [number for batch in batches for number in batch.ids.to_pylist()]
    assert len(lines) == len(wanted)
    previous = batches[0].prev_id
    for line, row_id, expected in zip(lines, ids, encoded(wanted), strict=True):
        members = dict(exact(line))
        assert (members["id"], members["previd"], members["source"]) == (str(row_id), str(previous), "/shop")
        assert members["type"] == expected.type
        assert members.get("subject") == expected.subject
        if expected.time is not None:
            assert members["time"] == rfc3339(expected.time)
        if expected.data is not None:
            assert members["data"] == exact(expected.data)
        if expected.data_bytes is not None:
            assert base64.b64decode(members["data_base64"]) == expected.data_bytes
        for name, value in exact(expected.headers) if expected.headers else ():
            assert members[name] == value
        previous = row_id


def check(options: RelayOptions, wanted: list[dict[str, Any]]) -> None:
    batches = relay(options, wanted)
    assert_same([row for batch in batches for row in batch.rows.to_pylist()], wanted)
    assert_lines(batches, wanted)


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


def test_known_content_is_in_the_stream_byte_for_byte(outbox: RelayOptions):
    check(outbox, FIXED)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(wanted=st.lists(events, min_size=10, max_size=40))
def test_any_content_is_in_the_stream_byte_for_byte(outbox: RelayOptions, wanted: list[dict[str, Any]]):
    check(outbox, wanted)


def test_kept_rows_are_recognized_whatever_their_content(outbox: RelayOptions):
    """Offered again, each row has to compare equal to its event: else a restart would end with CONFLICT."""
    keeping = replace(outbox, delete_after=DeleteAfter.parse("never"))
    relay(keeping, FIXED)
    relay_once(keeping)
    relay_once(outbox)
    assert verify(outbox.database, outbox.table, outbox.stream).ok
    assert table_ids(outbox) == []


@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_backlog_of_mysql_is_read_by_another_driver_to_the_same_bytes(
    database: str, stream_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    read_bulk, bulk = MysqlSource._read_bulk, []

    def counting(self: MysqlSource, after: int, through: int, limit_rows: int) -> Any:
        for rows in read_bulk(self, after, through, limit_rows):
            bulk.extend(rows.events.column(0).to_pylist())
            yield rows

    monkeypatch.setattr(MysqlSource, "_read_bulk", counting)
    outbox = installed(str(request.getfixturevalue(f"{database}_url")), stream_url)
    small = [event for event in FIXED if event["type"] != "large"]
    emit(outbox, 4 * BULK_ROWS_MIN)
    batches = relay(outbox, small)
    rows = [row for batch in batches for row in batch.rows.to_pylist()][-len(small) :]
    assert_same(rows, small)
    assert set(bulk) >= {row["id"] for row in rows}, "the rows in question came by the bulk reader"
    # And once more by the small reader: what was appended by one is deleted by the other's word.
    assert table_ids(outbox) == []
