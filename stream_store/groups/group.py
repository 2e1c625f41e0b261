"""A consumer group: several members that share the events of a stream.

group = Group.create("file:///var/lib/outbox/shop", "mailer", order="subject")
for delivery in group.consume():
    with delivery:
        send_mail(delivery.event)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox.errors import GroupMissing, UsageError
from stream_store.groups import decision
from stream_store.groups.habits import Habits
from stream_store.groups.member import Membership
from stream_store.groups.shelf import key_of
from stream_store.groups.state import TRIES_MAX_DEFAULT, Order, Preference, Settings
from stream_store.groups.store import EPHEMERAL, Change, default_state, known_as, open_store, tokens
from stream_store.place import EARLIEST, LATEST, start_after
from stream_store.readers import GROUP
from stream_store.snapshot import COMPACTION
from stream_store.url import open_stream

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from stream_store.groups.delivery import BatchDelivery, Delivery
    from stream_store.groups.state import DeadLetter, State
    from stream_store.groups.store import GroupStore
    from stream_store.stream import Stream

NAME_CHARACTERS_MAX = 200
BATCH_ROWS = 10_000
# Of a consumer of batches, unless it says otherwise: this many of its batches.
BATCHES_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Where a group stands."""

    name: str
    state: str
    settings: Settings
    paused: bool
    # Events through this ID were claimed once; those behind it that are not done are outstanding.
    head: int
    # Every event through this ID is done: acknowledged, dead-lettered, filtered out or skipped.
    through: int
    in_flight: int
    waiting: int
    dead_letters: int
    skipped_ids: int
    members: tuple[str, ...]
    tail: int

    @property
    def lag(self) -> int:
        """Events that are not done, at most: IDs above the head may be dead, or not of the group's types."""
        return max(self.tail - self.head, 0) + self.in_flight + self.waiting


