"""Replay: a range of a table put right from the stream, while the live sink runs.

An append table gets the range's rows in the place of those that it has there, in pieces, each
in a commit of its own. In an upsert or scd2 table the keys that the range touches are
recomputed from the range's start to the table's bookmark, in one commit. The bookmark stays:
what lies beyond it is the live sink's.

Every piece can be written any number of times. A replay that was killed is run again, and
goes on behind the pieces that the table's history says are done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import TableChanged, TableConflict, Trimmed, UsageError
from spark_sink.conflicts import retrying
from spark_sink.difference import Difference, difference_of_range
from spark_sink.guard import HARMLESS, operation_of, our_note
from spark_sink.key_history import history_of_range, touched_by
from spark_sink.mode import Change
from spark_sink.note import Note
from spark_sink.shape import good_rows, shape
from spark_sink.spans import Span, next_span
from spark_sink.table_sink import SinkOptions, TableSink
from spark_sink.tasks import progress_of, tell_nobody, told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.delta import Commit
    from spark_sink.spec import TableSpec
    from spark_sink.table import State
    from spark_sink.tasks import Tell
    from stream_store import Stream

log: Any = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did; of a dry run, what it would do. IDs are inclusive."""

    table: str
    mode: str
    first_id: int
    last_id: int
    bookmark: int
    commits: int
    # Through here an earlier run of the same replay had come already.
    resumed_at: int | None
    seconds: float
    difference: Difference | None = None
    # Versions that others have written since our last commit: for a person to accept, or to rebuild.
    foreign_versions: tuple[int, ...] = ()


