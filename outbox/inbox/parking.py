"""Parked events, and where consumers stand: what a person sees of an inbox, and decides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError
from outbox.inbox.ledger import DROPPED, WAITING, subject_hash

if TYPE_CHECKING:
    from outbox.inbox.ledger import Statements


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that a consumer could not take, or that waits behind one of its subject."""

    outbox_id: str
    id: int
    state: str
    tries: int
    error: str | None
    parked_at: datetime
    type: str | None
    subject: str | None
    # The whole event as it was stored; None once it is dropped.
    event: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a consumer stands in one stream."""

    consumer: str
    outbox_id: str
    stream_url: str
    began_after: int
    reached: int
    handled: int
    moved_at: datetime
    failing_id: int | None
    failing_tries: int
    failing_error: str | None
    failed: int
    waiting: int
    due: int
    dropped: int
    oldest_parked_at: datetime | None

    @property
    def parked(self) -> int:
        return self.failed + self.waiting + self.due


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parked events are meant: these IDs, those of a subject, or all; of one stream or of each."""

    ids: tuple[int, ...] = ()
    subject: str | None = None
    everything: bool = False
    outbox_id: str | None = None

    def __post_init__(self) -> None:
        if not (self.ids or self.subject is not None or self.everything):
            raise UsageError("say which parked events: IDs, a subject, or all of them")


def standings(work: Statements, consumer: str | None = None) -> list[Standing]:
    return [_standing(row) for row in work.query("inbox_standings", consumer=consumer)]


def find(
    work: Statements,
    consumer: str,
    *,
    outbox_id: str | None = None,
    event_id: int | None = None,
    subject: str | None = None,
    with_dropped: bool = False,
    limit: int = 100,
) -> list[Parked]:
    rows = work.query(
        "inbox_parked",
        consumer=consumer,
        outbox_id=outbox_id,
        id=event_id,
        subject_hash=None if subject is None else subject_hash(subject),
        with_dropped=int(with_dropped),
        events=limit,
    )
    return [_parked(row) for row in rows]


def redrive(work: Statements, consumer: str, choice: Choice) -> int:
    """Mark failed events as due; those behind them follow by themselves. How many failed ones.

    In one transaction. A running consumer is told by the version, which moves first.
    """
    _lock(work, consumer, choice)
    for event_id in choice.ids:
        for parked in _one(work, consumer, event_id, choice):
            if parked.state == WAITING:
                before = find(work, consumer, outbox_id=parked.outbox_id, subject=parked.subject, limit=1)[0]
                raise UsageError(
                    f"event {event_id} waits behind event {before.id} of the same subject ({parked.subject}): "
                    "redrive or drop that one, and this one follows"
                )
    return _change_each(work, "inbox_redrive", consumer, choice)


def drop(work: Statements, consumer: str, choice: Choice) -> int:
    """Mark events as dropped and erase their content; that they were dropped is kept. How many. In one transaction."""
    _lock(work, consumer, choice)
    for event_id in choice.ids:
        _one(work, consumer, event_id, choice)
    return _change_each(work, "inbox_drop", consumer, choice)


def forget(work: Statements, consumer: str, outbox_id: str) -> int:
    """Remove a consumer's position in a stream; refused while events are parked. In one transaction."""
    key = {"consumer": consumer, "outbox_id": outbox_id}
    if work.change("inbox_touch", **key) == 0:
        raise UsageError(
            f"consumer {consumer} has no position in outbox {outbox_id}: `outbox inbox status` shows those it has"
        )
    waiting = find(work, consumer, outbox_id=outbox_id, limit=1)
    if waiting:
        raise UsageError(
            f"consumer {consumer} has parked events of outbox {outbox_id}, such as {waiting[0].id}, and they would be lost: "
            "redrive or drop them first"
        )
    (standing,) = [each for each in standings(work, consumer) if each.outbox_id == outbox_id]
    work.change("inbox_forget_parked", **key)
    work.change("inbox_forget", **key)
    return standing.reached


