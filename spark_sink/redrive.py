"""Redrive: dead letters that the table can take by now go into it, exactly once.

First the table, then the dead letters. A crash between the two leaves an event in both; the
next redrive finds it in the table, changes nothing there, and lets go of the letter.

Into an append table goes what is not there yet. In an upsert or scd2 table the keys of the
letters are recomputed from the first letter on, so that a later event of the key wins, and a
key that was deleted later stays deleted. That needs those later events: where the stream was
trimmed past the letter, nobody can say any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import EventsTrimmed, OutboxError, TableChanged, TableConflict
from spark_sink.conflicts import retrying
from spark_sink.dead_letters import DEAD_ID
from spark_sink.fields import EVENT_COLUMNS, event_schema
from spark_sink.key_history import keys_of, of_keys, require_consistent
from spark_sink.keys import quoted
from spark_sink.mode import DELETE, EVENT_TIME, Change
from spark_sink.note import Note
from spark_sink.reading import typed_rows
from spark_sink.shape import REASON, good_rows, shape
from spark_sink.spans import Span
from spark_sink.spark_types import to_spark
from spark_sink.spec import EVENT_ID
from spark_sink.table_sink import SinkOptions, TableSink
from stream_store.cloudevents import TypeFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_sink.spec import TableSpec
    from spark_sink.table import State
    from stream_store import Stream

log: Any = structlog.get_logger()

# How many letters are read here and go into one commit.
LETTERS_MAX = 10_000
NAMED_MAX = 100


@dataclass
class Redriven:
    """What became of the letters that were chosen."""

    table: str
    taken: int = 0
    failed: int = 0
    # The first of those that the table still cannot take, with the reason.
    still_failing: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0


class Redrive:
    """Takes dead letters of one table up again."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        spec: TableSpec,
        options: SinkOptions | None = None,
        tell: Callable[[int, int], None] = lambda done, of: None,  # noqa: ARG005
    ) -> None:
        self._stream = stream
        self._tell = tell
        self.sink = TableSink(spark, stream, spec, options or SinkOptions())

    def run(self, ids: Sequence[int] = (), reason: str | None = None, *, force: bool = False) -> Redriven:
        """Take up all letters, or those of these IDs, or those whose reason has this in it."""
        started = time.monotonic()
        done = Redriven(str(self.sink.spec.table))
        if not self.sink.table.exists() or not self.sink.open():
            raise OutboxError(f"there is no table {self.sink.spec.table} for the dead letters to go into")
        if not self.sink.dead_letters.exists():
            return done
        total = self.sink.dead_letters.waiting(ids, reason).count()
        after = 0
        while True:
            self._tell(done.taken + done.failed, total)
            found = retrying()(self._redrive, ids, reason, after, force=force)
            if found is None:
                break
            after, verdicts = found
            failed = {event_id: why for event_id, why in verdicts.items() if why is not None}
            done.taken += len(verdicts) - len(failed)
            done.failed += len(failed)
            done.still_failing += list(failed.items())[: NAMED_MAX - len(done.still_failing)]
        done.seconds = time.monotonic() - started
        return done

    def _letters(self, ids: Sequence[int], reason: str | None, after: int, bookmark: int) -> pa.Table:
        """The next letters, in the order of their IDs, as events.

        Only through the bookmark: what is beyond it the live sink has not decided for good.
        """
        chosen = self.sink.dead_letters.waiting(ids, reason).where((F.col("id") > after) & (F.col("id") <= bookmark))
        found = chosen.orderBy("id").limit(LETTERS_MAX).select(*EVENT_COLUMNS).toArrow()
        return found.cast(event_schema())

    def _redrive(
        self, ids: Sequence[int], reason: str | None, after: int, *, force: bool
    ) -> tuple[int, dict[int, str | None]] | None:
        """The table first, then the dead letters. The last letter, and why each was not taken, or None."""
        sink = self.sink
        # Both locks, and the letters read inside: nobody drops one that is on its way into the table.
        with sink.table.locked(), sink.dead_letters.table.locked():
            state = sink.table.look()
            letters = self._letters(ids, reason, after, state.bookmark)
            if not letters.num_rows:
                return None
            shaped = self._shaped(letters)
            verdicts = self._verdicts(letters, shaped)
            taken = [event_id for event_id, why in verdicts.items() if why is None]
            if taken:
                good = shaped.where(F.col(sink.spec.id_column).isin(taken))
                note = Note(state.app_id, state.bookmark, taken[0] - 1, taken[-1], role="redrive", rows=len(taken))
                if sink.spec.mode == "append":
                    self._insert(good_rows(good), state, note)
                else:
                    self._recompute(good, taken, state, note, force=force)
                now = sink.table.peek()
                sink.table.make_durable(now)
                if now.bookmark != state.bookmark and sink.spec.mode != "append":
                    # As in a replay: without a lock the live sink may have deleted what we have put back.
                    raise TableConflict(f"{sink.spec.table}: the live sink has moved on to {now.bookmark} meanwhile")
            reasons = pa.table({"id": list(verdicts), "reason": pa.array(verdicts.values(), pa.string())})
            letters_spark = sink.dead_letters.table.spark
            sink.dead_letters.settle(letters_spark.createDataFrame(reasons, to_spark(reasons.schema)))
            self._require_undropped(taken)
        return letters["id"][-1].as_py(), verdicts

    def _require_undropped(self, taken: Sequence[int]) -> None:
        """Where there is no lock to be had, somebody may have dropped a letter while it went into the table."""
        if not taken:
            return
        spec = self.sink.spec
        dropped = self.sink.dead_letters.rows().where(F.col("dropped_at").isNotNull() & F.col("id").isin(list(taken)))
        found = sorted(row["id"] for row in dropped.select("id").take(NAMED_MAX))
        if found:
            ids = ", ".join(str(each) for each in found)
            how = f"--from {found[0]} --to {found[-1]}" if spec.mode == "append" else "--rebuild"
            raise TableChanged(
                f"{spec.table}: somebody has dropped {ids} from the dead letters while a redrive put it into the table. "
                f"`outbox replay --table {spec.table} {how}` takes it out again"
            )

    def _shaped(self, letters: pa.Table) -> DataFrame:
        """The letters as rows of the table, with what is wrong with them by now."""
        sink = self.sink
        events = letters.combine_chunks()
        if sink.schema is not None:
            events = pa.Table.from_batches([typed_rows(batch, sink.schema) for batch in events.to_batches()])
        return shape(sink.spark.createDataFrame(events, to_spark(events.schema)), sink.spec, sink.schema)

    def _verdicts(self, letters: pa.Table, shaped: DataFrame) -> dict[int, str | None]:
        """For each letter why the table cannot take it; None when it can."""
        spec = self.sink.spec
        reason = F.col(REASON) if REASON in shaped.columns else F.lit(None).cast("string")
        found = shaped.select(F.col(spec.id_column).alias("id"), reason.alias("reason")).collect()
        verdicts: dict[int, str | None] = {}
        for row in sorted(found, key=lambda row: row["id"]):
            # A transform may make several rows of an event, and one that is bad takes it along.
            verdicts[row["id"]] = verdicts.get(row["id"]) or row["reason"]
        if spec.types:
            for batch in letters.to_batches():
                routed, _ = TypeFilter(spec.types).choose(batch, batch.column("id"))
                kept = set(routed.column("id").to_pylist())
                for event_id, kind in zip(batch["id"].to_pylist(), batch["type"].to_pylist(), strict=True):
                    if event_id not in kept:
                        verdicts[event_id] = f"the table no longer takes events of type {kind!r}"
        return verdicts

    def _insert(self, rows: DataFrame, state: State, note: Note) -> None:
        """Into an append table: what is not there yet."""
        column = f"`{self.sink.spec.id_column}`"
        same = f"t.{column} = s.{column} AND t.{column} > {note.after} AND t.{column} <= {note.through}"
        with self.sink.table.merging(state, note) as target:
            source = rows.drop(DELETE, EVENT_TIME).alias("s")
            values: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in source.columns}
            target.alias("t").merge(source, same).whenNotMatchedInsert(values=values).execute()

    def _recompute(self, letters: DataFrame, taken: Sequence[int], state: State, note: Note, *, force: bool) -> None:
        """Into an upsert or scd2 table: the keys of the letters, from the first letter to the bookmark."""
        sink = self.sink
        span = Span(max(note.after, self._readable_after(note.after, force=force)), state.bookmark)
        history = shape(sink.events(span), sink.spec, sink.schema)
        if span.after > note.after:
            history = history.unionByName(letters.where(F.col(EVENT_ID) <= span.after))
        history = of_keys(history, keys_of(letters, sink.spec), sink.spec)
        dead = sink.dead_letters.rows().where((F.col("id") > note.after) & ~F.col("id").isin(list(taken)))
        dead = dead.select(F.col("id").alias(DEAD_ID))
        require_consistent(sink, history, Span(note.after, state.bookmark))
        rows = good_rows(history).join(F.broadcast(dead), F.col(EVENT_ID) == F.col(DEAD_ID), "left_anti")
        sink.mode.repair(sink.table, state, sink.spec, Change(rows, note.after, note), state.bookmark)

    def _readable_after(self, after: int, *, force: bool) -> int:
        trimmed_through = self._stream.info().trimmed_through
        if after >= trimmed_through:
            return after
        name = self.sink.spec.table
        if self.sink.spec.mode == "scd2" or not force:
            more = "" if self.sink.spec.mode == "scd2" else ", or say --force, which may bring a deleted key back"
            raise EventsTrimmed(
                f"the letter {after + 1} of {name} is from before what the stream still holds (it was trimmed through "
                f"{trimmed_through}), so later events of its key may be unknown. Put the trimmed events back from a copy of the "
                f"stream, or `outbox dlq drop --table {name} --id {after + 1}`{more}"
            )
        return trimmed_through
