"""Reading a span of a stream as Arrow batches: in an executor's Python process, or on the driver.

The price of a row is paid by Arrow, column by column. What makes a read slow is many small
batches, so small frames are joined and large ones are cut, to about 100,000 rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import EventBatch
from outbox.errors import StreamCorrupt, TailLost, WrongPartner
from spark_sink.fields import PREV_ID, event_schema, typed_schema
from spark_sink.spans import Span, split
from spark_sink.typed import parse
from stream_store import open_stream
from stream_store.cloudevents import TypeFilter
from stream_store.redaction import is_redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from stream_store import Stream

BATCH_ROWS = 100_000
# Keeps a column of a batch far below the 2 GiB that Arrow's offsets can address.
BATCH_BYTES = 64 << 20

# Up to here the driver reads faster than Spark's tasks do (measured: 0.20 s against 0.21 s at
# 10,000 rows, 0.51 s against 0.34 s at 50,000, with Python workers that are already started).
LOCAL_IDS_MAX = 10_000
LOCAL_BYTES_MAX = 32 << 20

# What typed columns are made of, and what says that they cannot be.
_PARSED = ("data", "data_bytes", "datacontenttype")


def event_batches(
    url: str,
    span: Span,
    *,
    columns: Sequence[str] | None = None,
    types: Sequence[str] = (),
    schema: pa.Schema | None = None,
    prev_id: bool = False,
    batch_rows: int = BATCH_ROWS,
    stream_id: str | None = None,
    redacted: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The events of a span, in order, as batches of `output_schema`.

    `columns` are those wanted of the event (all by default), `types` are patterns such as
    `order.*`. With a `schema`, its fields are parsed from `data` into columns of their own,
    and the last column, `_error`, says why a row could not be parsed (NULL: it could). When
    `stream_id` is given, the stream must be that one: a URL may mean another place elsewhere.
    Without `redacted`, events whose content was erased are left out.
    """
    output = output_schema(columns, schema, prev_id)
    needed = event_schema(columns, prev_id=prev_id).names
    if schema is not None:
        needed += [name for name in _PARSED if name not in needed]
    chosen = TypeFilter(tuple(types)) if types else None
    with open_stream(url) as stream:
        _require_whole(stream, span, stream_id)
        batches = _chained(stream, span)
        if not redacted:
            batches = (whole for batch in batches if (whole := _unredacted(batch)) is not None)
        picked = (_pick(batch, chosen, needed) for batch in batches)
        for rows in _sized(picked, batch_rows):
            whole = rows if schema is None else typed_rows(rows, schema)
            yield pa.RecordBatch.from_arrays([whole.column(name) for name in output.names], schema=output)


def output_schema(
    columns: Sequence[str] | None = None, schema: pa.Schema | None = None, prev_id: bool = False
) -> pa.Schema:
    """What the batches of `event_batches` have."""
    events = event_schema(columns, prev_id=prev_id)
    return events if schema is None else pa.schema([*events, *typed_schema(schema)])


def read_local(
    url: str,
    span: Span,
    *,
    columns: Sequence[str] | None = None,
    types: Sequence[str] = (),
    schema: pa.Schema | None = None,
    prev_id: bool = False,
    stream_id: str | None = None,
    redacted: bool = True,
) -> pa.Table:
    """The events of a span as one table, read in this process."""
    batches = event_batches(
        url,
        span,
        columns=columns,
        types=types,
        schema=schema,
        prev_id=prev_id,
        stream_id=stream_id,
        redacted=redacted,
    )
    return pa.Table.from_batches(batches, output_schema(columns, schema, prev_id))


def count_local(url: str, span: Span, *, types: Sequence[str] = ()) -> int:
    """How many events of a span are of these types, counted in this process."""
    return sum(batch.num_rows for batch in event_batches(url, span, columns=["id"], types=types))


def is_small(stream: Stream, span: Span) -> bool:
    """Whether a span is read faster here than by Spark's tasks."""
    if stream.url.startswith("memory:"):
        return True  # other processes do not have it
    if span.through - span.after > LOCAL_IDS_MAX:
        return False
    return sum(cut.size_bytes for cut in stream.cuts(span.after, span.through)) <= LOCAL_BYTES_MAX