def resume(work: Statements, consumer: str, outbox_id: str, through: int | None = None) -> int:
    """Let a consumer go on whose handler had committed by itself; the ID it stands at then. In one transaction.

    `through`: the last event whose effects are there; without one, it goes on where it stood.
    """
    key = {"consumer": consumer, "outbox_id": outbox_id}
    rows = work.query("inbox_state", **key)
    if not rows:
        raise UsageError(
            f"consumer {consumer} has no position in outbox {outbox_id}: `outbox inbox status` shows those it has"
        )
    reached, _, version, *_ = rows[0]
    if version % 2 == 0:
        raise UsageError(
            f"consumer {consumer} has nothing to resume in outbox {outbox_id}: its effects and its position, ID {reached}, "
            "are one"
        )
    wanted = reached if through is None else through
    if wanted < reached:
        raise UsageError(f"consumer {consumer} stands at ID {reached} already: it cannot go back to {wanted}")
    if work.change("inbox_resume", **key, version=version, reached=wanted) != 1:
        raise UsageError(f"somebody has just changed the position of consumer {consumer}: look again")
    return int(wanted)


def _lock(work: Statements, consumer: str, choice: Choice) -> None:
    for outbox_id in _outboxes(work, consumer, choice):
        work.change("inbox_touch", consumer=consumer, outbox_id=outbox_id)


def _outboxes(work: Statements, consumer: str, choice: Choice) -> list[str]:
    known = [standing.outbox_id for standing in standings(work, consumer)]
    if not known:
        raise UsageError(f"there is no consumer {consumer} in this inbox: `outbox inbox status` shows those there are")
    if choice.outbox_id is None:
        return known
    if choice.outbox_id not in known:
        raise UsageError(f"consumer {consumer} has not read outbox {choice.outbox_id}, only {', '.join(known)}")
    return [choice.outbox_id]


def _one(work: Statements, consumer: str, event_id: int, choice: Choice) -> list[Parked]:
    """The parked event with an ID: exactly one, or an error that says what to do."""
    found = find(work, consumer, outbox_id=choice.outbox_id, event_id=event_id)
    if not found:
        raise UsageError(
            f"event {event_id} is not parked for consumer {consumer}: `outbox inbox parked` shows those that are"
        )
    if len(found) > 1:
        outboxes = ", ".join(each.outbox_id for each in found)
        raise UsageError(f"event {event_id} is parked of several outboxes ({outboxes}): say which by --outbox-id")
    return found


def _change_each(work: Statements, name: str, consumer: str, choice: Choice) -> int:
    hashed = None if choice.subject is None else subject_hash(choice.subject)
    return sum(
        work.change(name, consumer=consumer, outbox_id=outbox_id, id=event_id, subject_hash=hashed)
        for outbox_id in _outboxes(work, consumer, choice)
        for event_id in choice.ids or (None,)
    )


def _standing(row: tuple[Any, ...]) -> Standing:
    # MySQL counts in decimals.
    names = ("failed", "waiting", "due", "dropped")
    facts = dict(zip(Standing.__dataclass_fields__, row, strict=True))
    oldest = facts["oldest_parked_at"]
    facts |= {name: int(facts[name]) for name in names}
    facts |= {"moved_at": _moment(facts["moved_at"]), "oldest_parked_at": None if oldest is None else _moment(oldest)}
    return Standing(**facts)


def _parked(row: tuple[Any, ...]) -> Parked:
    _, outbox_id, event_id, state, tries, error, parked_at, text = row
    event = None if text is None or state == DROPPED else json.loads(text)
    shown = event or {}
    return Parked(
        outbox_id, event_id, state, tries, error, _moment(parked_at), shown.get("type"), shown.get("subject"), event
    )


def _moment(value: Any) -> datetime:
    """A moment as the three databases give it: with its zone, as UTC without one, as text."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(found, datetime)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
