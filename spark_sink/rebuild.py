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
from spark_sink.table import DEFAULT_PROPERTIES, NAME, PROPERTY, RETENTION
from spark_sink.table_sink import SPEC, SinkOptions, TableSink
from spark_sink.tasks import progress_of, tell_nobody, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_sink.spec import TableSpec
    from spark_sink.table import State
    from spark_sink.tasks import Tell
    from stream_store import Stream

log: Any = structlog.get_logger()

# In a shadow: the table that it is to replace. In a table that is being made anew in its own place: that it is.
SHADOW_OF = PROPERTY + "shadow_of"
# In a shadow: the events through this ID were trimmed when it began, and it has nothing of them.
BEGINS_AFTER = PROPERTY + "begins_after"
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
        tell: Tell = tell_nobody,
    ) -> None:
        self._spark = spark
        self._stream = stream
        self._spec = spec
        self._options = options or SinkOptions()
        self._tell = tell
        self._progress = progress_of(tell)
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
        bookmark: int | None
        while (bookmark := retrying()(self._swap, shadow)) is None:
            log.info("letters were dropped whose events it has taken: it begins anew", table=str(self._spec.table))
            self._remove(shadow)
            shadow = self._shadow()
            self._begin(shadow)
            self._catch_up(shadow)
        self._remove(shadow)
        return resumed_at, bookmark

    def _shadow(self) -> TableSink:
        properties = {
            **self._spec.properties, SHADOW_OF: str(self._spec.table), BEGINS_AFTER: str(self._trimmed_through)
        }  # fmt: skip
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
            if self._can_go_on(shadow, state):
                log.info("an earlier run has come this far", table=str(self._spec.table), through=state.bookmark)
                self._trimmed_through = int(state.properties[BEGINS_AFTER])
                return state.bookmark
            log.info(
                "an earlier run was for another description, or letters were dropped since: it begins anew",
                table=str(self._spec.table),
            )
            self._remove(shadow)
        elif shadow.dead_letters.exists():
            shadow.dead_letters.table.drop()
            shadow.dead_letters.forget()
        self._begin(shadow)
        return None

    def _can_go_on(self, shadow: TableSink, state: State) -> bool:
        same_outbox = state.properties.get(PROPERTY + "outbox_id") == shadow.outbox_id
        # Without a bookmark it would begin behind what is trimmed by now, not where it says.
        begun = BEGINS_AFTER in state.properties and state.has_bookmark
        same = same_outbox and state.properties.get(SPEC) == shadow.spec.encode()
        return same and begun and self._takes_drops(shadow, int(state.properties[BEGINS_AFTER]), state.bookmark)

    def _begin(self, shadow: TableSink) -> None:
        # What people have dropped is not to come back.
        self._takes_drops(shadow, 0, 0)
        if shadow.open() and self._stream.info().trimmed_through != self._trimmed_through:
            # It has begun behind events that nobody has agreed to do without.
            self._remove(shadow)
            raise EventsTrimmed(
                f"{self._stream.url} was trimmed through ID {self._stream.info().trimmed_through} while the rebuild of "
                f"{self._spec.table} began, and it was to begin behind ID {self._trimmed_through}: nothing was changed; run it again"
            )

    def _takes_drops(self, shadow: TableSink, after: int, through: int) -> bool:
        """Take over what people have dropped; False when the shadow has such an event among after < id <= through."""
        if not self.live.dead_letters.exists():
            return True
        return shadow.dead_letters.take_drops(self.live.dead_letters, Span(after, through))

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

    def _swap(self, shadow: TableSink) -> int | None:
        """The dead letters first, as always, then everything else in one commit; the bookmark then.

        None when the shadow has taken events that people have dropped since.
        """
        live = self.live
        with live.table.locked():
            self._unclustered(live.table.peek(need_bookmark=False))
            # What is committed from here on is a conflict, also where there is no lock to be had.
            state = live.table.peek(need_bookmark=False)
            self._bring(shadow, state.bookmark or shadow.bookmark())
            built = shadow.table.peek()
            # One that an earlier run has left may be further than a table whose bookmark was put back since.
            through = max(state.bookmark, built.bookmark)
            if not self._takes_drops(shadow, self._trimmed_through, built.bookmark):
                return None
            live.dead_letters.adopt(shadow.dead_letters, self._trimmed_through, through)
            # In the live table's session, which writes them.
            rows = live.spark.table(shadow.table.name.sql)
            note = Note(state.app_id, through, self._trimmed_through, through, role="rebuild")
            with told(live.spark, f"putting the new {self._spec.table} in place", self._progress):
                properties = self._properties(state, built)
                state = live.table.replace(rows, state, note, properties, self._spec.partition_by)
            self._cluster(state)
            live.table.make_durable(live.table.peek())
        return through

    def _properties(self, live: State, built: State) -> dict[str, str]:
        """What people have set on the table, and what the new one says of itself."""
        theirs = {
            name: value
            for name, value in live.properties.items()
            if not name.startswith(PROPERTY) and name != RETENTION
        }
        of_shadow = (SHADOW_OF, BEGINS_AFTER)
        ours = {
            name: value
            for name, value in built.properties.items()
            if name.startswith(PROPERTY) and name not in of_shadow
        }
        own = {SPEC: self._spec.encode(), NAME: self.live.dead_letters.name}
        return {**DEFAULT_PROPERTIES, **self._spec.properties, **theirs, **ours, **own}

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