def as_dataframe(
    spark: SparkSession,
    url: str,
    span: Span,
    pieces: int,
    *,
    columns: Sequence[str] | None = None,
    types: Sequence[str] = (),
    schema: pa.Schema | None = None,
    prev_id: bool = False,
    redacted: bool = True,
) -> DataFrame:
    """The events of a span in Spark, in ID order from partition to partition.

    A large span is read by `pieces` tasks, each its own piece, straight from the stream. A
    small one is read here and sent along: planning and Python workers cost more than it.
    """
    from spark_sink.spark_types import to_spark

    with open_stream(url) as stream:
        _require_whole(stream, span, None)
        place, stream_id = stream.url, stream.stream_id
        spans = [] if is_small(stream, span) else split(stream, span, pieces)
    if not spans:
        table = read_local(
            place,
            span,
            columns=columns,
            types=types,
            schema=schema,
            prev_id=prev_id,
            stream_id=stream_id,
            redacted=redacted,
        )
        # Not without any chunk: pyspark cannot convert a nested column of none.
        table = table if table.num_rows else table.schema.empty_table()
        return spark.createDataFrame(table, to_spark(table.schema))

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from event_batches(
                    place,
                    spans[number],
                    columns=columns,
                    types=types,
                    schema=schema,
                    prev_id=prev_id,
                    stream_id=stream_id,
                    redacted=redacted,
                )

    numbers = spark.range(0, len(spans), 1, len(spans))
    return numbers.mapInArrow(read, to_spark(output_schema(columns, schema, prev_id)))


def _require_whole(stream: Stream, span: Span, stream_id: str | None) -> None:
    """Refuse a stream that is not the one meant, or that does not reach to the end of the span.

    An executor on another machine may see another folder under the same name, or an older
    state of it; to read fewer events there would be a silent loss.
    """
    if stream_id not in (None, stream.stream_id):
        raise WrongPartner(
            f"{stream.url} is stream {stream.stream_id} here, not {stream_id}: every machine that reads it must see "
            "the same folder"
        )
    tail = stream.tail()
    if span.through > tail:
        raise TailLost(
            f"{stream.url} ends at ID {tail} here, and the events through ID {span.through} are to be read: the stream "
            "went back in time, or this machine sees an older state of it"
        )


def _chained(stream: Stream, span: Span) -> Iterator[EventBatch]:
    """The batches of a span, each of which follows the one before or a range recorded as lost."""
    lost: tuple[tuple[int, int], ...] | None = None
    # The first may follow an event before the span: the span's start may be a dead ID.
    reached = None
    for batch in stream.read(span.after, span.through):
        if batch.prev_id != reached and (reached is not None or batch.prev_id > span.after):
            lost = stream.info().lost if lost is None else lost
            at = span.after if reached is None else reached
            if _past(lost, at) != batch.prev_id:
                raise StreamCorrupt(
                    f"{stream.url}: the event {batch.first_id} follows ID {batch.prev_id}, what was read before it ends "
                    f"at ID {at}: run `outbox stream check` for the extent"
                )
        reached = batch.last_id
        yield batch


def _past(lost: tuple[tuple[int, int], ...], reached: int) -> int:
    """Where the stream goes on behind the lost ranges that begin at an ID."""
    for after, through in sorted(lost):
        if after <= reached < through:
            reached = through
    return reached


def _unredacted(batch: EventBatch) -> EventBatch | None:
    """The events that have their content; None when none has."""
    gone = is_redacted(batch.rows)
    if not pc.any(gone).as_py():
        return batch
    rows = batch.rows.filter(pc.invert(gone))
    return EventBatch(batch.prev_id, rows) if rows.num_rows else None


def _pick(batch: EventBatch, types: TypeFilter | None, names: Sequence[str]) -> pa.RecordBatch:
    """The rows and columns that are wanted. `prev_id` stays that of the stream's neighbour."""
    rows = batch.rows
    if PREV_ID in names:
        previous = pa.concat_arrays([pa.array([batch.prev_id], pa.int64()), batch.ids[:-1]])
        if types is not None:
            rows, previous = types.choose(rows, previous)
        rows = rows.append_column(PREV_ID, previous)
    elif types is not None:
        rows, _ = types.choose(rows, batch.ids)
    return rows.select(list(names))


def _sized(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are neither small nor too large."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for part in _cut(batch, batch_rows):
            if held and (rows + part.num_rows > batch_rows or size_bytes + part.nbytes > BATCH_BYTES):
                yield _joined(held)
                held, rows, size_bytes = [], 0, 0
            held.append(part)
            rows += part.num_rows
            size_bytes += part.nbytes
    if held:
        yield _joined(held)


def _cut(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    start = 0
    while start < batch.num_rows:
        part = batch.slice(start, rows_max)
        while part.nbytes > BATCH_BYTES and part.num_rows > 1:
            part = part.slice(0, part.num_rows // 2)
        yield part
        start += part.num_rows


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def typed_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns that are parsed from their data."""
    columns, errors = parse(rows.column("data"), schema)
    binary = pc.is_valid(rows.column("data_bytes"))
    if pc.any(binary).as_py():
        content_type = pc.fill_null(rows.column("datacontenttype"), "no content type")
        reason = pc.binary_join_element_wise("the data is binary (", content_type, "), not JSON text", "")
        errors = pc.if_else(binary, reason, errors)
    for field, column in zip(typed_schema(schema), [*columns, errors], strict=True):
        rows = rows.append_column(field, column)
    return rows
