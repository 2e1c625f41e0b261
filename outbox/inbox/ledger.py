"""The ledger: what a consumer has decided about each event of a stream, in the consumer's own database.

One row per (consumer, outbox_id) stands for all that is done; events that are not done, or were
given up, have a row each. So the tables stay small: their size is that of the trouble.

Why this is exactly once
------------------------
An event with ID n of a stream is *decided* when began_after < n <= `reached`. Each transaction
1. begins with `claim`, an UPDATE of the consumer's row WHERE version = the one it was computed
   from. It locks the row, and matches it only if nobody has committed anything to this ledger
   since: every change of `reached` and of a parked row bumps `version` in its own transaction.
   Whoever comes second waits for the lock, matches nothing, rolls back and looks again.
2. So between claim and commit there is one writer per (consumer, outbox_id), and what it knows
   of position and parked events is the truth.
3. Effects, parked rows and `reached` commit together or not at all; what a killed process left
   is rolled back by the database.
The events of a transaction follow `reached` by the chain, so none is skipped; they are above
`reached`, and a claim never succeeds twice on one version, so none is taken twice. An event
that is parked is decided too; its effects happen when its row goes, in one transaction again.
Together this is the unique key (consumer, outbox_id, id): IDs through `reached` are one row.

All this holds only while the transaction is ours to end. A handler that commits by itself commits
the claim too, and that shows: a claim makes `version` odd, and only what ends a transaction of ours
(`move`, `fail`) makes it even again. An odd version that can be read is a handler's commit, whatever
happened to the process afterwards; nothing is taken then until a person has looked (`resume`).

Order per subject: while a subject has a parked row that is not dropped, its later events are parked
behind it (`waiting`). Parked rows are taken up in ID order, and none that has a failed one of
its subject below it. Both are decided under the claim, so a live event cannot overtake.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from outbox.errors import TransactionEnded
from outbox.event import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.inbox.connections import Work

ERROR_CHARACTERS_MAX = 2000

FAILED, WAITING, DUE, DROPPED = "failed", "waiting", "due", "dropped"


class Statements(Protocol):
    """What runs blocks of `sql/`: a `Work`, or the `Session` of a command."""

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]: ...

    def change(self, name: str, /, **parameters: Any) -> int: ...


class Overtaken(Exception):
    """Another process of this consumer has committed first: nothing of ours happened."""


@dataclass(frozen=True, slots=True)
class State:
    """A consumer's ledger of one stream as it was read. True for as long as `version` is."""

    reached: int
    began_after: int
    version: int
    failing_id: int | None
    failing_tries: int
    # Subjects with parked events, by their hashes, and how many events are parked in all.
    held: frozenset[str]
    parked: int

    def holds(self, event: Event) -> bool:
        """Whether an earlier event of the same subject is parked."""
        return bool(self.held) and event.subject is not None and subject_hash(event.subject) in self.held


