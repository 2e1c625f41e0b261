"""Events as the words of an append script, column by column: no event becomes a Python object.

One entry an event, which any client reads with XRANGE or XREAD:

    1042-0  previd 1041  type order.paid  subject o-17  time 2026-03-01T12:00:00.000000Z
            datacontenttype …  data {"total": 1.5}  data_bytes …  headers {"traceparent": "00-…"}

The entry's ID is the event's own. A field that is not there is NULL.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import EventBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

# A script keeps the server from everybody else: a part takes it a few milliseconds.
PART_ROWS = 1_000
PART_BYTES = 1 << 20
# Encoded at once. Arrow's columns of text end at 2 GiB.
STEP_BYTES = 64 << 20
STEP_ROWS = 50_000

FIELDS = ("type", "subject", "datacontenttype", "data", "data_bytes", "headers")
# Arrow writes and reads years of four digits. Others are written as microseconds since 1970.
_TIME_MIN_US, _TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@dataclass(frozen=True, slots=True)
class Part:
    """So many events as one script takes them; it follows `prev_id`, as any batch does."""

    prev_id: int
    last_id: int
    rows: int
    # Of the words, of which there are so many.
    bytes: int
    words: int
    time_max_us: int
    payload: memoryview


def parts(batch: EventBatch) -> Iterator[Part]:
    """The batch, cut so that no script takes long."""
    start, prev_id = 0, batch.prev_id
    while start < len(batch):
        count = min(STEP_ROWS, len(batch) - start)
        while count > 1 and batch.rows.slice(start, count).nbytes > STEP_BYTES:
            count //= 2
        step = EventBatch(prev_id, batch.rows.slice(start, count))
        yield from _parts(step)
        start, prev_id = start + count, step.last_id


def _parts(batch: EventBatch) -> Iterator[Part]:
    previous = pa.concat_arrays([pa.array([batch.prev_id], pa.int64()), batch.ids[:-1]])
    words, counts = _words(batch.rows, previous)
    _, offsets_buffer, values = words.buffers()
    assert words.offset == 0, "an array that was just computed begins at its beginning"
    offsets = memoryview(offsets_buffer).cast("i")[: len(words) + 1]
    payload = memoryview(values) if values is not None else memoryview(b"")
    times = batch.rows.column("time").cast(pa.int64())
    start, prev_id = 0, batch.prev_id
    while start < len(batch):
        # At least one event, however large; then as many as fit.
        end = max(start + 1, bisect_right(offsets, offsets[start] + PART_BYTES) - 1)
        end = min(end, start + PART_ROWS, len(batch))
        last_id = int(batch.ids[end - 1].as_py())
        yield Part(
            prev_id=prev_id,
            last_id=last_id,
            rows=end - start,
            bytes=offsets[end] - offsets[start],
            words=int(pc.sum(counts.slice(start, end - start)).as_py()),
            time_max_us=int(pc.max(times.slice(start, end - start)).as_py()),
            payload=payload[offsets[start] : offsets[end]],
        )
        start, prev_id = end, last_id


def _words(rows: pa.RecordBatch, previous: pa.Int64Array) -> tuple[pa.BinaryArray, pa.Int64Array]:
    """For each event its words as they go over the wire, and how many they are."""
    columns = {name: rows.column(name).cast(pa.binary()) for name in FIELDS}
    counts = pa.array([5] * rows.num_rows, pa.int64())  # the entry ID, previd and time
    for column in columns.values():
        counts = pc.add(counts, pc.multiply(pc.is_valid(column).cast(pa.int64()), 2))
    words = pc.binary_join_element_wise(
        _word(_binary(counts)),
        _word(pc.binary_join_element_wise(_binary(rows.column("id")), _text(b"-0"), _text(b""))),
        _field("previd", _binary(previous)),
        _field("time", _rfc3339(rows.column("time"))),
        *(_field(name, column) for name, column in columns.items()),
        _text(b""),
        null_handling="replace",
        null_replacement=b"",
    )
    return words, pc.add(counts, 1)


def _field(name: str, values: pa.BinaryArray) -> pa.BinaryArray:
    """A field's name and its value as two words; NULL where the value is."""
    return _word(values, before=b"$%d\r\n%s\r\n" % (len(name), name.encode()))


def _word(values: pa.BinaryArray, before: bytes = b"") -> pa.BinaryArray:
    lengths = _binary(pc.binary_length(values))
    return pc.binary_join_element_wise(
        _text(before + b"$"), lengths, _text(b"\r\n"), values, _text(b"\r\n"), _text(b"")
    )


def _rfc3339(times: pa.TimestampArray) -> pa.BinaryArray:
    numbers = times.cast(pa.int64())
    # Without a time zone Arrow formats 15 times faster than with UTC, to the same digits.
    text = pc.replace_substring(times.cast(pa.timestamp("us")).cast(pa.string()), " ", "T", max_replacements=1)
    text = pc.binary_join_element_wise(text, "Z", "").cast(pa.binary())
    usual = pc.and_(pc.greater_equal(numbers, _TIME_MIN_US), pc.less_equal(numbers, _TIME_MAX_US))
    return text if pc.all(usual).as_py() else pc.if_else(usual, text, _binary(numbers))


def _binary(numbers: pa.Array) -> pa.BinaryArray:
    return numbers.cast(pa.string()).cast(pa.binary())


def _text(text: bytes) -> pa.BinaryScalar:
    return pa.scalar(text, pa.binary())
