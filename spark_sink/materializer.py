"""The materializer: one stream into Delta tables, exactly once each.

    materializer = Materializer(spark, "file:///var/lib/outbox/shop", [TableSpec(TableName.parse("/lake/orders"))])
    materializer.run_once()                                   # through the tail as it is now
    query = events.writeStream.foreachBatch(materializer.foreach_batch).start()   # or as part of a query

A plain loop over batch reads: bookmark, read, commit, again. The bookmark is in the table, in
the same commit as the rows, so there is no checkpoint to lose, and a table that is added
later begins at the beginning without disturbing the others.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import UsageError
from spark_sink.conflicts import retrying
from spark_sink.table_sink import SinkOptions, Step, TableSink
from stream_store import open_stream

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.spec import TableSpec

log: Any = structlog.get_logger()

POLL_SECONDS = 0.5


class Materializer:
    """Tables of one stream. Safe to be killed at any moment, and to run beside another one."""

    def __init__(
        self,
        spark: SparkSession,
        stream: str,
        tables: Sequence[TableSpec],
        options: SinkOptions | None = None,
        tell: Callable[[TableSink, Step], None] | None = None,
    ) -> None:
        names = [str(spec.table) for spec in tables]
        if len(set(names)) < len(names):
            raise UsageError(f"the table {next(name for name in names if names.count(name) > 1)} is there twice")
        self._stream = open_stream(stream)
        self._tell = tell
        self.sinks = [TableSink(spark, self._stream, spec, options or SinkOptions()) for spec in tables]
        for name in names:
            # Known from now on: rows that a table has not got yet must not be deleted for another's sake.
            if self._stream.reported(name) is None:
                self._stream.report_sink(name, 0)

    def run_once(self, through: int | None = None, stop: threading.Event | None = None) -> int:
        """Bring every table to the tail as it is now; returns that tail."""
        tail = self._bring(through, stop)
        for sink in self.sinks:
            sink.settle()
        return tail

    def run(
        self,
        stop: threading.Event,
        every_seconds: float = POLL_SECONDS,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow the stream until told to stop; `between` is called where no commit is under way."""
        while not stop.is_set():
            tail = self._stream.tail()
            while self._round(tail, stop):
                between()
            between()
            stop.wait(every_seconds)
        for sink in self.sinks:
            sink.settle()

    def foreach_batch(self, events: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """For `foreachBatch` of a query over `format("outbox")`: every table through the batch's last event.

        The batch says how far to go; what goes into the tables is read by their own bookmarks. So
        a lost checkpoint, a batch that comes twice or one that begins too late do no harm.
        """
        last = events.agg({"id": "max"}).collect()[0][0]
        if last is not None:
            self._bring(int(last), None)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Materializer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bring(self, through: int | None, stop: threading.Event | None) -> int:
        tail = self._stream.tail() if through is None else min(through, self._stream.tail())
        while self._round(tail, stop):
            pass
        return tail

    def _round(self, tail: int, stop: threading.Event | None) -> bool:
        """One batch for each table that is behind; whether there was any."""
        progressed = False
        for sink in self.sinks:
            if stop is not None and stop.is_set():
                return False
            step = self._step(sink, tail)
            if step is not None:
                progressed = True
                if step.committed:
                    log.info(
                        "materialized",
                        table=str(sink.spec.table), after=step.span.after, through=step.span.through,
                        seconds=round(step.seconds, 2),
                    )  # fmt: skip
                if self._tell is not None:
                    self._tell(sink, step)
        return progressed

    def _step(self, sink: TableSink, tail: int) -> Step | None:
        """A step, tried again when somebody else was first: the next try begins at their bookmark."""
        return retrying()(sink.step, tail)


@contextlib.contextmanager
def materializer(spark: SparkSession, stream: str, *tables: TableSpec, **options: Any) -> Any:
    """A materializer that is closed at the end of the block."""
    with Materializer(spark, stream, tables, SinkOptions(**options)) as found:
        yield found
