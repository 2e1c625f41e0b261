"""Reading a span: what comes back is the stream's events, in order, whole, and nothing else."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from outbox.errors import StreamCorrupt, TailLost, Trimmed, UsageError, WrongPartner
from spark_sink import reading
from spark_sink.fields import EVENT_COLUMNS, field_column
from spark_sink.reading import count_local, event_batches, is_small, output_schema, read_local
from spark_sink.spans import Span
from spark_sink.typed import schema_from_ddl
from stream_store import open_stream
from tests.crash.stream_events import batch, row
from tests.streams import EPOCH, write_stream

if TYPE_CHECKING:
    from pathlib import Path

    from outbox.batch import EventBatch

_names = itertools.count()


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://reading-{next(_names)}" if request.param == "memory" else f"file://{tmp_path}/stream"


def fill(url: str, *batches: EventBatch) -> None:
    with open_stream(url, "write") as stream:
        for part in batches:
            stream.append(part)


def ids(table: pa.Table) -> list[int]:
    return table.column("id").to_pylist()


def test_events_come_back_as_they_were_in_the_documented_order_of_columns(url):
    fill(url, batch(range(1, 30)), batch(range(30, 40)))
    table = read_local(url, Span(0, 39))
    assert table.column_names == list(EVENT_COLUMNS)
    assert table.to_pylist() == [{name: row(event_id)[name] for name in EVENT_COLUMNS} for event_id in range(1, 40)]


def test_a_span_is_cut_at_both_ends_and_small_frames_are_joined(url):
    fill(url, *(batch(range(first, first + 3)) for first in range(1, 100, 3)))
    found = list(event_batches(url, Span(4, 77), columns=["id"], batch_rows=50))
    assert [len(part) for part in found] == [50, 23]
    assert [event_id for part in found for event_id in part.column(0).to_pylist()] == list(range(5, 78))


def test_large_frames_are_cut_by_rows_and_by_bytes(url, monkeypatch):
    fill(url, batch(range(1, 101)))
    assert [len(part) for part in event_batches(url, Span(0, 100), batch_rows=40)] == [40, 40, 20]
    monkeypatch.setattr(reading, "BATCH_BYTES", 500)
    found = list(event_batches(url, Span(0, 100)))
    assert len(found) > 5
    assert [event_id for part in found for event_id in part.column(0).to_pylist()] == list(range(1, 101))


def test_an_event_larger_than_a_batch_comes_all_the_same(url, monkeypatch):
    write_stream(url, [{"data": {"n": 1}}, {"data": {"long": "x" * 5000}}, {"data": {"n": 3}}])
    monkeypatch.setattr(reading, "BATCH_BYTES", 500)
    assert [len(part) for part in event_batches(url, Span(0, 3))] == [1, 1, 1]


def test_columns_come_in_the_order_asked_for(url):
    fill(url, batch(range(1, 4)))
    table = read_local(url, Span(0, 3), columns=["time", "id"])
    assert table.column_names == ["time", "id"]
    with pytest.raises(UsageError, match="no column 'total'"):
        read_local(url, Span(0, 3), columns=["total"])


def test_types_are_chosen_by_pattern(url):
    fill(url, batch(range(1, 31)))
    assert ids(read_local(url, Span(0, 30), types=["order.0", "none.*"])) == list(range(3, 31, 3))
    assert ids(read_local(url, Span(0, 30), types=["order.*"])) == list(range(1, 31))
    assert read_local(url, Span(0, 30), types=["nothing"]).num_rows == 0
    assert count_local(url, Span(0, 30), types=["order.0"]) == 10


def test_prev_id_is_the_neighbour_in_the_stream_whatever_is_chosen(url):
    fill(url, batch([3, 4, 9], prev_id=0), batch([15], prev_id=9), batch([16, 21], prev_id=15))
    table = read_local(url, Span(0, 21), columns=["id"], prev_id=True)
    assert table.column_names == ["id", "prev_id"]
    assert table.column("prev_id").to_pylist() == [0, 3, 4, 9, 15, 16]
    chosen = read_local(url, Span(0, 21), prev_id=True, types=["order.0"])
    assert chosen.select(["id", "prev_id"]).to_pylist() == [
        {"id": 3, "prev_id": 0},
        {"id": 9, "prev_id": 4},
        {"id": 15, "prev_id": 9},
        {"id": 21, "prev_id": 16},
    ]
    assert read_local(url, Span(6, 21), prev_id=True).column("prev_id").to_pylist() == [4, 9, 15, 16]


def test_nothing_has_the_right_columns_too(url):
    fill(url, batch([1]))
    schema = schema_from_ddl("total double")
    assert list(event_batches(url, Span(1, 1))) == []
    assert read_local(url, Span(0, 0), schema=schema).schema == output_schema(None, schema, False)
    assert read_local(url, Span(0, 1), types=["none"], schema=schema).schema.names[-2:] == ["total", "_error"]


def test_typed_columns_stand_behind_the_events_own(url):
    events: list[dict[str, Any]] = [
        {"data": {"total": 1.5, "id": "o-1"}},
        {"data": {"total": "x"}},
        {"data": None},
        {"data_bytes": b"\x00", "datacontenttype": "application/avro"},
        {"data": "[1]"},
    ]
    write_stream(url, events)
    schema = schema_from_ddl("total double, id string")
    table = read_local(url, Span(0, 5), columns=["id"], schema=schema)
    assert table.schema == output_schema(["id"], schema, False)
    assert table.column_names == ["id", "total", "data_id", "_error"]
    assert table.drop_columns("_error").to_pylist()[:2] == [
        {"id": 1, "total": 1.5, "data_id": "o-1"},
        {"id": 2, "total": None, "data_id": None},
    ]
    assert table.column("_error").to_pylist() == [
        None,
        'total: "x" is not a number (double)',
        None,
        "the data is binary (application/avro), not JSON text",
        "the data is not a JSON object, so it has no fields",
    ]


def test_field_names_keep_clear_of_the_events_columns():
    assert [field_column(name) for name in ("total", "id", "Type", "prev_id", "data")] == [
        "total",
        "data_id",
        "data_Type",
        "data_prev_id",
        "data_data",
    ]
    for name in ("_error", "_event_id", "_EVENT_x"):
        with pytest.raises(UsageError, match="columns of the sink"):
            field_column(name)
    with pytest.raises(UsageError, match="both be the column"):
        output_schema(None, schema_from_ddl("id string, data_id string"), False)
    with pytest.raises(UsageError, match="both be the column"):
        output_schema(None, schema_from_ddl("total string, Total string"), False)


def test_a_recorded_loss_is_passed_over(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2]))
        stream.lose(10)
        stream.lose(20)
        stream.append(batch([21]))
    assert ids(read_local(url, Span(0, 21))) == [1, 2, 21]
    assert ids(read_local(url, Span(2, 21))) == ids(read_local(url, Span(5, 21))) == [21]
    assert ids(read_local(url, Span(2, 15))) == []


def test_a_break_of_the_chain_is_an_error(url, monkeypatch):
    fill(url, batch([1, 2]), batch([3, 4]), batch([5]))
    with open_stream(url) as stream:
        parts = list(stream.read(0))
    kind = type(stream)
    for missing, after in ((1, 0), (0, 0)):
        rest = [part for at, part in enumerate(parts) if at != missing]
        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", lambda *_, rest=rest: iter(rest))
            with pytest.raises(StreamCorrupt, match="follows ID"):
                read_local(url, Span(after, 5))


def test_a_stream_that_ends_too_early_is_not_read_short(url):
    fill(url, batch([1, 2]))
    with pytest.raises(TailLost, match="ends at ID 2"):
        read_local(url, Span(0, 3))


def test_another_stream_under_the_same_url_is_refused(url):
    fill(url, batch([1, 2]))
    with pytest.raises(WrongPartner, match="is stream"):
        list(event_batches(url, Span(0, 2), stream_id="another"))


def test_trimmed_events_are_an_error(url):
    if url.startswith("file"):
        url += "?segment_bytes=1500"
    with open_stream(url, "write") as stream:
        for first in range(1, 200, 10):
            stream.append(batch(range(first, first + 10)))
        stream.trim(150)
    with pytest.raises(Trimmed, match="trimmed through ID"):
        read_local(url, Span(0, 200))


def test_redacted_events_are_rows_without_data_or_left_out(url):
    """Append tables keep them; keyed tables pass over them."""
    with open_stream(url, "write") as stream:
        for first in range(1, 40, 10):
            stream.append(batch(range(first, first + 10)))
        gone = [3, *range(11, 21), 40]
        stream.redact(gone)
    kept = read_local(url, Span(0, 40))
    assert kept["id"].to_pylist() == list(range(1, 41))
    assert {kept["data"][event_id - 1].as_py() for event_id in gone} == {None}
    schema = pa.schema([pa.field("n", pa.int64())])
    typed = read_local(url, Span(0, 40), columns=["id", "data_bytes"], schema=schema)
    assert [typed["_error"][event_id - 1].as_py() for event_id in gone] == [None] * len(gone)
    whole = [event_id for event_id in range(1, 41) if event_id not in gone]
    assert read_local(url, Span(0, 40), redacted=False)["id"].to_pylist() == whole
    chained = read_local(url, Span(0, 40), columns=["id"], types=["order.1"], redacted=False, prev_id=True)
    assert chained["id"].to_pylist() == [event_id for event_id in whole if event_id % 3 == 1]


def test_small_is_few_ids_and_few_bytes(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/stream"
    write_stream(url, [{"data": {"n": n}, "time": EPOCH + timedelta(seconds=n)} for n in range(2000)])
    with open_stream(url) as stream:
        assert is_small(stream, Span(0, 2000))
        monkeypatch.setattr(reading, "LOCAL_IDS_MAX", 1999)
        assert not is_small(stream, Span(0, 2000))
        assert is_small(stream, Span(1, 2000))
        monkeypatch.setattr(reading, "LOCAL_BYTES_MAX", 1000)
        assert not is_small(stream, Span(1, 2000))
