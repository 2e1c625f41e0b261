"""Rebase: the documented way on after a failover, a restore, or a stream that lost its tail.

It first plans: each step says what it would do and why. Nothing changes before `apply`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.comparison import compare
from connector.lease import Lease, leader_name
from connector.options import RelayOptions
from connector.sources import open_source
from connector.sources.session import open_session
from outbox.errors import DatabaseUnavailable, LeaseLost, WrongPartner
from outbox.queries import blocks
from stream_store import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.source import Source
    from outbox.database import DatabaseUrl, Session
    from outbox.names import OutTable
    from stream_store.stream import Stream


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: `kind` is stable, `message` is for people."""

    # accept-server, bind-stream, record-loss, move-sequence, renumber-rows
    kind: str
    message: str
    through: int | None = None
    ids: tuple[int, ...] = ()
    value: str | None = None


def plan(url: DatabaseUrl, table: OutTable, stream_url: str) -> list[Step]:
    """What would have to be done; an empty list when outbox and stream agree."""
    options = RelayOptions(url, table, stream_url)
    with contextlib.closing(open_source(options)) as source, contextlib.closing(open_stream(stream_url)) as stream:
        source.open()
        return _plan(source, stream)


def apply(url: DatabaseUrl, table: OutTable, stream_url: str) -> list[Step]:
    """Plan anew and do it, while no relay leads; returns what was done."""
    options = RelayOptions(url, table, stream_url)
    lease = Lease(options, leader_name())
    try:
        if not lease.take():
            raise LeaseLost("a relay leads this outbox: stop it first, then rebase")
        lease.keep(lambda: 0)
        with (
            contextlib.closing(open_stream(stream_url, "write")) as stream,
            contextlib.closing(open_source(options)) as source,
            open_session(options, "outbox rebase") as session,
        ):
            source.open()
            steps = _plan(source, stream)
            for step in steps:
                _DO[step.kind](step, stream, session)
            stream.bind(source.info().outbox_id, source.info().source)
            return steps
    finally:
        lease.release(0)


def _plan(source: Source, stream: Stream) -> list[Step]:
    info, standing, server_id, facts = source.info(), source.standing(), source.server_id(), stream.info()
    if facts.outbox_id not in (None, info.outbox_id):
        raise WrongPartner(
            f"stream {stream.url} belongs to outbox {facts.outbox_id}: an outbox cannot take over another one's stream"
        )
    if facts.compacted:
        raise WrongPartner(
            f"stream {stream.url} was made by compaction: no outbox can be bound to it, it misses events"
        )
    steps: list[Step] = []
    if info.server_id not in (None, server_id):
        steps.append(Step("accept-server", f"accept server {server_id} in place of {info.server_id}", value=server_id))
    if info.stream_id not in (None, facts.stream_id):
        steps.append(
            Step(
                "bind-stream",
                f"bind the out table to stream {facts.stream_id} in place of {info.stream_id}",
                value=facts.stream_id,
            )
        )
    tail = facts.tail
    if tail < standing.deleted_through:
        steps.append(
            Step(
                "record-loss",
                f"record {_range(tail + 1, standing.deleted_through)} as lost: rows through {standing.deleted_through} were "
                f"deleted after the stream had acknowledged them, and it ends at {tail} now",
                through=standing.deleted_through,
            )
        )
        tail = standing.deleted_through
    comparison = compare(source, stream, through=tail, name_all=True)
    odd = tuple(sorted(comparison.missing.ids + comparison.conflicting.ids))
    highest = _highest_visible(source, standing.drawn)
    through = max(tail, highest)
    if standing.drawn < through:
        why = (
            f"the stream already has events through {tail}"
            if tail >= highest
            else f"row {highest} was written with an explicit ID"
        )
        steps.append(
            Step("move-sequence", f"move the sequence from {standing.drawn} to {through}: {why}", through=through)
        )
    if odd:
        shown = ", ".join(str(number) for number in odd[:10]) + (", …" if len(odd) > 10 else "")
        message = (
            f"give row {shown} a new ID: the stream never had it, or has another event under its ID"
            if len(odd) == 1
            else f"give {len(odd)} rows new IDs ({shown}): the stream never had them, or has other events under their IDs"
        )
        steps.append(Step("renumber-rows", message, ids=odd))
    return steps


def _range(first: int, last: int) -> str:
    return f"ID {first}" if first == last else f"IDs {first} to {last}"


def _highest_visible(source: Source, drawn: int) -> int:
    """The highest visible ID above the sequence, or 0."""
    highest, before = drawn, -1
    # A read may bring fewer rows than it was asked for.
    while highest > before:
        before = highest
        for rows in source.read(before, 1_000_000):
            highest = int(rows.events.column(0)[-1].as_py())
    return highest if highest > drawn else 0


def _accept_server(step: Step, _: Stream, session: Session) -> None:
    session.change("rebase_server", server_id=step.value)


def _bind_stream(step: Step, _: Stream, session: Session) -> None:
    session.change("rebase_stream", stream_id=step.value)


def _record_loss(step: Step, stream: Stream, _: Session) -> None:
    assert step.through is not None
    stream.lose(step.through)


def _move_sequence(step: Step, _: Stream, session: Session) -> None:
    assert step.through is not None
    try:
        if session.dialect == "mysql":
            session.query("rebase_patience")
            session.query("rebase_sequence", next_id=step.through + 1)
            return
        with session.transaction():
            for preparation in ("rebase_patience", "rebase_lock", "rebase_sequence_row"):
                if preparation in blocks(session.dialect):
                    session.query(preparation)
            session.query("rebase_sequence", through=step.through)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(
            f"the sequence cannot be moved to {step.through}: {error}. If a transaction in flight holds the out table "
            "(`outbox status` names it), wait for it or end it; then run `outbox rebase` again"
        ) from error


def _renumber_rows(step: Step, _: Stream, session: Session) -> None:
    """All or nothing, in their old order: new rows first, so that nothing can be lost."""
    with session.transaction():
        for old_id in step.ids:
            session.change("rebase_copy", id=old_id)
        for old_id in step.ids:
            session.change("rebase_drop", id=old_id)


_DO: dict[str, Callable[[Step, Stream, Session], None]] = {
    "accept-server": _accept_server,
    "bind-stream": _bind_stream,
    "record-loss": _record_loss,
    "move-sequence": _move_sequence,
    "renumber-rows": _renumber_rows,
}
