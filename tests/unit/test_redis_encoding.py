"""Events become entries and come back as they were; the words are read here as the server reads them."""

from __future__ import annotations

import hiredis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import StreamCorrupt
from stream_store.redis import encoding
from stream_store.redis.decoding import decode
from stream_store.redis.encoding import parts
from stream_store.redis.reader import chained
from tests.crash.stream_events import batch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# As far as a database's time goes: years of one digit to years of six.
TIME_US = st.integers(-(2**62), 2**62) | st.integers(0, 2**51)
ROW = st.tuples(
    TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | st.binary(max_size=20), st.none() | TEXT, st.none() | TEXT, TIME_US
)  # fmt: skip


def entries_of(found: EventBatch) -> list[tuple[bytes, list[bytes]]]:
    """What XADD would be told, event by event."""
    entries = []
    for part in parts(found):
        reader = hiredis.Reader()
        reader.feed(b"*%d\r\n" % part.words + bytes(part.payload))
        words = reader.gets()
        assert len(words) == part.words
        count = 0
        while words:
            length = int(words[0])
            entries.append((words[1], words[2 : length + 1]))
            words = words[length + 1 :]
            count += 1
        assert count == part.rows
        assert entries[-1][0] == b"%d-0" % part.last_id
    return entries


def test_entry_has_the_fields_that_the_documents_name():
    (entry,) = entries_of(batch([7], prev_id=5))
    assert entry == (
        b"7-0",
        [
            b"previd", b"5", b"time", b"2024-05-01T00:00:07.000000Z", b"type", b"order.1", b"subject", b"order-7",
            b"data", '{"n":7,"é":""}'.encode(), b"headers", b'{"traceparent":"00"}',
        ],
    )  # fmt: skip


@given(
    st.lists(ROW, min_size=1, max_size=12), st.integers(1, 5), st.lists(st.integers(1, 2**50), min_size=13, max_size=13)
)
def test_events_come_back_as_they_were(rows, part_rows, steps):
    ids = [sum(steps[: at + 1]) for at in range(len(rows))]
    columns = [pa.array(ids, pa.int64())]
    columns += [
        pa.array(list(values), field.type)
        for values, field in zip(zip(*rows, strict=True), list(SCHEMA)[1:], strict=True)
    ]
    found = EventBatch(ids[0] - 1, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "PART_ROWS", part_rows)
        page = decode(entries_of(found), "url")
    assert page.rows.equals(found.rows)
    assert [part.prev_id for part in chained(page)] == [found.prev_id]


def test_large_event_is_a_part_of_its_own(monkeypatch):
    monkeypatch.setattr(encoding, "PART_BYTES", 1000)
    monkeypatch.setattr(encoding, "STEP_ROWS", 7)
    rows = [part.rows for part in parts(batch(range(1, 21), salt="x" * 300))]
    assert sum(rows) == 20
    assert max(rows) <= 3
    assert [part.rows for part in parts(batch([1, 2], salt="x" * 5000))] == [1, 1]


@pytest.mark.parametrize(
    "entry",
    [
        (b"5-1", [b"previd", b"4", b"type", b"t", b"time", b"2024-05-01T00:00:00Z"]),
        (b"5-0", [b"type", b"t", b"time", b"2024-05-01T00:00:00Z"]),
        (b"5-0", [b"previd", b"4", b"time", b"2024-05-01T00:00:00Z"]),
        (b"5-0", [b"previd", b"4", b"type", b"\xff", b"time", b"2024-05-01T00:00:00Z"]),
        (b"5-0", [b"previd", b"4", b"type", b"t", b"time", b"noon"]),
    ],
)
def test_entry_that_is_no_event_is_named(entry):
    good = (b"4-0", [b"previd", b"3", b"type", b"t", b"time", b"2024-05-01T00:00:00Z"])
    with pytest.raises(StreamCorrupt, match=entry[0].decode()):
        decode([good, entry, good], "url")