class Group:
    """A group by name, on one stream. It may be used in any number of threads and processes at once."""

    def __init__(self, stream_url: str, name: str, state_url: str, group_id: int, store: GroupStore) -> None:
        self.name = name
        self.stream_url = stream_url
        self.state_url = state_url
        self._group_id = group_id
        self._known_as = known_as(name, group_id)
        self._store = store

    @classmethod
    def create(
        cls,
        stream: str,
        name: str,
        *,
        state: str | None = None,
        ephemeral: bool = False,
        start: str | int | datetime | None = None,
        order: str | Order = Order.NONE,
        preference: str | Preference = Preference.REPEAT,
        max_in_flight: int | None = None,
        max_tries: int | None = TRIES_MAX_DEFAULT,
        types: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> Group:
        """Make a group that starts at `start`: "earliest" (the default), "latest", an ID, a time.

        `state` is a database URL; a SQLite file beside a file:// stream by default. An ephemeral
        group keeps its state in this process alone. With `exist_ok` a group that is there already
        is opened, if it was made with the same settings.
        """
        settings = Settings(
            order=_word(Order, order, "order"),
            preference=_preference(preference),
            max_in_flight=max_in_flight,
            max_tries=max_tries,
            types=tuple(types),
        )
        _require_name(name)
        state_url = EPHEMERAL if ephemeral else state or default_state(stream)
        if start is None:
            start = LATEST if settings.preference is Preference.LATEST else EARLIEST
        with open_stream(stream) as opened:
            head = _head(opened, start, "start")
            store = open_store(state_url)
            group_id = store.create(opened.stream_id, name, settings, head)
            if group_id is None and exist_ok:
                group_id = store.find(opened.stream_id, name)
            if group_id is None:
                store.close()
                raise UsageError(
                    f"there is a group {name!r} of {stream} already: `outbox group show` says where it stands"
                )
        group = cls(stream, name, state_url, group_id, store)
        _require_same(name, group.status().settings, settings)
        if state_url != EPHEMERAL:
            # Also for a group that was made by somebody who was killed right here.
            group._report()
        return group

    @classmethod
    def open(cls, stream: str, name: str, *, state: str | None = None, ephemeral: bool = False) -> Group:
        """A group that is there."""
        state_url = EPHEMERAL if ephemeral else state or default_state(stream)
        with open_stream(stream) as opened:
            stream_id = opened.stream_id
        store = open_store(state_url, create=False)
        group_id = store.find(stream_id, name)
        if group_id is None:
            store.close()
            raise GroupMissing(
                f"{stream} has no group {name!r} in {store.place}: `outbox group list` shows those there are, "
                "`outbox group create` makes one"
            )
        return cls(stream, name, state_url, group_id, store)

    # Consuming

    def member(self, habits: Habits | None = None) -> Membership:
        """Become a member; for one thread. `consume` does it for you."""
        stream = open_stream(self.stream_url)
        try:
            store = open_store(self.state_url, create=False)
            return Membership(
                self._group_id, self.name, store, stream, habits or Habits(), durable=self.state_url != EPHEMERAL
            )
        except BaseException:
            stream.close()
            raise

    def consume(
        self, *, stop: threading.Event | None = None, wait_seconds: float | None = None, **habits: Any
    ) -> Iterator[Delivery]:
        """Events one by one, for ever; or until `stop`, or until there was none for `wait_seconds`.

        `habits` are those of `Habits`: max_in_flight, heartbeat_seconds, heartbeats_missed, ack_every, ack_seconds.
        """
        with self.member(Habits(**habits)) as member:
            while (delivery := member.next_event(stop, wait_seconds)) is not None:
                yield delivery

    def consume_batches(
        self,
        batch_rows: int = BATCH_ROWS,
        *,
        stop: threading.Event | None = None,
        wait_seconds: float | None = None,
        **habits: Any,
    ) -> Iterator[BatchDelivery]:
        """Events by the batch, each of at most `batch_rows`, acknowledged in one statement."""
        if batch_rows < 1:
            raise UsageError(f"batch_rows is {batch_rows}: it must be above 0")
        habits.setdefault("max_in_flight", batch_rows * BATCHES_IN_FLIGHT)
        with self.member(Habits(**habits)) as member:
            while (delivery := member.next_batch(batch_rows, stop, wait_seconds)) is not None:
                yield delivery

    # Looking and steering

    def status(self) -> GroupStatus:
        with open_stream(self.stream_url) as stream:
            tail = stream.tail()
        state: State
        state, now_us = self._store.transact(self._group_id, lambda state, now_us: Change(state, (state, now_us)))
        return GroupStatus(
            name=self.name,
            state=self._store.place,
            settings=state.settings,
            paused=state.paused,
            head=state.head,
            through=state.through,
            in_flight=state.in_flight,
            waiting=state.waiting,
            dead_letters=self._store.count_letters(self._group_id),
            skipped_ids=state.skipped,
            members=tuple(sorted(each.name for each in state.members if each.expires_us >= now_us)),
            # Read before the state: a group is never ahead of its stream.
            tail=max(tail, state.head),
        )

    def pause(self) -> None:
        """Deliver nothing more, until `resume`. What is in flight may still be acknowledged."""
        self._store.transact(self._group_id, lambda state, _: Change(replace(state, paused=True)))

    def resume(self) -> None:
        self._store.transact(self._group_id, lambda state, _: Change(replace(state, paused=False)))

    def reset(self, to: str | int | datetime) -> int:
        """Go on elsewhere: "earliest", "latest", an ID (the next to be delivered), a time. The ID it stands at then.

        What is in flight comes to nothing: its acknowledgements are late. Dead letters stay.
        """
        with open_stream(self.stream_url) as stream:
            head = _head(stream, to, "to")

            def decide(state: State, _: int) -> Change:
                if self.state_url != EPHEMERAL:
                    # Until it is committed, the group may still need what it was about to jump over.
                    stream.report(GROUP, self._known_as, min(head, state.through))
                return Change(decision.reset(state, head))

            self._store.transact(self._group_id, decide)
        if self.state_url != EPHEMERAL:
            self._report()
        return head

    def delete(self) -> None:
        """Forget the group, its position and its dead letters. Members find it gone."""
        self._store.delete(self._group_id)
        # Afterwards: killed in between, the stream keeps too much for somebody who is gone, not too little.
        if self.state_url != EPHEMERAL:
            with open_stream(self.stream_url) as stream:
                stream.forget(GROUP, self._known_as)

    # Dead letters

    def dead_letters(self, ids: Collection[int] | None = None, limit: int | None = None) -> list[DeadLetter]:
        return self._store.letters(self._group_id, ids, limit)

    def redrive(self, ids: Collection[int] | None = None) -> int:
        """Deliver these dead letters, or all, again; how many. Refused where the stream was trimmed past one."""
        letters = self._store.letters(self._group_id, ids)
        with open_stream(self.stream_url) as stream:
            trimmed_through = stream.info().trimmed_through
            for letter in letters:
                if letter.id <= trimmed_through:
                    raise UsageError(
                        f"event {letter.id} cannot be delivered again: {self.stream_url} was trimmed through ID "
                        f"{trimmed_through}; `outbox group dlq list --json` still shows it, handle it by hand and drop it"
                    )
            all_keys = {letter.id: key_of(json.loads(letter.event).get("subject")) for letter in letters}

            def decide(state: State, _: int) -> Change:
                # Somebody may have redriven or dropped some meanwhile.
                there = {letter.id for letter in self._store.letters(self._group_id, all_keys)}
                keys = {event_id: key for event_id, key in all_keys.items() if event_id in there}
                redriven = decision.redrive(state, keys, next(tokens()))
                if self.state_url != EPHEMERAL:
                    # Before anything is trimmed that is to be delivered again.
                    stream.report(GROUP, self._known_as, redriven.through)
                return Change(redriven, len(keys), letters_gone=tuple(keys))

            count: int = self._store.transact(self._group_id, decide)
        return count

    def drop(self, ids: Collection[int] | None = None) -> int:
        """Decide that these dead letters, or all, will not be delivered again; how many."""

        def decide(state: State, _: int) -> Change:
            gone = tuple(letter.id for letter in self._store.letters(self._group_id, ids))
            return Change(state, len(gone), letters_gone=gone)

        count: int = self._store.transact(self._group_id, decide)
        return count

    def close(self) -> None:
        self._store.close()

    def _report(self) -> None:
        with open_stream(self.stream_url) as stream:

            def decide(state: State, _: int) -> Change:
                stream.report(GROUP, self._known_as, state.through)
                return Change(state)

            self._store.transact(self._group_id, decide)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def list_groups(stream: str, *, state: str | None = None) -> list[GroupStatus]:
    """Every durable group of a stream that keeps its state in this place."""
    state_url = state or default_state(stream)
    with open_stream(stream) as opened:
        stream_id = opened.stream_id
    try:
        store = open_store(state_url, create=False)
    except GroupMissing:
        return []
    try:
        found = []
        for name in store.names(stream_id):
            group_id = store.find(stream_id, name)
            if group_id is not None:
                found.append(Group(stream, name, state_url, group_id, store).status())
        return found
    finally:
        store.close()


def time_of(recorded_us: int) -> datetime:
    """A time of a state database."""
    return datetime.fromtimestamp(recorded_us / 1e6, UTC)


def _require_name(name: str) -> None:
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise UsageError(f"{name!r} cannot name a group: use 1 to {NAME_CHARACTERS_MAX} printable characters")
    if name.startswith("inbox:") or name == COMPACTION:
        raise UsageError(f"{name!r} cannot name a group: streams know inboxes and compactions by such names")


def _require_same(name: str, there: Settings, asked: Settings) -> None:
    mine, theirs = asked.to_json(), there.to_json()
    for key, value in theirs.items():
        if value != mine[key]:
            raise UsageError(
                f"group {name!r} was made with {key} {value!r}, not {mine[key]!r}: delete and create it, or leave it so"
            )


def _word(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} {value!r}: use {', '.join(each.value for each in kind)}") from None


def _preference(value: str | Preference) -> Preference:
    if isinstance(value, str) and value.replace("_", " ").replace("-", " ") == "exactly once":
        raise UsageError(
            "a group delivers at least once: for exactly once use outbox.Inbox, which commits effects and position "
            "together, or acknowledge by ack_within, or make the effect idempotent by the event's ID"
        )
    found: Preference = _word(Preference, value, "preference")
    return found


def _head(stream: Stream, start: str | int | datetime, name: str) -> int:
    """The ID that a group stands at whose first event is to be the one at a place."""
    head = start_after(stream, start.isoformat() if isinstance(start, datetime) else str(start), name)
    if head > stream.tail():
        raise UsageError(
            f"{name} {start}: {stream.url} ends at ID {stream.tail()}, and no group can stand behind that; use {LATEST!r} "
            "for what comes next"
        )
    return head