class Replay:
    """Repairs ranges of one table."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        spec: TableSpec,
        options: SinkOptions | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self._stream = stream
        self._options = options or SinkOptions()
        self._tell = tell
        self._progress = progress_of(tell)
        self.sink = TableSink(spark, stream, spec, self._options)

    def run(self, after: int | None = None, through: int | None = None, *, dry: bool = False) -> Replayed:
        """Put after < id <= through right; from the stream's first event to the bookmark when left out."""
        started = time.monotonic()
        state = self._open()
        span = self._range(state, after, through)
        foreign = tuple(commit.version for commit in reversed(self.sink.table.verdict(state).foreign))
        commits, resumed_at, difference = 0, None, None
        if dry:
            difference = self._difference(state, span)
        elif span.after < span.through:
            asked = f"{span.after}..{'' if through is None else through}"
            if self.sink.spec.mode == "append":
                commits, resumed_at = self._run_pieces(state, span, asked)
            else:
                commits = 1
                # One commit: how far Spark is with it is all that there is to tell.
                with told(self.sink.spark, f"recomputing keys of {self.sink.spec.table}", self._progress):
                    retrying()(self._repair_keys, span)
        return Replayed(
            table=str(self.sink.spec.table), mode=self.sink.spec.mode,
            first_id=span.after + 1, last_id=span.through, bookmark=state.bookmark,
            commits=commits, resumed_at=resumed_at, seconds=time.monotonic() - started,
            difference=difference, foreign_versions=foreign,
        )  # fmt: skip

    def _open(self) -> State:
        if not self.sink.table.exists():
            raise TableChanged(
                f"there is no table {self.sink.spec.table}: make it with `outbox sink --table {self.sink.spec.table}`, or "
                f"`outbox replay --rebuild --table {self.sink.spec.table}`"
            )
        state = self.sink.open_for_repair()
        self._require_bookmark(state)
        return state

    def _require_bookmark(self, state: State, through: int = 0) -> None:
        """A range needs a bookmark that can be believed, and that it does not go beyond."""
        verdict = self.sink.table.verdict(state)
        if verdict.rewound is not None:
            name = self.sink.spec.table
            raise TableChanged(
                f"{name}: version {verdict.rewound.version} is a {operation_of(verdict.rewound)}, so its bookmark {state.bookmark} "
                f"says more than its rows hold, and a range is not enough. After a RESTORE, `outbox sink --after-restore "
                f"replay --table {name}` writes what is missing again; `outbox replay --rebuild --table {name}` makes the "
                "table anew"
            )
        if through > state.bookmark:
            raise TableChanged(
                f"{self.sink.spec.table}: its bookmark went back to {state.bookmark} while the range through {through} was "
                "replayed: what lies beyond it the sink writes. Run the replay again"
            )

    def _range(self, state: State, after: int | None, through: int | None) -> Span:
        trimmed_through = self._stream.info().trimmed_through
        first = trimmed_through if after is None else after
        if first < trimmed_through:
            raise Trimmed(
                f"{self._stream.url} no longer holds what follows ID {first}: it was trimmed through ID {trimmed_through}; "
                f"replay from ID {trimmed_through + 1}"
            )
        if through is not None and through <= first:
            raise UsageError(f"the range ends at ID {through}, before it begins at ID {first + 1}")
        return Span(first, max(first, state.bookmark if through is None else min(through, state.bookmark)))

    def _run_pieces(self, state: State, span: Span, asked: str) -> tuple[int, int | None]:
        """The pieces of an append table, each in a commit of its own."""
        reached = done_through(self.sink.table.commits(state), state.app_id, span.after, asked)
        reached = min(reached, span.through) if reached < span.through else span.after
        resumed_at = reached if reached > span.after else None
        if resumed_at is not None:
            log.info("an earlier run has come this far", table=str(self.sink.spec.table), through=resumed_at)
        commits = 0
        total = span.through - span.after
        while reached < span.through:
            self._tell(reached - span.after, total)
            found = next_span(self._stream, reached, self._options.rows_max, span.through)
            # Also where there is no event: others may have put rows there.
            piece = found or Span(reached, span.through)
            retrying()(self._repair_piece, piece, asked if piece.through < span.through else None)
            commits += 1
            reached = piece.through
        self._tell(total, total)
        return commits, resumed_at

    def _repair_piece(self, piece: Span, part: str | None) -> None:
        sink = self.sink
        with sink.table.locked():
            state = sink.open_for_repair()
            self._require_bookmark(state, piece.through)
            with sink.taken(piece) as rows:
                self._commit(state, rows, piece, part)

    def _repair_keys(self, span: Span) -> None:
        sink = self.sink
        with sink.table.locked():
            state = sink.open_for_repair()
            self._require_bookmark(state, span.through)
            with history_of_range(sink, span, state.bookmark) as rows:
                self._commit(state, rows, span, None)

    def _commit(self, state: State, rows: DataFrame, span: Span, part: str | None) -> None:
        sink = self.sink
        note = Note(state.app_id, state.bookmark, span.after, span.through, role="repair", part=part)
        sink.mode.repair(sink.table, state, sink.spec, Change(rows, span.after, note), span.through)
        now = sink.table.peek()
        sink.table.make_durable(now)
        if now.bookmark != state.bookmark and sink.spec.mode != "append":
            # Where there is no lock to be had, the live sink may have committed in between, and have deleted
            # a key that we have put back: once more, with what is there by now.
            raise TableConflict(f"{sink.spec.table}: the live sink has moved on to {now.bookmark} meanwhile")

    def _difference(self, state: State, span: Span) -> Difference:
        sink = self.sink
        read = span if sink.spec.mode == "append" else Span(span.after, state.bookmark)
        shaped = shape(sink.events(read), sink.spec, sink.schema)
        if sink.spec.mode != "append":
            shaped = touched_by(shaped, sink.spec, span.through)
        rows = sink.alive(good_rows(shaped), read)
        return difference_of_range(sink.table.rows(), rows, sink.spec, span)


def done_through(commits: Iterable[Commit], app_id: str, after: int, asked: str) -> int:
    """How far an unfinished run of the same replay has come, by the notes of its pieces.

    Not further back than the last piece of any replay, than anything that others wrote, and than
    a change of the table's description: what was done before these may have to be done again.
    """
    done: dict[int, int] = {}
    for commit in commits:
        note = our_note(commit, app_id)
        if note is None:
            if commit.operation not in HARMLESS:
                break
        elif note.role == "repair":
            if note.part is None:
                break
            if note.part == asked:
                done[note.after] = max(note.through, done.get(note.after, 0))
        elif note.role not in ("batch", "accept"):
            break
    while after in done:
        after = done.pop(after)
    return after
