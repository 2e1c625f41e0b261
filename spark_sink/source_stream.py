"""`spark.readStream.format("outbox")`: micro-batches of one stream or several.

An offset is `{stream_id: last event ID}`, by the ID that a stream got when it was made: it
stays the same when its folder is moved, and another stream in the same place is noticed.

Spark 4.2 asks for the end of a batch with its start and a limit, and names the moment at which
a query that takes what is available now begins. Before 4.2 it asks for the end alone, and
takes the first answer for all that is available: there, a limit would make such a query end
too early, so there is none.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from outbox.errors import TailLost, Trimmed, UsageError, WrongPartner
from spark_sink.source import EventReader
from spark_sink.spans import next_span
from stream_store import open_stream
from stream_store.place import parse_place, start_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from spark_sink.source_options import SourceOptions
    from stream_store import Stream

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """What Spark before 4.2 does not have."""


Offset = dict[str, int]


class StreamReader(EventReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one long-lived process on the driver; `read` runs in the tasks."""

    def __init__(self, options: SourceOptions, output: pa.Schema) -> None:
        super().__init__(options, output)
        last = None if options.end is None else parse_place(options.end, "to")
        if isinstance(last, datetime):
            raise UsageError(f"to={options.end} is a time, and a streaming query goes on: give an ID")
        if options.rows_max is not None and not HAS_LIMITS:
            warnings.warn("maxRowsPerBatch needs Spark 4.2: here, each batch takes all there is", stacklevel=2)
        self._last = last
        self._target: Offset | None = None
        self._open: dict[str, Stream] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # a task opens what it reads

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        streams = self._streams()
        return {stream_id: start_after(stream, self.options.start, "from") for stream_id, stream in streams.items()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._ends(self._streams())

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self.options.rows_max is None else ReadMaxRows(self.options.rows_max)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {stream_id: stream.tail() for stream_id, stream in self._streams().items()}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802 - Spark's name
        """The end of the next batch. Before Spark 4.2 there is neither `start` nor `limit`."""
        streams = self._streams()
        ends = self._ends(streams)
        if start is None:
            return ends
        self._require_all(start, streams)
        behind = {stream_id: end for stream_id, end in ends.items() if self._after(start, streams[stream_id]) < end}
        rows_max = getattr(limit, "max_rows", None)
        if rows_max is not None and behind:
            # Each stream gets its share: one that is far behind does not hold up the others.
            share = max(rows_max // len(behind), 1)
            behind = {
                stream_id: self._limited(streams[stream_id], start, share, end) for stream_id, end in behind.items()
            }
        return {**start, **behind}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        streams = self._streams()
        self._require_all(start | end, streams)
        found: list[InputPartition] = []
        for stream_id, through in end.items():
            stream = streams[stream_id]
            after = self._after(start, stream)
            if after < through:
                with self._telling_position(stream, after):
                    found += self.plan(stream.url, after, through, stream)
        return found

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return super().read(partition)

    def stop(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _streams(self) -> dict[str, Stream]:
        """The streams by their IDs. A glob is looked up anew, so a stream that is made later joins in."""
        found: dict[str, Stream] = {}
        for url in self.options.expanded():
            stream = self._open.get(url)
            if stream is None:
                stream = self._open[url] = open_stream(url)
            if stream.stream_id in found:
                raise UsageError(f"{found[stream.stream_id].url} and {url} are the same stream: name one of them")
            found[stream.stream_id] = stream
        return found

    def _ends(self, streams: dict[str, Stream]) -> Offset:
        """How far each stream may be read now."""
        ends = {stream_id: stream.tail() for stream_id, stream in streams.items()}
        if self._last is not None:
            ends = {stream_id: min(end, self._last) for stream_id, end in ends.items()}
        if self._target is not None:
            ends = {
                stream_id: min(end, self._target[stream_id])
                for stream_id, end in ends.items()
                if stream_id in self._target
            }
        return ends

    def _after(self, start: Offset, stream: Stream) -> int:
        """Where the query stands; the beginning of a stream that it has not met before."""
        return start[stream.stream_id] if stream.stream_id in start else stream.info().trimmed_through

    def _limited(self, stream: Stream, start: Offset, rows_max: int, end: int) -> int:
        after = self._after(start, stream)
        with self._telling_position(stream, after):
            span = next_span(stream, after, rows_max, end)
        return end if span is None else span.through

    def _require_all(self, offset: Offset, streams: dict[str, Stream]) -> None:
        """Refuse to go on without a stream that the query has read, or with one that went back in time."""
        for stream_id, reached in offset.items():
            stream = streams.get(stream_id)
            if stream is None:
                have = ", ".join(f"{other.url} ({other.stream_id})" for other in streams.values())
                raise WrongPartner(
                    f"the query's checkpoint stands at ID {reached} of stream {stream_id}, and that is none of {have}: put "
                    "the stream back in its place, or start the query with a new checkpoint"
                )
            tail = stream.tail()
            if reached > tail:
                raise TailLost(
                    f"{stream.url} ends at ID {tail}, and the query's checkpoint stands at ID {reached}: the stream went back "
                    "in time. Put it back from a newer copy, or start the query with a new checkpoint"
                )

    @contextmanager
    def _telling_position(self, stream: Stream, after: int) -> Iterator[None]:
        try:
            yield
        except Trimmed as error:
            raise Trimmed(
                f"the query stands at ID {after} of {stream.url}, and the events that follow were trimmed (through ID "
                f"{stream.info().trimmed_through}): read them from a copy of the stream, or start the query with a new "
                "checkpoint to go on without them"
            ) from error
