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
import time
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import Terminal, Transient, UsageError
from spark_sink.conflicts import retrying
from spark_sink.table_sink import SinkOptions, Step, TableSink
from spark_sink.worker_errors import in_short
from stream_store import open_stream

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.spec import TableSpec

log: Any = structlog.get_logger()

POLL_SECONDS = 0.5
# A table that failed is looked at again this often, while others go on: somebody may have mended it.
AGAIN_SECONDS = 60.0


class Materializer:
    """Tables of one stream. Safe to be killed at any moment, and to run beside another one.

    A table that fails is put aside, and the others go on. Its error is raised when they are done.
    """

    def __init__(
        self,
        spark: SparkSession,
        stream: str,
        tables: Sequence[TableSpec],
        options: SinkOptions | None = None,
        tell: Callable[[TableSink, Step], None] | None = None,
    ) -> None:
        self._stream = open_stream(stream)
        self._tell = tell
        # The tables that failed: why, and when each is to be looked at again.
        self._aside: dict[TableSink, tuple[Exception, float]] = {}
        self.sinks = [TableSink(spark, self._stream, spec, options or SinkOptions()) for spec in tables]
        names = [sink.name for sink in self.sinks]
        if len(set(names)) < len(names):
            self.close()
            raise UsageError(f"the table {next(name for name in names if names.count(name) > 1)} is there twice")
        for sink in self.sinks:
            sink.be_known()

    @property
    def failed(self) -> frozenset[TableSink]:
        """The tables that cannot go on for the time being."""
        return frozenset(self._aside)

    def run_once(self, through: int | None = None, stop: threading.Event | None = None) -> int:
        """Bring every table to the tail as it is now; returns that tail."""
        self._aside.clear()
        tail = self._bring(through, stop)
        self._settle()
        self._raise_worst()
        return tail

    def run(
        self,
        stop: threading.Event,
        every_seconds: float = POLL_SECONDS,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow the stream until told to stop; `between` is called where no commit is under way.

        Ends by itself only when no table is left that can go on.
        """
        self._aside.clear()
        while not stop.is_set():
            tail = self._stream.tail()
            while self._round(tail, stop):
                between()
            if self._aside and len(self._aside) == len(self.sinks):
                break
            between()
            stop.wait(every_seconds)
        self._settle()
        self._raise_worst()

    def foreach_batch(self, events: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """For `foreachBatch` of a query over `format("outbox")`: every table through the batch's last event.

        The batch says how far to go; what goes into the tables is read by their own bookmarks. So
        a lost checkpoint, a batch that comes twice or one that begins too late do no harm.
        """
        last = events.agg({"id": "max"}).collect()[0][0]
        if last is not None:
            self._aside.clear()
            self._bring(int(last), None)
            self._raise_worst()

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
            if time.monotonic() < self._aside.get(sink, (None, 0.0))[1]:
                continue
            with self._put_aside_when_failing(sink):
                progressed |= self._step(sink, tail)
        return progressed

    def _step(self, sink: TableSink, tail: int) -> bool:
        """A step, tried again when somebody else was first: the next try begins at their bookmark."""
        step: Step | None = retrying()(sink.step, tail)
        self._aside.pop(sink, None)
        if step is None:
            return False
        if step.committed:
            log.info(
                "materialized",
                table=str(sink.spec.table), after=step.span.after, through=step.span.through,
                seconds=round(step.seconds, 2),
            )  # fmt: skip
        if self._tell is not None:
            self._tell(sink, step)
        return True

    def _settle(self) -> None:
        for sink in self.sinks:
            if sink not in self._aside:
                with self._put_aside_when_failing(sink):
                    sink.settle()

    @contextlib.contextmanager
    def _put_aside_when_failing(self, sink: TableSink) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if len(self.sinks) == 1:
                raise
            self._aside[sink] = (error, time.monotonic() + AGAIN_SECONDS)
            log.error("a table cannot go on, the others do", table=str(sink.spec.table), error=in_short(error))

    def _raise_worst(self) -> None:
        if self._aside:
            raise worst_of([error for error, _ in self._aside.values()])


def worst_of(errors: Sequence[Exception]) -> Exception:
    """The one that the process is to end with: what needs a person comes before what a restart may mend."""

    def badness(error: Exception) -> int:
        if isinstance(error, Terminal):
            return 3
        if isinstance(error, UsageError):
            return 2
        return 0 if isinstance(error, Transient) else 1

    return max(errors, key=badness)


@contextlib.contextmanager
def materializer(spark: SparkSession, stream: str, *tables: TableSpec, **options: Any) -> Any:
    """A materializer that is closed at the end of the block."""
    with Materializer(spark, stream, tables, SinkOptions(**options)) as found:
        yield found
