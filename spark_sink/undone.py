"""What a RESTORE has undone of events that the table still stands for: written again from the stream.

A redrive, or a replay of a range, moves events between a table and its dead letters. The
letters are not restored with the table: an event that was redriven would be in neither, one
that a replay has made a letter would be in both. So those ranges are judged and written again,
before the bookmark goes back: as long as it has not, the table's history says what is to be
done, and whoever is killed in between does it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import EventsTrimmed, TableChanged
from spark_sink.dead_letters import DEAD_ID
from spark_sink.key_history import history_of_range
from spark_sink.mode import Change
from spark_sink.note import Note
from spark_sink.spans import Span, next_span
from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_sink.table import State
    from spark_sink.table_sink import TableSink
    from stream_store import Stream

log: Any = structlog.get_logger()

# Notes of these roles have put rows, or dead letters, of their range in the place of others.
_ROLES = ("batch", "repair", "redrive", "rebuild")


def write_again(sink: TableSink, stream: Stream, bookmark: int) -> None:
    """Put right what RESTOREs have undone at or below the bookmark that the rows stand for by now."""
    state = sink.open_for_repair()
    undone = {
        version: note
        for version, note in sink.table.undone(state)
        if note.role in _ROLES and note.after < min(note.through, bookmark)
    }
    if not undone:
        return
    _require_writable(sink, stream, undone)
    sink.reconcile(state)
    # The marker says more than the rows hold: what is read is bounded by what they do hold.
    state = replace(sink.table.peek(), bookmark=bookmark)
    for span in joined(Span(note.after, min(note.through, bookmark)) for note in undone.values()):
        log.warning(
            "a RESTORE has undone a redrive or a repair: its range is written again",
            table=str(sink.spec.table), after=span.after, through=span.through,
        )  # fmt: skip
        if sink.spec.mode == "append":
            _rewrite(sink, stream, state, span)
        else:
            _recompute(sink, state, span)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same IDs in as few spans as it takes, in order."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: each.after):
        if found and span.after <= found[-1].through:
            found[-1] = Span(found[-1].after, max(found[-1].through, span.through))
        else:
            found.append(span)
    return found


def _require_writable(sink: TableSink, stream: Stream, undone: dict[int, Note]) -> None:
    name = sink.spec.table
    for version, note in undone.items():
        if note.role == "rebuild":
            raise TableChanged(
                f"{name}: a RESTORE has undone version {version}, which had made the table anew, and its dead letters are "
                f"still those of the new one. Make the table anew once more: `outbox replay --rebuild --table {name}`"
            )
    trimmed_through = stream.info().trimmed_through
    gone = {version: note for version, note in undone.items() if note.after < trimmed_through}
    if gone:
        raise EventsTrimmed(
            f"{name}: a RESTORE has undone version {max(gone)}, a {gone[max(gone)].role} of events behind "
            f"{gone[max(gone)].after}, and the stream no longer holds them: it was trimmed through {trimmed_through}. "
            f"RESTORE the table to version {max(gone)} or a later one, or put the events back from a copy of the stream"
        )


def _rewrite(sink: TableSink, stream: Stream, state: State, span: Span) -> None:
    """A range of an append table, in pieces."""
    reached = span.after
    while reached < span.through:
        piece = next_span(stream, reached, sink.rows_max, span.through) or Span(reached, span.through)
        with sink.taken(piece) as rows:
            sink.mode.repair(sink.table, state, sink.spec, _change(rows, state, piece), piece.through)
        reached = piece.through


def _recompute(sink: TableSink, state: State, span: Span) -> None:
    """The keys that a range touches."""
    whole = Span(span.after, state.bookmark)
    with history_of_range(sink, span, state.bookmark) as rows:
        sink.mode.repair(sink.table, state, sink.spec, _change(rows, state, span), span.through)
    held = sink.dead_letters.held(whole)
    if held is None:
        return
    # What the key was before an event that is a letter by now, the table cannot say.
    shown = sink.table.rows().join(held, F.col(EVENT_ID) == F.col(DEAD_ID), "left_semi").select(EVENT_ID).take(1)
    if shown:
        raise TableChanged(
            f"{sink.spec.table} shows event {shown[0][0]} again after a RESTORE, and it is among the dead letters by now: make "
            f"the table anew: `outbox replay --rebuild --table {sink.spec.table}`"
        )


def _change(rows: Any, state: State, span: Span) -> Change:
    note = Note(state.app_id, state.bookmark, span.after, span.through, role="repair")
    return Change(rows, span.after, note)
