"""One member of a group: claims lots, hands events out, acknowledges, and says that it lives.

A membership is for one thread that takes deliveries. Acknowledging may happen in others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from outbox.errors import DeliveryLost, EventsTrimmed, GroupMissing, Transient
from outbox.event import events
from stream_store.groups import decision
from stream_store.groups.delivery import BatchDelivery, Delivery
from stream_store.groups.heartbeat import Heartbeat
from stream_store.groups.holding import Holding
from stream_store.groups.shelf import Shelf
from stream_store.groups.state import Member, Order, Preference
from stream_store.groups.store import Change, Settlement, known_as, tokens
from stream_store.readers import GROUP, REPORT_AGAIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType
    from typing import Self

    from outbox.event import Event
    from stream_store.groups.decision import Given
    from stream_store.groups.habits import Habits
    from stream_store.groups.shelf import Rows
    from stream_store.groups.state import DeadLetter, Settings, State
    from stream_store.groups.store import GroupStore
    from stream_store.stream import Stream

D = TypeVar("D", Delivery, BatchDelivery)

# How often the stream's tail is looked at while there is nothing to do.
TAIL_POLL_SECONDS_MIN, TAIL_POLL_SECONDS_MAX = 0.002, 0.05
# How often the state is looked at then: others may have died, or given something back.
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.01, 0.25
REPORT_SECONDS = 1.0
# Other members may move the head on while we read; each time we are further.
STALE_TRIES = 20


class Membership:
    """See the module. Closes its store and its stream."""

    def __init__(
        self, group_id: int, group_name: str, store: GroupStore, stream: Stream, habits: Habits, *, durable: bool
    ) -> None:
        self.name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        # Acknowledgements that came when the group had given the events to others already.
        self.late = 0
        self._group_id, self._group_name, self._known_as = group_id, group_name, known_as(group_name, group_id)
        self._store, self._stream, self._habits, self._durable = store, stream, habits, durable
        self._member = Member(self.name, 0, int(habits.lease_seconds * 1e6))
        self._tokens = tokens()
        self._changed = threading.Condition(threading.RLock())
        self._holdings: dict[int, Holding] = {}
        self._lost: set[int] = set()
        # Acknowledged in transactions of the caller's, of which we do not know whether they commit.
        self._within: set[int] = set()
        self._queue: deque[tuple[Event, Holding]] = deque()
        self._pending = 0
        state: State = store.transact(group_id, lambda state, _: Change(state, state))
        self._settings: Settings = state.settings
        self._head = state.head
        self._shelf = Shelf(stream, group_name, state.settings)
        self._found_source: str | None = None
        now = time.monotonic()
        self._beaten_at = self._flushed_at = self._reported_at = self._said_at = now
        self._reported: int | None = None
        self._look_at, self._look_seconds, self._looked_tail = now, LOOK_SECONDS_MIN, -1
        rest_seconds = min(habits.heartbeat_seconds, habits.ack_seconds or habits.heartbeat_seconds)
        self._heartbeat = Heartbeat(group_name, rest_seconds, self._tend)

    # Taking

    def next_event(self, stop: threading.Event | None = None, wait_seconds: float | None = None) -> Delivery | None:
        """The next event, or None when told to stop or when there was none for so long (None: for ever)."""
        return self._next(self._pop_event, self._queue_events, self._habits.max_in_flight, stop, wait_seconds)

    def next_batch(
        self, rows: int, stop: threading.Event | None = None, wait_seconds: float | None = None
    ) -> BatchDelivery | None:
        """The next events, up to so many, as one delivery."""
        found: list[BatchDelivery] = []

        def keep(given: Rows, holding: Holding) -> None:
            holding.hand_out_all()
            found.append(BatchDelivery(self, given, holding.lot, self._source))

        return self._next(lambda: found.pop() if found else None, keep, rows, stop, wait_seconds)

    def _next(
        self,
        pop: Callable[[], D | None],
        keep: Callable[[Rows, Holding], None],
        rows: int,
        stop: threading.Event | None,
        wait_seconds: float | None,
    ) -> D | None:
        deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
        pause_seconds = TAIL_POLL_SECONDS_MIN
        must_look = True
        while not (stop is not None and stop.is_set()):
            with self._changed:
                self._require_health()
                delivery = pop()
                if delivery is not None:
                    return delivery
                if self._has_room() and (must_look or self._is_due()):
                    if self._claim(rows, keep):
                        must_look = True
                        continue
                    must_look = False
                self._report(every_seconds=REPORT_SECONDS)
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                self._changed.wait(pause_seconds)
            pause_seconds = min(pause_seconds * 1.5, TAIL_POLL_SECONDS_MAX)
        return None

    @property
    def _source(self) -> str:
        """The stream is bound before its first event, so it has a source when one is needed."""
        if self._found_source is None:
            self._found_source = self._stream.info().source
        return self._found_source or "/outbox"

    def _pop_event(self) -> Delivery | None:
        """The first event whose order lets it be handled beside those that are being handled."""
        order = self._settings.order
        if order is Order.STRICT and any(holding.handed for holding in self._holdings.values()):
            return None
        for position, (event, holding) in enumerate(self._queue):
            if order is Order.SUBJECT and not holding.is_free(event.id):
                continue
            del self._queue[position]
            holding.hand_out(event.id)
            return Delivery(self, event, holding.lot)
        return None

    def _queue_events(self, given: Rows, holding: Holding) -> None:
        previous = given.previous.to_pylist()
        for event, prev_id in zip(events(given.batch(), self._source), previous, strict=True):
            self._queue.append((event if event.prev_id == prev_id else replace(event, prev_id=prev_id), holding))

    def _has_room(self) -> bool:
        if self._queue and self._settings.order is not Order.SUBJECT:
            return False
        held = sum(len(holding.unsettled) for holding in self._holdings.values())
        return not held if self._settings.order is Order.STRICT else held < self._habits.max_in_flight

    def _is_due(self) -> bool:
        return time.monotonic() >= self._look_at or self._stream.tail() != self._looked_tail

    def _claim(self, rows: int, keep: Callable[[Rows, Holding], None]) -> bool:
        """Ask the group for events; whether there were some."""
        self.flush()
        self._looked_tail = self._stream.tail()
        held = sum(len(holding.unsettled) for holding in self._holdings.values())
        limit = min(held + rows, self._habits.max_in_flight)
        for _ in range(STALE_TRIES):
            given, now_us = self._ask(limit, rows)
            if given.lot is not None:
                self._take(given, keep)
                return True
            if not given.stale:
                break
        # Nothing: look again when something is due, and now and then anyway.
        seconds = self._look_seconds
        if given.due_us is not None:
            seconds = min(seconds, max((given.due_us - now_us) / 1e6, LOOK_SECONDS_MIN))
        self._look_at = time.monotonic() + seconds
        self._look_seconds = min(self._look_seconds * 2, LOOK_SECONDS_MAX)
        return False

    def _ask(self, limit: int, rows: int) -> tuple[Given, int]:
        window = self._window(rows)

        def decide(state: State, now_us: int) -> Change:
            given = decision.give(
                state,
                now_us=now_us,
                member=self._member,
                max_in_flight=limit,
                window=window,
                held_tokens=self._holdings,
                tokens=self._tokens,
                tried_tokens=self._within,
            )
            return Change(given.state, (given, now_us), self._with_content(given.letters))

        given, now_us = self._store.transact(self._group_id, decide)
        self._beaten_at = time.monotonic()
        self._head = given.state.head
        mine = {lot.token for lot in given.state.lots if lot.member == self.name}
        self._within &= mine
        for token in [token for token in self._holdings if token not in mine]:
            self._lose(token)
        return given, now_us

    def _window(self, rows: int) -> decision.Window:
        try:
            return self._shelf.window(self._head, rows)
        except EventsTrimmed:
            # Perhaps only we stand there, and the group is long past it.
            head = self._store.transact(self._group_id, lambda state, _: Change(state, state.head))
            if head == self._head:
                raise
            self._head = head
            return self._shelf.window(self._head, rows)

    def _take(self, given: Given, keep: Callable[[Rows, Holding], None]) -> None:
        lot = given.lot
        assert lot is not None
        self._look_at, self._look_seconds = time.monotonic(), LOOK_SECONDS_MIN
        holding = Holding(lot)
        if lot.member is not None:
            self._holdings[lot.token] = holding
        try:
            keep(self._shelf.find(lot.ids), holding)
        except BaseException:
            # Not among what we have: the next claim, of ours or after our death, finds it.
            self._holdings.pop(lot.token, None)
            raise

    def _with_content(self, letters: tuple[DeadLetter, ...]) -> tuple[DeadLetter, ...]:
        if not letters:
            return ()
        lines = self._shelf.find(sorted(letter.id for letter in letters)).lines(self._source)
        return tuple(replace(letter, event=lines[letter.id]) for letter in letters)

    # Acknowledging

    def ack(self, token: int, event_id: int) -> None:
        with self._changed:
            holding = self._holdings.get(token)
            if holding is None:
                self.late += token in self._lost
                return
            if not holding.settle([event_id]):
                return
            self._pending += 1
            if self._pending >= self._habits.ack_every or self._is_time_to_flush():
                self.flush()
            self._changed.notify()

    def ack_batch(self, token: int, ids: Collection[int] | None) -> bool:
        with self._changed:
            holding = self._holdings.get(token)
            if holding is None:
                self.late += token in self._lost
                return token not in self._lost
            holding.settle(list(holding.unsettled) if ids is None else ids)
            self.flush()
            self._changed.notify()
            return token not in self._lost

    def ack_within(self, token: int, connection: Any) -> None:
        with self._changed:
            if token in self._lost or not self._store.settle_within(connection, self._group_id, token):
                self._lose(token)
                raise DeliveryLost(
                    f"group {self._group_name} has given this delivery to another member, because {self.name} was silent "
                    f"for more than {self._habits.lease_seconds:g} s: roll back, and go on with the next one"
                )
            # Whether it commits is the caller's: if not, the next claim finds the lot and gives it out again.
            self._holdings.pop(token, None)
            self._within.add(token)

    def nack(self, token: int, ids: Collection[int] | None, reason: str, delay_seconds: float) -> bool:
        if self._settings.preference is Preference.LATEST:
            return True
        with self._changed:
            self.flush()
            holding = self._holdings.get(token)
            if token in self._lost or (holding is None and ids is not None):
                self.late += token in self._lost
                return token not in self._lost
            lot = holding.lot if holding else None
            chosen = list(ids if ids is not None else holding.unsettled if holding else ())

            def decide(state: State, now_us: int) -> Change:
                known = state.lot(token)
                returned = decision.nack(
                    state,
                    token,
                    chosen or (known.ids if known and lot is None else ()),
                    now_us=now_us,
                    delay_us=int(delay_seconds * 1e6),
                    reason=reason,
                    tokens=self._tokens,
                )
                return Change(returned.state, returned, self._with_content(returned.letters))

            returned = self._store.transact(self._group_id, decide)
            if returned.late:
                self._lose(token)
                self.late += 1
                return False
            self._let_go(token, {*chosen, *returned.pulled_back})
            self._look_at, self._look_seconds = time.monotonic(), LOOK_SECONDS_MIN
            self._changed.notify()
            return True

    def flush(self) -> int:
        """Write the acknowledgements that have gathered; how many came too late."""
        with self._changed:
            self._pending, self._flushed_at = 0, time.monotonic()
            # In one order everywhere: two members that lock rows in different ones would wait for each other.
            changed = sorted(
                (holding for holding in self._holdings.values() if holding.changed), key=lambda each: each.lot.token
            )
            if not changed:
                return 0
            settlements = [Settlement(holding.lot.token, holding.left()) for holding in changed]
            late_tokens = set(self._store.settle(self._group_id, settlements))
            late = 0
            for holding in changed:
                if holding.lot.token in late_tokens:
                    late += holding.changed
                    self._lose(holding.lot.token)
                else:
                    holding.changed = 0
                    self._let_go(holding.lot.token, ())
            self.late += late
            return late

    def _is_time_to_flush(self) -> bool:
        return time.monotonic() - self._flushed_at >= self._habits.ack_seconds

    def _let_go(self, token: int, ids: Collection[int]) -> None:
        """Events of a lot that are not ours any more, and the lot itself when nothing is left of it."""
        holding = self._holdings.get(token)
        if holding is None:
            return
        if ids:
            gone = set(ids)
            holding.settle(gone)
            holding.changed = 0
            holding.lot = holding.left() or holding.lot
            self._queue = deque(each for each in self._queue if each[1] is not holding or each[0].id not in gone)
        if not holding.unsettled:
            del self._holdings[token]

    def _lose(self, token: int) -> None:
        """A lot that the group has given to others."""
        holding = self._holdings.pop(token, None)
        self._lost.add(token)
        if holding is not None:
            self._queue = deque(each for each in self._queue if each[1] is not holding)

    # Living

    def _tend(self) -> None:
        """A heartbeat, and acknowledgements that would wait for too long."""
        if time.monotonic() - self._beaten_at >= self._habits.heartbeat_seconds:
            self._beat()
        if self._pending and self._is_time_to_flush():
            self.flush()

    def _beat(self) -> None:
        beaten_at = time.monotonic()
        if self._store.beat(self._group_id, self.name):
            self._beaten_at = beaten_at
            return
        with self._changed:
            for token in list(self._holdings):
                self._lose(token)
            self._beaten_at = beaten_at

    def _require_health(self) -> None:
        if self._heartbeat.error is not None:
            raise self._heartbeat.error
        # After a stop of the whole process others may have everything: ask before handing out what is left.
        if self._holdings and time.monotonic() - self._beaten_at > self._habits.lease_seconds:
            self._beat()

    def _report(self, *, every_seconds: float) -> None:
        """Tell the stream how far the group is, so that retention waits for it."""
        if not self._durable or time.monotonic() - self._reported_at < every_seconds:
            return
        self._reported_at = time.monotonic()

        def decide(state: State, _: int) -> Change:
            # With the group locked, so that no report overtakes that of a reset.
            if state.through != self._reported or time.monotonic() - self._said_at >= REPORT_AGAIN_SECONDS:
                self._stream.report(GROUP, self._known_as, state.through)
                self._said_at = time.monotonic()
            return Change(state, state.through)

        self._reported = self._store.transact(self._group_id, decide)

    def close(self) -> None:
        """Write what was acknowledged, give back what was not, and leave."""
        if self._heartbeat.is_ended:
            return
        self._heartbeat.end()
        try:
            with self._changed:
                self.flush()
                self._store.transact(self._group_id, self._leave)
                self._holdings.clear()
                self._queue.clear()
                self._report(every_seconds=0.0)
        finally:
            self._store.close()
            self._stream.close()

    def _leave(self, state: State, _: int) -> Change:
        for token, holding in self._holdings.items():
            untouched = set(holding.unsettled) - set(holding.handed)
            for ids, touched in ((untouched, False), (set(holding.handed), True)):
                if ids:
                    state = decision.give_back(state, token, ids, tokens=self._tokens, touched=touched)
        # What is still in our name was given by a transaction whose answer never came, or acknowledged in one that was undone.
        for lot in state.lots:
            if lot.member == self.name:
                touched = lot.token in self._within
                state = decision.give_back(state, lot.token, lot.ids, tokens=self._tokens, touched=touched)
        return Change(decision.leave(state, self.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What ends the member says more than that it could not say good-bye.
        with contextlib.suppress(Transient, GroupMissing):
            self.close()
