"""The start path: what a relay makes sure of before it appends anything.

Gone through on every start, every reconnect, and whenever another relay has been here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.cleaner import AppendedRange, late_row, nothing_left, ranges
from outbox.batch import EventBatch
from outbox.errors import (
    ConflictingRow,
    LateRow,
    SequenceReset,
    ServerChanged,
    StaleTail,
    TailLost,
    Terminal,
    Transient,
    WrongPartner,
)
from stream_store.stream import Appended, Outcome

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from connector.source import Source, Standing
    from outbox.database import Session
    from outbox.info import Info
    from stream_store.stream import Stream


@dataclass(frozen=True, slots=True)
class Started:
    """Where the relay goes on from."""

    info: Info
    standing: Standing
    tail: int


def start(
    source: Source,
    stream: Stream,
    session: Session,
    limit_rows: int,
    keep: Callable[[AppendedRange], None],
    stop: threading.Event | None = None,
) -> Started:
    """Check everything, offer the leftover rows again, and say where to go on.

    Each leftover range that the stream answers DUPLICATE for goes to `keep`. Once `stop` is
    set, no further one is offered: nothing works in the background yet, so whoever is told to
    stop need not wait for the rest, which the next start offers anyway.
    """
    info = source.info()
    bind(info, stream, session)
    server_id = source.server_id()
    if session.change("remember_server", server_id=server_id) == 0:
        raise ServerChanged(
            f"the database is not the server it was: {info.server_id} before, {server_id} now. After a failover or a restore "
            "events may be missing or IDs be given out twice: run `outbox verify`, then `outbox rebase`"
        )
    # In this order another relay, which goes on meanwhile, cannot mislead us: it raises
    # `deleted_through` only behind the tail, and the tail only behind the sequence.
    deleted_through = source.standing().deleted_through
    tail = stream.tail()
    standing = source.standing()
    check_tail(deleted_through, tail)
    check_sequence(standing.drawn, tail)
    if standing.deleted_through > tail:
        raise StaleTail(f"another relay has cleaned up through {standing.deleted_through} meanwhile")
    late = source.late_id(standing.deleted_through)
    if late is not None:
        raise late_row(late, standing.deleted_through)
    after = standing.deleted_through
    while after < tail:
        done = after
        for rows in source.read(after, limit_rows, through=tail):
            if stop is not None and stop.is_set():
                # The supervisor ends quietly by this when it was told to stop itself.
                raise Transient(f"told to stop while the rows through {tail} were offered again, at {after}")
            # Behind the ID before its first row, which claims nothing about any other ID: a
            # stream that loses its tail just now must not take deleted rows for dead ones.
            first_id = rows.events.column(0)[0].as_py()
            answer = stream.append(EventBatch(first_id - 1, rows.events))
            if answer.outcome is not Outcome.DUPLICATE:
                raise refusal(answer)
            for known in ranges(after, rows, leftover=True):
                keep(known)
                after = known.through
        if after == done:
            # Nothing is left up to the tail. The cleaner proves it once more and moves past it,
            # so that its ranges follow each other: a restored database may miss rows here.
            keep(nothing_left(after, tail))
            break
    return Started(info, standing, tail)


def bind(info: Info, stream: Stream, session: Session) -> None:
    """Bind outbox and stream to each other; the stream first, so that a crash in between heals."""
    facts = stream.info()
    if facts.compacted:
        raise WrongPartner(
            f"{stream.url} was made by `outbox stream compact`: it holds the latest event of each subject and no relay appends "
            "to it. Give the relay the live stream; consumers read this one first and then go on there"
        )
    if facts.outbox_id is not None and facts.outbox_id != info.outbox_id:
        raise WrongPartner(
            f"stream {stream.url} belongs to outbox {facts.outbox_id}, this out table is outbox {info.outbox_id}: "
            "give each outbox a stream of its own"
        )
    if info.stream_id is not None and info.stream_id != facts.stream_id:
        raise WrongPartner(
            f"the out table is bound to stream {info.stream_id}, but {stream.url} is stream {facts.stream_id}: "
            "its place was emptied or swapped. Put the right stream back, or run `outbox rebase` to bind this one"
        )
    stream.bind(info.outbox_id, info.source)
    if session.change("bind_stream", stream_id=facts.stream_id) == 0:
        raise StaleTail("another relay has bound the out table to a stream just now")


def check_tail(deleted_through: int, tail: int) -> None:
    """Rows are deleted only once they are in the stream; the tail was looked at afterwards."""
    if deleted_through > tail:
        raise TailLost(
            f"the stream ends at {tail}, but rows through {deleted_through} were acknowledged by it and deleted: "
            "the stream went back in time. Restore a newer copy of it, or run `outbox rebase` to record the loss and go on"
        )


def check_sequence(drawn: int, tail: int) -> None:
    """The sequence never stands below an event; it was looked at after the tail."""
    if drawn < tail:
        raise SequenceReset(
            f"the sequence stands at {drawn}, but the stream already has events through {tail}: "
            "the database was restored or truncated, and IDs would be given out twice. Run `outbox rebase`"
        )


def refusal(answer: Appended) -> Terminal | Transient:
    """The error for an append that was refused."""
    at = answer.at_id
    if answer.outcome is Outcome.TAIL_LOST:
        return TailLost(
            f"the stream ends at {answer.tail}, before what it had acknowledged: it went back in time. "
            "Restore a newer copy of it, or run `outbox rebase`"
        )
    if answer.outcome is Outcome.LATE:
        return LateRow(
            f"row {at} appeared at or below the stream's tail {answer.tail}, and the stream never had it: someone wrote an "
            "explicit ID, or the sequence was reset. `outbox rebase` gives such rows new IDs; see docs/operations.md"
        )
    if answer.outcome is Outcome.CONFLICT:
        return ConflictingRow(
            f"the stream holds other content under ID {at} than the out table: the database went back in time, the sequence "
            "was reset, or the row was changed. Run `outbox verify`, then `outbox rebase`"
        )
    return StaleTail(f"another relay has appended through {answer.tail} meanwhile")
