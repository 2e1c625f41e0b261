"""`format("outbox")`: a stream, or several, as a DataFrame, in batch and in streaming queries.

Spark plans in one Python process and reads in others. What goes from one to the other is an
`OutboxPartition`; what a task needs beyond it is in the reader, which is pickled. A stream is
opened by its URL where it is needed, and has to be the one that was planned with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from outbox.errors import UsageError
from spark_sink.fields import EVENT_COLUMNS, PREV_ID, STREAM, event_schema, typed_schema
from spark_sink.pushed import Pushed
from spark_sink.reading import event_batches
from spark_sink.source_options import SourceOptions
from spark_sink.spans import Span, split
from spark_sink.spark_types import to_spark
from stream_store import open_stream
from stream_store.place import end_through, start_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import DataSourceStreamReader, Filter
    from pyspark.sql.types import StructType

    from stream_store import Stream

# Large enough that a task's fixed price (some 20 ms) is small beside its work, small enough
# that the cores of one machine share a stream of a few hundred megabytes evenly.
PIECE_BYTES = 16 << 20
PIECES_MAX = 10_000


@dataclass
class OutboxPartition(InputPartition):
    """What one task reads."""

    url: str
    stream_id: str
    after: int
    through: int


class DefaultSource(DataSource):
    """Found by Spark under the name `outbox`, because it stands in a module called `pyspark_outbox`."""

    @classmethod
    def name(cls) -> str:
        return "outbox"

    def schema(self) -> StructType:
        return to_spark(full_schema(SourceOptions.parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        output = wanted_schema(options, schema)
        return PushingReader(options, output) if options.pushdown else BatchReader(options, output)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from spark_sink.source_stream import StreamReader

        options = SourceOptions.parse(self.options)
        return StreamReader(options, wanted_schema(options, schema))


def full_schema(options: SourceOptions) -> pa.Schema:
    """All columns that a query gets, unless it declares fewer."""
    columns = options.columns or ("id", PREV_ID, *EVENT_COLUMNS[1:])
    fields = [pa.field(STREAM, pa.string())] if options.has_several else []
    fields += list(event_schema(columns))
    if options.schema is not None:
        fields += list(typed_schema(options.schema))
    return pa.schema(fields)


def wanted_schema(options: SourceOptions, declared: StructType) -> pa.Schema:
    """The columns that the query declared by `.schema(…)`: some of those that there are.

    Spark does not tell a Python source which columns a query uses, so this is how to read fewer.
    """
    there = full_schema(SourceOptions(options.streams, schema=options.schema))
    fields = []
    for field in declared.fields:
        at = there.get_field_index(field.name)
        if at < 0:
            raise UsageError(
                f"the stream has no column {field.name!r}; it has {', '.join(there.names)}. Fields of the data are "
                'declared by .option("schema", …), not by .schema(…)'
            )
        known = to_spark(pa.schema([there.field(at)])).fields[0].dataType
        if known != field.dataType:
            raise UsageError(
                f"the column {field.name!r} is declared as {field.dataType.simpleString()}, and it is "
                f"{known.simpleString()}: cast it afterwards"
            )
        fields.append(there.field(at))
    return pa.schema(fields)


class EventReader:
    """Reads the events of one partition, in whichever process a task runs."""

    def __init__(self, options: SourceOptions, output: pa.Schema) -> None:
        self.options = options
        self.output = output

    def plan(self, url: str, after: int, through: int, stream: Stream) -> list[OutboxPartition]:
        """The partitions of a range of one stream, in its order."""
        span = Span(after, min(through, stream.tail()))
        pieces = self.options.pieces
        if pieces is None:
            size_bytes = sum(cut.size_bytes for cut in stream.cuts(span.after, span.through))
            pieces = min(size_bytes // PIECE_BYTES + 1, PIECES_MAX)
        return [
            OutboxPartition(url, stream.stream_id, piece.after, piece.through) for piece in split(stream, span, pieces)
        ]

    def read(self, partition: OutboxPartition) -> Iterator[pa.RecordBatch]:
        names = self.output.names
        columns = [name for name in names if name in (*EVENT_COLUMNS, PREV_ID)]
        is_typed = self.options.schema is not None and len(columns) + (STREAM in names) < len(names)
        batches = event_batches(
            partition.url,
            Span(partition.after, partition.through),
            columns=columns or ["id"],
            types=self.types(),
            schema=self.options.schema if is_typed else None,
            stream_id=partition.stream_id,
        )
        for batch in batches:
            yield self._shaped(batch, partition.url)

    def types(self) -> Sequence[str]:
        return self.options.types

    def _shaped(self, batch: pa.RecordBatch, url: str) -> pa.RecordBatch:
        """The columns asked for, in the order asked for."""
        arrays = [
            pa.repeat(pa.scalar(url, pa.string()), len(batch)) if name == STREAM else batch.column(name)
            for name in self.output.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


class BatchReader(EventReader, DataSourceReader):
    """A range of each stream, as it is when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        for url in self.options.expanded():
            with open_stream(url) as stream:
                after, through = self.range(stream)
                found += self.plan(stream.url, after, through, stream)
        # Spark would make one without a value out of none.
        return found or [OutboxPartition("", "", 0, 0)]

    def range(self, stream: Stream) -> tuple[int, int]:
        after = start_after(stream, self.options.start, "from")
        return after, stream.tail() if self.options.end is None else end_through(stream, self.options.end, "to")

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return super().read(partition) if partition.url else iter(())


class PushingReader(BatchReader):
    """Also narrows what it reads by the query's own conditions on id, time and type.

    A class of its own because Spark refuses any source that can do this while its setting
    `spark.sql.python.filterPushdown.enabled` is off, which it is unless somebody sets it.
    """

    def __init__(self, options: SourceOptions, output: pa.Schema) -> None:
        super().__init__(options, output)
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take in what helps. Spark still applies every filter: ours are only coarser."""
        for condition in filters:
            self._pushed.take(condition)
        return filters

    def range(self, stream: Stream) -> tuple[int, int]:
        return self._pushed.narrowed(stream, *super().range(stream))

    def types(self) -> Sequence[str]:
        return self.options.types or self._pushed.types
