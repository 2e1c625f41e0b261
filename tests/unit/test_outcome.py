"""The append outcomes as a pure function."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.batch import SCHEMA, EventBatch
from stream_store.outcome import first_difference, judge
from stream_store.stream import Appended, Outcome
from tests.crash.stream_events import batch, row


def table(rows: list[dict[str, object]], chunks: int = 1) -> pa.Table:
    whole = pa.Table.from_pylist(rows, schema=SCHEMA)
    size = max(1, len(rows) // chunks)
    return pa.concat_tables([whole.slice(start, size) for start in range(0, len(rows), size)] or [whole])


def held(stream: list[int], chunks: int = 1):
    return lambda first, last: table([row(i) for i in stream if first <= i <= last], chunks)


def never(first: int, last: int) -> pa.Table:
    raise AssertionError("nothing needs to be read")


def test_no_read_is_needed_unless_the_batch_lies_below_the_tail():
    assert judge(batch([5, 6]), 4, 0, never) == Appended(Outcome.APPENDED, 6)
    assert judge(batch([5, 6]), 3, 0, never) == Appended(Outcome.TAIL_LOST, 3, 5)
    assert judge(batch([5, 6]), 5, 0, never) == Appended(Outcome.STALE, 5)
    assert judge(batch([5, 6]), 9, 5, never) == Appended(Outcome.LATE, 9, 5)


def test_row_between_prev_id_and_tail_without_overlap_is_stale():
    assert judge(batch([9], prev_id=3), 5, 0, never) == Appended(Outcome.STALE, 5)


@given(
    stream=st.sets(st.integers(1, 30), min_size=1),
    rows=st.sets(st.integers(1, 30), min_size=1),
    changed=st.sets(st.integers(1, 30)),
    chunks=st.integers(1, 5),
)
def test_below_the_tail_each_row_is_compared(stream, rows, changed, chunks):
    theirs, ours = sorted(stream), sorted(rows)
    content = [row(i, salt="x") | {"subject": "other"} if i in changed else row(i) for i in ours]
    offered = EventBatch(0, pa.RecordBatch.from_pylist(content, schema=SCHEMA))
    answer = judge(offered, 30, 0, held(theirs, chunks))
    missing, conflicting = sorted(rows - stream), sorted(rows & changed)
    if ours[-1] <= 30 and missing:
        assert answer == Appended(Outcome.LATE, 30, missing[0])
    elif conflicting:
        assert answer == Appended(Outcome.CONFLICT, 30, conflicting[0])
    else:
        assert answer == Appended(Outcome.DUPLICATE, 30)


@pytest.mark.parametrize(
    ("column", "value"),
    [("type", "x"), ("subject", None), ("data", ""), ("data_bytes", b""), ("datacontenttype", ""), ("headers", "{}")],
)
def test_null_differs_from_everything_but_null(column, value):
    rows = [row(i) for i in range(1, 30)]
    changed = [dict(event) for event in rows]
    changed[16][column] = value
    assert first_difference(table(rows), table(changed)) == 16
    assert first_difference(table(changed), table(rows, chunks=4)) == 16
    assert first_difference(table(rows), table(rows, chunks=7)) is None


def test_first_of_several_differences_is_named():
    rows = [row(i) for i in range(1, 30)]
    changed = [dict(event) for event in rows]
    changed[20]["type"], changed[9]["headers"], changed[25]["subject"] = "x", "x", "x"
    assert first_difference(table(rows), table(changed)) == 9
