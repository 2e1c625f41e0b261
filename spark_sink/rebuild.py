"""Rebuild: a table made anew from the stream, whatever has happened to it.

The new content grows in a shadow beside the table, by an ordinary sink with a bookmark of its
own, so a rebuild that was killed goes on where it was. When the shadow has caught up, one
commit puts it in the place of everything that the live table holds: rows, columns, description
and bookmark together. Readers see the old table until then, and the live sink goes on.

Dead letters are decided anew, too; what people have dropped stays dropped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import EventsTrimmed, OutboxError, TableChanged, TailLost
from spark_sink import evolution
from spark_sink.conflicts import retrying
from spark_sink.difference import Difference, difference_of_whole
from spark_sink.note import Note
from spark_sink.shape import good_rows, shape
from spark_sink.spans import Span
from spark_sink.table import DEFAULT_PROPERTIES, PROPERTY, RETENTION
from spark_sink.table_sink import SPEC, SinkOptions, TableSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from spark_sink.spec import TableSpec
    from spark_sink.table import State
    from stream_store import Stream

log: Any = structlog.get_logger()

# In a shadow: the table that it is to replace. In a table that is being made anew in its own place: that it is.
SHADOW_OF = PROPERTY + "shadow_of"
BUILDING = PROPERTY + "building"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did; of a dry run, what it would do."""

    table: str
    mode: str
    bookmark: int
    # Where an earlier run of the rebuild was when it ended.
    resumed_at: int | None
    # IDs that the stream no longer holds: the new table has nothing of them.
    trimmed_through: int
    seconds: float
    difference: Difference | None = None