@dataclass(frozen=True, slots=True)
class Ledger:
    """One consumer's ledger of one stream."""

    consumer: str
    outbox_id: str

    def begin(self, work: Work, began_after: int, stream_url: str) -> None:
        """Make the row unless it is there: the first position counts."""
        work.change("inbox_begin", **self._key, began_after=began_after, stream_url=stream_url)

    def load(self, work: Statements) -> State | None:
        # The version first: what changes behind it makes the claim fail, never succeed wrongly.
        rows = work.query("inbox_state", **self._key)
        if not rows:
            return None
        reached, began_after, version, failing_id, failing_tries = rows[0]
        if version % 2:
            raise TransactionEnded(
                f"a handler of consumer {self.consumer} has committed the transaction it was lent, so its effects and the "
                f"position, ID {reached} of outbox {self.outbox_id}, are no longer one. Commit is the inbox's: take it out "
                "of the handler. Then look how far the effects of the events behind that ID (or of parked ones that were "
                f"redriven) have come, and run `outbox inbox resume --consumer {self.consumer} --outbox-id "
                f"{self.outbox_id} --through ID` with the last event whose effects are there"
            )
        held = dict(work.query("inbox_held", **self._key))
        subjects = frozenset(str(each) for each in held if each is not None)
        parked = sum(int(count) for count in held.values())
        return State(reached, began_after, version, failing_id, failing_tries, subjects, parked)

    def ready(self, work: Statements, events_max: int) -> list[Event]:
        """Parked events that may be taken up now, in ID order."""
        return [decode(text) for _, text in work.query("inbox_ready", **self._key, events=events_max)]

    def claim(self, work: Work, state: State) -> State:
        """Have this ledger to ourselves until the transaction ends, by `move` or `fail`. `Overtaken` when `state` is old."""
        if work.change("inbox_claim", **self._key, version=state.version) != 1:
            raise Overtaken
        return replace(state, version=state.version + 1)

    def park(self, work: Work, state: State, events: Sequence[Event], how: str, tries: int, error: str | None) -> State:
        """Put events aside, with all that is needed to take them up again."""
        rows = [
            {
                **self._key,
                "id": event.id,
                "subject_hash": _hash_of(event),
                "state": how,
                "tries": tries,
                "error": error,
                "event": encode(event),
            }
            for event in events
        ]
        work.change_each("inbox_park", rows)
        subjects = {subject_hash(event.subject) for event in events if event.subject is not None}
        held = state.held | subjects if subjects - state.held else state.held
        return replace(state, held=held, parked=state.parked + len(rows))

    def park_again(self, work: Work, event: Event, tries: int, error: str) -> None:
        """An event that was taken up has failed once more."""
        count = work.change("inbox_park_again", **self._key, id=event.id, tries=tries, error=error)
        assert count == 1, (event.id, count)

    def unpark(self, work: Work, events: Sequence[Event]) -> None:
        """The effects of these events are part of this transaction."""
        work.change_each("inbox_unpark", [{**self._key, "id": event.id} for event in events])

    def move(self, work: Work, state: State, reached: int, handled: int, stream_url: str) -> State:
        count = work.change(
            "inbox_move", **self._key, reached=reached, handled=handled, stream_url=stream_url, version=state.version
        )
        # The claim's lock is held: nothing can have come between, but a handler that ended the transaction.
        assert count == 1, (self, state, reached, count)
        return replace(state, version=state.version + 1, reached=reached, failing_id=None, failing_tries=0)

    def fail(self, work: Work, state: State, event_id: int, tries: int, error: str) -> State:
        """Remember that an event has failed, across restarts."""
        work.change("inbox_failing", **self._key, id=event_id, tries=tries, error=error)
        return replace(state, version=state.version + 1, failing_id=event_id, failing_tries=tries)

    @property
    def _key(self) -> dict[str, Any]:
        return {"consumer": self.consumer, "outbox_id": self.outbox_id}


def subject_hash(subject: str) -> str:
    return hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()


def _hash_of(event: Event) -> str | None:
    return None if event.subject is None else subject_hash(event.subject)


def error_text(error: BaseException) -> str:
    """An error as it is kept beside an event: bounded, and storable everywhere."""
    text = f"{type(error).__name__}: {error}".replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= ERROR_CHARACTERS_MAX else text[: ERROR_CHARACTERS_MAX - 1] + "…"


def encode(event: Event) -> str:
    """An event as JSON text, in ASCII: every database and every connection can carry it."""
    fields: dict[str, Any] = {
        "id": event.id,
        "type": event.type,
        "subject": event.subject,
        "data_json": event.data_json,
        "data_base64": None if event.data_bytes is None else base64.b64encode(event.data_bytes).decode("ascii"),
        "datacontenttype": event.datacontenttype,
        "headers": dict(event.headers),
        "time": None if event.time is None else event.time.isoformat(),
        "source": event.source,
        "prev_id": event.prev_id,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def decode(text: str) -> Event:
    fields: dict[str, Any] = json.loads(text)
    if "time" in fields:
        fields["time"] = datetime.fromisoformat(fields["time"])
    if "data_base64" in fields:
        fields["data_bytes"] = base64.b64decode(fields.pop("data_base64"))
    return Event(**fields)
