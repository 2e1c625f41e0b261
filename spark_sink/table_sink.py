"""One table of one stream: from its bookmark to the tail, a commit at a time."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import EventsTrimmed, ExpectationFailed, TableChanged, TableConflict, TailLost, Trimmed
from spark_sink import evolution
from spark_sink.columns import require_types
from spark_sink.ddl import schema_from_ddl, to_ddl
from spark_sink.dead_letters import DEAD_ID, DeadLetters
from spark_sink.inference import extended, joined
from spark_sink.mode import Change
from spark_sink.modes import MODES
from spark_sink.names import qualified
from spark_sink.note import Note
from spark_sink.reading import LOCAL_IDS_MAX, as_dataframe, read_local
from spark_sink.shape import REASON, shape, table_columns, warnings_of
from spark_sink.spans import Span, next_span
from spark_sink.table import NAME, PROPERTY, Table, require_same
from spark_sink.undone import write_again
from spark_sink.waiting import Waiting
from stream_store.readers import REPORT_AGAIN_SECONDS, TABLE, reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_sink.spec import TableSpec
    from spark_sink.table import State
    from stream_store import Stream

log: Any = structlog.get_logger()

ROWS_MAX = 1_000_000
# A table that none of the events are for moves its bookmark all the same, but not at each look.
IDLE_IDS_MAX = 1_000_000
IDLE_SECONDS_MAX = 60.0
NAMED_MAX = 10
SPEC = PROPERTY + "spec"
_BAD = "_outbox_bad"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How tables are written, whatever they hold."""

    rows_max: int = ROWS_MAX
    # None: Delta's inside where it can be reached, its public interface elsewhere.
    internals: bool | None = None
    lock: bool = True
    after_restore: str = "stop"
    # Whether a table that was there before, and is gone, is made anew.
    anew: bool = False
    # Whether the stream is told how far the table has come; not of one that is only there for a while.
    reports: bool = True
    pieces: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of one table. `rows` is None where Spark has not counted them."""

    span: Span
    committed: bool
    seconds: float


class TableSink:
    """Owns a table's bookmark while it runs; whoever else does is found out by the commit."""

    def __init__(self, spark: SparkSession, stream: Stream, spec: TableSpec, options: SinkOptions) -> None:
        self.spec = spec
        self._stream = stream
        self._options = options
        facts = stream.info()
        self.outbox_id = facts.outbox_id or facts.stream_id
        self.table = Table(spark, spec.table, self.outbox_id, internals=options.internals, lock=options.lock)
        self.spark = self.table.spark
        self.dead_letters = DeadLetters(
            spark, spec, self.table, self.outbox_id, internals=options.internals, lock=options.lock
        )
        # The name by which the stream knows the table.
        self.name = qualified(self.spark, spec.table)
        self._waiting = Waiting(stream, spec, self.name, reports=options.reports)
        self.schema: pa.Schema | None = None
        self._schema_text: str | None = None
        # From here on there are no dead letters, and nobody can make any without our knowing.
        self._letterless_after: int | None = None
        self._left_out: set[str] = set()
        self._opened = False
        # No event of this span is for the table, though its bookmark does not say so yet.
        self._idle = Span(0, 0)
        # Where the table begins, as long as it has no bookmark: behind what was trimmed before it was made.
        self._begins_after = 0
        self._committed_at = self._reported_at = time.monotonic()

    @property
    def mode(self) -> Any:
        return MODES[self.spec.mode]

    @property
    def rows_max(self) -> int:
        return self._options.rows_max

    @property
    def pieces(self) -> int:
        return self._options.pieces or int(self.spark.sparkContext.defaultParallelism)

    def open(self) -> bool:
        """Make the table, or see that it is ours and as we left it. False: no event to infer its schema from yet."""
        if self._opened:
            return True
        with self.table.locked():
            if not self.table.exists():
                self._require_new()
                try:
                    self.schema = self._waiting.first_schema()
                except evolution.NoEventYet:
                    return False
                self._create()
            state = self._look()
            require_same(self.spec.table, state.properties, self._identity())
            self._keep_layout(state)
            self._follow(state)
            self._keep_spec(state)
            self.reconcile(state)
            if not state.has_bookmark:
                self._begin()
        # Also where there is nothing to commit: whoever did the last time may not have come this far.
        self._finish(state)
        self._waiting.end()
        self._opened = True
        return True

    def be_known(self) -> None:
        """Have the stream keep for the table what it has not got yet."""
        self._waiting.be_known(exists=self.table.exists())

    def _look(self) -> State:
        """The table's bookmark; after a RESTORE that of its rows, when it may be put back."""
        try:
            return self.table.look()
        except TableChanged:
            if self._options.after_restore != "replay":
                raise
            return self._recovered()

    def open_for_repair(self) -> State:
        """Take the table as it is, whatever others have done to it."""
        state = self.table.peek()
        require_same(self.spec.table, state.properties, self._identity())
        self._keep_layout(state)
        self._follow(state)
        return state

    def bookmark(self) -> int:
        return self.table.peek().bookmark if self.table.exists() else 0

    def step(self, tail: int) -> Step | None:
        """One batch: at most one commit. None when the table holds everything through the tail."""
        if not self.open():
            return None
        started = time.monotonic()
        with self.table.locked():
            state = self._look()
            self._require_same_spec(state)
            self._follow(state)
            span = self._next(state, tail)
            if span is None:
                return self._settle(state, tail, started)
            if self._is_idle(state, span):
                self._idle = Span(self._idle.after if span.after == self._idle.through else span.after, span.through)
                return Step(span, committed=False, seconds=time.monotonic() - started)
            if self.spec.evolves and self.schema is not None and self._grow(state, span):
                state = self._same_bookmark(state)
            self._write(state, span)
            state = self._checked(state, span.through)
        self._finish(state)
        return Step(span, committed=True, seconds=time.monotonic() - started)

    def _next(self, state: State, tail: int) -> Span | None:
        after = self._passed(state)
        if self._stream.tail() < state.bookmark:
            raise TailLost(
                f"{self.spec.table} holds events through {state.bookmark}, the stream ends at {self._stream.tail()}: it went "
                "back in time. Put the stream back from a copy; see docs/operations.md"
            )
        try:
            return next_span(self._stream, after, self._options.rows_max, tail)
        except Trimmed as error:
            raise EventsTrimmed(
                f"{self.spec.table} holds events through {after}, and the stream no longer has those that follow: it was "
                f"trimmed through {self._stream.info().trimmed_through}. Put the trimmed events back from a copy of the "
                f"stream, or make the table anew without them: `outbox replay --rebuild --table {self.spec.table}`"
            ) from error

    def _passed(self, state: State) -> int:
        """How far the table is, with what was found not to be for it.

        What was passed over is a fact about the stream behind the bookmark of then. Whoever has put
        the bookmark back since, or another table in the place of this one, wants what lies before it.
        """
        begin = state.bookmark if state.has_bookmark else max(state.bookmark, self._begins_after)
        return self._idle.through if self._idle.after <= begin < self._idle.through else begin

    def _is_idle(self, state: State, span: Span) -> bool:
        """Whether a small span has nothing for this table and its bookmark may wait."""
        if not self.spec.types or not _is_small(span):
            return False
        if read_local(self._stream.url, span, columns=["id"], types=self.spec.types).num_rows:
            return False
        return span.through - state.bookmark < IDLE_IDS_MAX and time.monotonic() - self._committed_at < IDLE_SECONDS_MAX

    def _settle(self, state: State, tail: int, started: float) -> Step | None:
        """Nothing left to read: let the bookmark catch up with what was passed over, once in a while."""
        # A query that drives us may come with a batch from before the bookmark.
        span = Span(state.bookmark, min(self._passed(state), tail))
        if span.through <= span.after or time.monotonic() - self._committed_at < IDLE_SECONDS_MAX:
            if time.monotonic() - self._reported_at >= REPORT_AGAIN_SECONDS:
                self._report(state)
            return None
        self._mark(state, span)
        return Step(span, committed=True, seconds=time.monotonic() - started)

    def settle(self) -> None:
        """Move the bookmark over what was passed over, before going away."""
        if self._opened and max(self._idle.through, self._begins_after):
            with self.table.locked(), suppress(TableConflict):
                state = self.table.look()
                if self._passed(state) > state.bookmark:
                    self._mark(state, Span(state.bookmark, self._passed(state)))

    def _mark(self, state: State, span: Span) -> None:
        note = Note(state.app_id, span.through, span.after, span.through, rows=0)
        self._finish(self.table.append(None, state, note))

    def _write(self, state: State, span: Span) -> None:
        """The dead letters first, then the rows, each in one commit."""
        with self.taken(span, new=True) as rows:
            note = Note(state.app_id, span.through, state.bookmark, span.through, prev_id=state.bookmark)
            self.mode.apply(self.table, state, self.spec, Change(rows, span.after, note))

    @contextmanager
    def taken(self, span: Span, *, new: bool = False) -> Iterator[DataFrame]:
        """The rows that the table takes of a span; what it cannot take is among the dead letters then.

        `new`: the span follows the bookmark.
        """
        events = self.events(span)
        shaped = shape(events, self.spec, self.schema)
        checked = self.spec.can_fail or bool(self.spec.expect)
        if checked and not _is_small(span):
            events = events.persist()
            shaped = shape(events, self.spec, self.schema)
        try:
            if checked:
                self.judge(events, shaped, span)
            # What the dead letters hold is left out, and nothing else: an expectation that looks at the
            # clock may say something else the second time, and the row would be in neither.
            rows = shaped.drop(REASON)
            yield rows if new and self._is_letterless(span) else self.alive(rows, span)
        finally:
            if checked:
                events.unpersist()

    def events(self, span: Span) -> DataFrame:
        """The events of a span that are for this table."""
        return as_dataframe(
            self.spark,
            self._stream.url,
            span,
            self.pieces,
            types=self.spec.types,
            schema=self.schema,
            redacted=self.spec.keeps_redacted,
        )

    def alive(self, rows: DataFrame, span: Span) -> DataFrame:
        """The rows without those that are dead letters already."""
        held = self.dead_letters.held(span)
        if held is None:
            return rows
        return rows.join(F.broadcast(held), F.col(self.spec.id_column) == F.col(DEAD_ID), "left_anti")

    def _is_letterless(self, span: Span) -> bool:
        """Whether no event behind the bookmark can be a dead letter already, so that nobody needs to be asked at each batch.

        Also where nothing can be wrong by the table's description there may be letters of another
        one. When there are no more, new ones would come with a description that this sink stops at;
        unless the bookmark goes back.
        """
        if self.spec.can_fail or self.spec.transform is not None:
            return False
        known = self._letterless_after is not None and span.after >= self._letterless_after
        if not known and self.dead_letters.reach_beyond(span.after):
            return False
        self._letterless_after = span.through
        return True

    def undropped(self, rows: DataFrame) -> DataFrame:
        """The rows without those that people have decided never to be in the table."""
        if not self.dead_letters.exists():
            return rows
        dropped = self.dead_letters.rows().where("dropped_at IS NOT NULL").select(F.col("id").alias(DEAD_ID))
        return rows.join(dropped, F.col(self.spec.id_column) == F.col(DEAD_ID), "left_anti")

    def judge(self, events: DataFrame, shaped: DataFrame, span: Span) -> None:
        """Count what is wrong, and put it among the dead letters, or stop."""
        warns = warnings_of(shaped, self.spec)
        counts = shaped.agg(F.count(REASON).alias(_BAD) if REASON in shaped.columns else F.lit(0).alias(_BAD), *warns)
        found = counts.collect()[0].asDict()
        for name in self.spec.expect if warns else ():
            if found[name]:
                log.warning("rows break an expectation", table=str(self.spec.table), expectation=name, rows=found[name])
        if not found[_BAD]:
            return
        if self.spec.on_expect == "stop" and self.spec.expect:
            # What is among the dead letters by an earlier decision is settled.
            self._stop_on(self.alive(shaped, span))
        self.dead_letters.record(events, shaped, span)
        log.warning(
            "events went to the dead letters",
            table=str(self.spec.table), rows=found[_BAD], dead_letters=str(self.spec.dead_letter_table),
        )  # fmt: skip

    def _stop_on(self, shaped: DataFrame) -> None:
        broken = shaped.where(F.col(REASON).startswith("it breaks the expectation")).limit(NAMED_MAX).collect()
        if broken:
            ids = ", ".join(str(row[self.spec.id_column]) for row in broken)
            raise ExpectationFailed(
                f"{self.spec.table}: {broken[0][REASON]}; event{'s' if len(broken) > 1 else ''} {ids}. Nothing of the batch "
                "was written. Mend the expectation or the projection, or let such rows go to the dead letters (quarantine)"
            )

    def _checked(self, before: State, through: int) -> State:
        state = self.table.peek()
        if state.bookmark != through:
            raise TableConflict(
                f"{self.spec.table}: another sink has moved the bookmark to {state.bookmark}, ours was to go to {through}"
            )
        assert state.version > before.version
        return state

    def _same_bookmark(self, before: State) -> State:
        """The table after commits of ours that move no bookmark: what is to be written was read from the one before."""
        state = self.table.look()
        if state.bookmark != before.bookmark:
            raise TableConflict(
                f"{self.spec.table}: another sink has moved the bookmark from {before.bookmark} to {state.bookmark}"
            )
        return state

    def _finish(self, state: State) -> None:
        self._committed_at = time.monotonic()
        self.table.make_durable(state)
        self._report(state)

    def _report(self, state: State) -> None:
        self._reported_at = time.monotonic()
        if self._options.reports:
            self._stream.report(TABLE, self.name, state.bookmark)

    def _identity(self) -> dict[str, str]:
        """What rows of the table are found again by: with another, a replay or a redrive would double them."""
        key = ",".join(self.spec.key) if self.spec.mode != "append" else ""
        return {"mode": self.spec.mode, **({"key": key} if key else {}), "id_column": self.spec.id_column}

    def _keep_layout(self, state: State) -> None:
        """Partitions are what the table has, whatever its description says by now.

        An empty text in one of them is NULL in the table: rows that are not made the same way
        would not be found again by their key.
        """
        there = state.snapshot.partition_by
        wanted = [name.lower() for name in self.spec.partition_by]
        if [name.lower() for name in there] != wanted:
            log.warning(
                "the table stays partitioned as it was made",
                table=str(self.spec.table), partition_by=list(there), described=list(self.spec.partition_by),
                mend=f"outbox replay --rebuild --table {self.spec.table}",
            )  # fmt: skip
            cluster_by = () if there else self.spec.cluster_by
            self.spec = replace(self.spec, partition_by=there, cluster_by=cluster_by)

    def _create(self) -> None:
        properties = {PROPERTY + name: value for name, value in self._identity().items()}
        properties |= {SPEC: self.spec.encode(), NAME: self.name}
        if self.schema is not None:
            properties[PROPERTY + "schema"] = to_ddl(self.schema)
        self.table.create(
            self.columns(), {**self.spec.properties, **properties}, self.spec.partition_by, self.spec.cluster_by
        )
        log.info("made a table", table=str(self.spec.table), mode=self.spec.mode)

    def columns(self) -> StructType:
        """The table's columns, from the shape of an empty batch."""
        return self._columns_of(self.schema)

    def _columns_of(self, schema: pa.Schema | None) -> StructType:
        empty = as_dataframe(self.spark, self._stream.url, Span(0, 0), 1, schema=schema)
        found: StructType = self.mode.columns(table_columns(shape(empty, self.spec, schema)))
        return found

    def _require_new(self) -> None:
        """A table that the stream knows of, and that is not there, was dropped."""
        through = reached(self._stream.readers(), TABLE, self.name)
        if through and self._options.reports and not self._options.anew:
            raise TableChanged(
                f"{self.spec.table} is gone: it was dropped or moved, and held the events through {through}. Put it back, or "
                f"make it anew with `outbox replay --rebuild --table {self.spec.table}`"
            )

    def _begin(self) -> None:
        """A new table begins where the stream does."""
        trimmed_through = self._stream.info().trimmed_through
        if trimmed_through:
            log.warning(
                "the table begins behind what was trimmed",
                table=str(self.spec.table), trimmed_through=trimmed_through,
            )  # fmt: skip
            self._begins_after = trimmed_through

    def _keep_spec(self, state: State) -> None:
        """Keep in the table what it is made of; rows that are there already stay as they are."""
        text = self.spec.encode()
        if state.properties.get(SPEC) != text and self.spec.transform is None:
            note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="schema")
            self.table.set_properties({SPEC: text}, note)
            log.warning(
                "the table's description has changed: rows through its bookmark are as the old one made them",
                table=str(self.spec.table), bookmark=state.bookmark,
                mend=f"outbox replay --rebuild --table {self.spec.table}",
            )  # fmt: skip

    def _require_same_spec(self, state: State) -> None:
        """A rebuild, or another sink, may have described the table otherwise since it was opened."""
        if self.spec.transform is None and state.properties.get(SPEC) != self.spec.encode():
            raise TableChanged(
                f"{self.spec.table} is described otherwise by now: it was made anew by `outbox replay --rebuild`, or another "
                "sink writes it, too. Start this sink with that description"
            )

    def _follow(self, state: State) -> None:
        """Take over the schema as the table has it by now."""
        kept = state.properties.get(PROPERTY + "schema")
        if self.schema is None or kept != self._schema_text:
            self.schema, self._schema_text = self.kept_schema(state), kept

    def kept_schema(self, state: State) -> pa.Schema | None:
        """The declared schema, or the one that the table keeps; fields that evolved stay."""
        if self.spec.schema is None:
            return None
        kept = state.properties.get(PROPERTY + "schema")
        declared = None if self.spec.schema == "infer" else schema_from_ddl(self.spec.schema)
        grown = pa.schema([]) if kept is None else schema_from_ddl(kept)
        if self.spec.evolves:
            grown = evolution.as_stored(grown, self.table.schema(state))
        return grown if declared is None else joined(declared, grown)

    def reconcile(self, state: State) -> None:
        """Add the columns and the members of structs that the table lacks: a field was declared since, or a crash came between."""
        wanted = self.columns()
        require_types(self.spec.table, self.table.schema(state), wanted, but_for_members=True)
        note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="schema")
        added = self.table.add_columns(wanted, state, note)
        if added:
            log.info("added columns", table=str(self.spec.table), columns=added)

    def _grow(self, state: State, span: Span) -> bool:
        """Take fields that are new in the data into the schema and the table."""
        assert self.schema is not None
        found = evolution.new_fields(self.spark, self._stream, self.spec, span, self.schema, self.pieces)
        self._tell_left_out(found.left_out)
        if not found.fields:
            return False
        grown = extended(self.schema, found.fields)
        self._columns_of(grown)  # refused before it is kept, if at all
        self.schema = grown
        note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="schema")
        # The property first: a crash before the columns are there is mended when the table is opened.
        self.table.set_properties({PROPERTY + "schema": to_ddl(self.schema)}, note)
        state = self.table.peek()
        self.reconcile(state)
        # Another sink may have been first with one of them, and have found another type in its events.
        self._follow(self.table.peek())
        return True

    def _tell_left_out(self, names: Iterable[str]) -> None:
        """Say of fields that no column can have, once, that the table is without them."""
        new = sorted(set(names) - self._left_out)
        if new:
            self._left_out.update(new)
            log.warning(
                "fields are not in the table: no column can have their names, or another field's column has",
                table=str(self.spec.table), fields=new,
            )  # fmt: skip

    def _recovered(self) -> State:
        """After a RESTORE: put the bookmark back to what the rows stand for, and go on from there."""
        state = self.table.peek()
        rewound = self.table.verdict(state).rewound
        if rewound is None or rewound.operation != "RESTORE":
            return self.table.look()
        true = self.table.true_bookmark(state)
        if true is None:
            raise TableChanged(
                f"{self.spec.table}: version {rewound.version} is a RESTORE, and the history does not say which events the rows "
                f"are of: others have written, too, or it has been cleaned up. Make the table anew with "
                f"`outbox replay --rebuild --table {self.spec.table}`"
            )
        write_again(self, self._stream, true)
        state = self.table.peek()
        note = Note(state.app_id, true, true, true, role="reset")
        log.warning(
            "the table was restored: its bookmark goes back",
            table=str(self.spec.table), bookmark_before=state.bookmark, bookmark=true,
        )  # fmt: skip
        self._finish(self.table.append(None, state, note))
        return self.table.look()


def _is_small(span: Span) -> bool:
    """Whether the driver reads it faster than Spark's workers do."""
    return span.through - span.after <= LOCAL_IDS_MAX