class Rebuild:
    """Makes one table anew."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        spec: TableSpec,
        options: SinkOptions | None = None,
        tell: Callable[[int, int], None] = lambda done, of: None,  # noqa: ARG005
    ) -> None:
        self._spark = spark
        self._stream = stream
        self._spec = spec
        self._options = options or SinkOptions()
        self._tell = tell
        self.live = TableSink(spark, stream, spec, self._options)
        self._trimmed_through = stream.info().trimmed_through

    def run(self, *, dry: bool = False, force: bool = False) -> Rebuilt:
        """Make the table anew. `force`: also without events that were trimmed and that the table may hold."""
        started = time.monotonic()
        exists = self.live.table.exists()
        if exists:
            self._require_replaceable(force=force or dry)
        resumed_at, difference = None, None
        if dry:
            bookmark, difference = self._difference(exists=exists)
        elif not exists or self._is_building():
            resumed_at = self._build_in_place(exists=exists)
            bookmark = self.live.bookmark()
        else:
            resumed_at, bookmark = self._build_beside()
        return Rebuilt(
            table=str(self._spec.table), mode=self._spec.mode, bookmark=bookmark, resumed_at=resumed_at,
            trimmed_through=self._trimmed_through, seconds=time.monotonic() - started, difference=difference,
        )  # fmt: skip

    def _require_replaceable(self, *, force: bool) -> None:
        state = self.live.table.peek(need_bookmark=False)
        self.live.table.require_owner(state)
        if state.bookmark > self._stream.tail():
            raise TailLost(
                f"{self._spec.table} holds events through {state.bookmark}, the stream ends at {self._stream.tail()}: it went "
                "back in time, and a table made from it would lose events. Put the stream back from a copy"
            )
        if self._trimmed_through and not force:
            raise EventsTrimmed(
                f"{self._stream.url} was trimmed through ID {self._trimmed_through}: a table made anew from it has nothing of "
                f"those events, and {self._spec.table} may be the last that has. Put them back from a copy of the stream, or "
                "say --force"
            )

    # ---- beside the live table ---------------------------------------------------------

    def _build_beside(self) -> tuple[int | None, int]:
        shadow = self._shadow()
        resumed_at = self._take_up(shadow)
        self._catch_up(shadow)
        bookmark: int = retrying()(self._swap, shadow)
        self._remove(shadow)
        return resumed_at, bookmark

    def _shadow(self) -> TableSink:
        properties = {**self._spec.properties, SHADOW_OF: str(self._spec.table)}
        spec = replace(self._spec, table=self._spec.table.beside("rebuild"), dead_letters=None, properties=properties)
        return TableSink(self._spark, self._stream, spec, replace(self._options, reports=False, after_restore="stop"))

    def _take_up(self, shadow: TableSink) -> int | None:
        """Go on with the shadow that an earlier run has left, if it is of the same description."""
        if shadow.table.exists():
            state = shadow.table.peek(need_bookmark=False)
            if state.properties.get(SHADOW_OF) != str(self._spec.table):
                raise TableChanged(
                    f"{shadow.spec.table} is in the way: a rebuild makes the new table there. Move or drop it"
                )
            same_outbox = state.properties.get(PROPERTY + "outbox_id") == shadow.outbox_id
            if same_outbox and state.properties.get(SPEC) == shadow.spec.encode():
                log.info("an earlier run has come this far", table=str(self._spec.table), through=state.bookmark)
                return state.bookmark
            log.info("an earlier run was for another description: it begins anew", table=str(self._spec.table))
            self._remove(shadow)
        elif shadow.dead_letters.exists():
            shadow.dead_letters.table.drop()
            shadow.dead_letters.forget()
        # What people have dropped is not to come back.
        if self.live.dead_letters.exists():
            shadow.dead_letters.adopt(self.live.dead_letters, 0, dropped_only=True)
        return None

    def _catch_up(self, shadow: TableSink) -> None:
        """Bring the shadow near the live table, which may move on meanwhile."""
        while True:
            goal = self._goal()
            self._bring(shadow, goal)
            if self._goal() - goal <= self._options.rows_max:
                return

    def _goal(self) -> int:
        """Where the live table is; the tail where it cannot say."""
        state = self.live.table.peek(need_bookmark=False)
        return state.bookmark or self._stream.tail()

    def _bring(self, sink: TableSink, goal: int) -> None:
        self._tell(sink.bookmark(), goal)
        while (step := retrying()(sink.step, goal)) is not None:
            self._tell(step.span.through, goal)
        sink.settle()
        if not sink.table.exists():
            raise OutboxError(
                f"the stream has no event for {self._spec.table} yet, so its schema cannot be inferred: declare one"
            )

    def _swap(self, shadow: TableSink) -> int:
        """The dead letters first, as always, then everything else in one commit."""
        live = self.live
        with live.table.locked():
            state = live.table.peek(need_bookmark=False)
            goal = state.bookmark or shadow.bookmark()
            self._bring(shadow, goal)
            live.dead_letters.adopt(shadow.dead_letters, self._trimmed_through)
            self._unclustered(state)
            state = live.table.peek(need_bookmark=False)
            built = shadow.table.peek()
            # In the live table's session, which writes them.
            rows = live.spark.table(shadow.table.name.sql)
            note = Note(state.app_id, goal, self._trimmed_through, goal, role="rebuild")
            state = live.table.replace(rows, state, note, self._properties(state, built), self._spec.partition_by)
            self._cluster(state)
            live.table.make_durable(live.table.peek())
        return goal

    def _properties(self, live: State, built: State) -> dict[str, str]:
        """What people have set on the table, and what the new one says of itself."""
        theirs = {
            name: value
            for name, value in live.properties.items()
            if not name.startswith(PROPERTY) and name != RETENTION
        }
        ours = {
            name: value for name, value in built.properties.items() if name.startswith(PROPERTY) and name != SHADOW_OF
        }
        return {**DEFAULT_PROPERTIES, **self._spec.properties, **theirs, **ours, SPEC: self._spec.encode()}

    def _unclustered(self, state: State) -> None:
        """Forget a clustering that the new table may not have the columns for."""
        if self._clustering() not in ((), self._spec.cluster_by):
            note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="schema")
            self.live.table.cluster_by((), note)

    def _cluster(self, state: State) -> None:
        if self._spec.cluster_by and self._clustering() != self._spec.cluster_by:
            note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="schema")
            self.live.table.cluster_by(self._spec.cluster_by, note)

    def _clustering(self) -> tuple[str, ...]:
        detail = self.live.spark.sql(f"DESCRIBE DETAIL {self._spec.table.sql}").collect()[0].asDict()
        return tuple(detail.get("clusteringColumns") or ())

    def _remove(self, shadow: TableSink) -> None:
        # The table first: as long as it is there, its dead letters are needed to go on with it.
        shadow.table.drop()
        if shadow.dead_letters.exists():
            shadow.dead_letters.table.drop()
            shadow.dead_letters.forget()

    # ---- in the place of a table that is gone ------------------------------------------

    def _is_building(self) -> bool:
        """Whether the table is what an earlier run has made so far, and nothing else."""
        state = self.live.table.peek(need_bookmark=False)
        same = state.properties.get(SPEC) == self._spec.encode()
        return BUILDING in state.properties and same and self.live.table.verdict(state).ok

    def _build_in_place(self, *, exists: bool) -> int | None:
        """There is nothing to keep for readers, so the table itself grows."""
        resumed_at = self.live.bookmark() if exists else None
        if not exists and self.live.dead_letters.exists():
            # Decisions of a table that is gone; those of people stay.
            self.live.dead_letters.adopt(self.live.dead_letters, self._trimmed_through, dropped_only=True)
        spec = replace(self._spec, properties={**self._spec.properties, BUILDING: "rebuild"})
        sink = TableSink(self._spark, self._stream, spec, replace(self._options, anew=True))
        self._bring(sink, self._stream.tail())
        sink.table.unset_properties([BUILDING])
        sink.table.make_durable(sink.table.peek())
        return resumed_at

    # ---- dry ---------------------------------------------------------------------------

    def _difference(self, *, exists: bool) -> tuple[int, Difference]:
        sink = self.live
        goal = self._goal() if exists else self._stream.tail()
        span = Span(min(self._trimmed_through, goal), goal)
        state = sink.table.peek(need_bookmark=False) if exists else None
        if state is not None and state.properties.get(SPEC) == self._spec.encode():
            sink.open_for_repair()
        else:
            try:
                sink.schema = evolution.first_schema(self._stream, self._spec, self._trimmed_through)
            except LookupError as error:
                raise OutboxError(str(error)) from error
        rows = good_rows(shape(sink.events(span), self._spec, sink.schema))
        there = sink.table.rows() if exists else sink.spark.createDataFrame([], sink.columns())
        return goal, difference_of_whole(there, sink.undropped(rows), self._spec)
