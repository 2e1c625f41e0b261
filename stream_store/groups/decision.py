"""What a group does next, decided: pure functions from one state to the next.

Stores call them with the group locked and the time of the state database; the model tests
drive them with hostile clocks and members. No member's own clock has a say.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from stream_store.groups.state import NO_KEY, DeadLetter, Lot, Member, Order, Preference, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# Events set aside for a busy subject before the head stops: it bounds what a claim has to look at.
PARKED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """All events of the stream with after < id <= through that pass the group's type filter."""

    after: int
    through: int
    ids: Sequence[int] = ()
    # Beside each ID its subject as a number, where the group orders by subject.
    keys: Sequence[int] = ()

    def reaches_past(self, head: int) -> bool:
        return self.after <= head < self.through


@dataclass(frozen=True, slots=True)
class Given:
    """What a member that asked for events gets."""

    state: State
    lot: Lot | None = None
    letters: tuple[DeadLetter, ...] = ()
    # The window does not begin where the group stands: another member has been here. Read on and ask again.
    stale: bool = False
    # When something that waits now is due, by the state database; None when nothing is.
    due_us: int | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of a nack."""

    state: State
    # The token was another's by now, or nobody's: nothing has changed.
    late: bool = False
    letters: tuple[DeadLetter, ...] = ()
    # Events behind the returned ones that had to come back with them, to keep the order.
    pulled_back: tuple[int, ...] = ()


def give(
    state: State,
    *,
    now_us: int,
    member: Member,
    max_in_flight: int,
    window: Window,
    held_tokens: Collection[int],
    tokens: Iterator[int],
    tried_tokens: Collection[int] = (),
) -> Given:
    """Let a member take up to `max_in_flight` events, those it has already included.

    `held_tokens` are the lots that the member knows it has. One that stands here in its name
    and is not among them was given by a transaction whose answer never came: it is taken back, and
    was no try, unless it is among the `tried_tokens`, whose acknowledgement came to nothing.
    """
    state = expire(state, now_us, tokens)
    state = _joined(state, replace(member, expires_us=now_us + member.lease_us))
    state = _without_orphans(state, member.name, held_tokens, tried_tokens, tokens)
    state, letters = _without_exhausted(state)
    room = 0 if state.paused else _room(state, member.name, max_in_flight)
    if room < 1:
        return Given(state, letters=letters)
    if state.settings.preference is Preference.LATEST:
        return replace(_latest(state, window, room, tokens), letters=letters)
    again, blocked = _again(state, now_us, member.name, room, tokens)
    if again is not None:
        return replace(again, letters=letters)
    due_us = min(
        (lot.not_before_us for lot in state.lots if lot.member is None and lot.not_before_us > now_us), default=None
    )
    if blocked:
        return Given(state, letters=letters, due_us=due_us)
    if not window.reaches_past(state.head):
        # A window that ends where the group stands is merely used up.
        return Given(state, letters=letters, stale=window.through != state.head, due_us=due_us)
    return replace(_fresh(state, member.name, window, room, tokens), letters=letters, due_us=due_us)


def expire(state: State, now_us: int, tokens: Iterator[int]) -> State:
    """Take the events of members that have been silent for too long away from them."""
    dead = {member.name for member in state.members if member.expires_us < now_us}
    if not dead:
        return state
    lots = tuple(
        replace(
            lot,
            token=next(tokens),
            member=None,
            not_before_us=0,
            suspect=True,
            reason=f"member {lot.member} fell silent",
        )
        if lot.member in dead
        else lot
        for lot in state.lots
    )
    return replace(state, lots=lots, members=tuple(member for member in state.members if member.name not in dead))


def settle(state: State, token: int, left: Lot | None) -> State | None:
    """Acknowledge a held lot but for what is left of it. None when the token is not valid any more."""
    lot = state.lot(token)
    if lot is None or lot.member is None:
        return None
    return _with_lots(state, [token], [left] if left else [])


def nack(
    state: State, token: int, ids: Collection[int], *, now_us: int, delay_us: int, reason: str, tokens: Iterator[int]
) -> Returned:
    """Give events of a held lot back, to be delivered again after a delay, or to the dead letters."""
    lot = state.lot(token)
    if lot is None or lot.member is None:
        return Returned(state, late=True)
    refused = frozenset(ids) & frozenset(lot.ids)
    max_tries = state.settings.max_tries
    if max_tries is not None and lot.tries >= max_tries:
        letters = tuple(DeadLetter(event_id, lot.tries, reason) for event_id in lot.ids if event_id in refused)
        kept = lot.only(frozenset(lot.ids) - refused, token)
        return Returned(_with_lots(state, [token], [kept]), letters=letters)
    pulled_back = _behind(state, lot, refused)
    again = {"member": None, "not_before_us": now_us + delay_us, "suspect": False, "reason": reason}
    untouched = {"member": None, "not_before_us": 0, "tries": lot.tries - 1}
    kept = lot.only(frozenset(lot.ids) - refused - pulled_back, token)
    if state.settings.order is Order.STRICT:
        # In lots that do not overlap: the lowest comes first, whatever came of it.
        runs = groupby((i for i in lot.ids if i in refused or i in pulled_back), key=lambda i: i in refused)
        waiting = [lot.only(set(run), next(tokens), **(again if was else untouched)) for was, run in runs]
    else:
        waiting = [lot.only(refused, next(tokens), **again), lot.only(pulled_back, next(tokens), **untouched)]
    return Returned(_with_lots(state, [token], [kept, *waiting]), pulled_back=tuple(sorted(pulled_back)))


def give_back(state: State, token: int, ids: Collection[int], *, tokens: Iterator[int], touched: bool) -> State:
    """Return events that a leaving member has not acknowledged. Untouched ones have not been tried."""
    lot = state.lot(token)
    if lot is None or lot.member is None:
        return state
    tries = lot.tries if touched else lot.tries - 1
    chosen = frozenset(ids)
    kept = lot.only(frozenset(lot.ids) - chosen, token)
    return _with_lots(state, [token], [kept, lot.only(chosen, next(tokens), member=None, not_before_us=0, tries=tries)])


def leave(state: State, name: str) -> State:
    """A member that has given everything back is one no longer."""
    assert all(lot.member != name for lot in state.lots), name
    return replace(state, members=tuple(member for member in state.members if member.name != name))


def reset(state: State, head: int) -> State:
    """Stand somewhere else. What is outstanding is forgotten, and what members still have is not theirs."""
    return replace(state, head=head, lots=(), skipped=state.skipped + max(head - state.head, 0))


def redrive(state: State, keys_of: Mapping[int, int], token: int) -> State:
    """Dead letters, by ID and with their subjects, become outstanding again, with all their tries before them.

    Not those that a reset has brought before the group again anyway.
    """
    known = {event_id for lot in state.lots for event_id in lot.ids}
    ids = tuple(sorted(event_id for event_id in keys_of if event_id <= state.head and event_id not in known))
    if not ids:
        return state
    keys = tuple(keys_of[event_id] for event_id in ids) if state.settings.order is Order.SUBJECT else ()
    return _with_lots(state, [], [Lot(token, ids, keys)])


def _joined(state: State, member: Member) -> State:
    others = tuple(each for each in state.members if each.name != member.name)
    return replace(state, members=(*others, member))


def _without_orphans(
    state: State, name: str, held_tokens: Collection[int], tried_tokens: Collection[int], tokens: Iterator[int]
) -> State:
    lots = tuple(
        replace(lot, token=next(tokens), member=None, tries=lot.tries - (lot.token not in tried_tokens))
        if lot.member == name and lot.token not in held_tokens
        else lot
        for lot in state.lots
    )
    return replace(state, lots=lots)


def _without_exhausted(state: State) -> tuple[State, tuple[DeadLetter, ...]]:
    max_tries = state.settings.max_tries
    if max_tries is None:
        return state, ()
    exhausted = [lot for lot in state.lots if lot.member is None and lot.tries >= max_tries]
    letters = tuple(
        DeadLetter(event_id, lot.tries, lot.reason or "never acknowledged") for lot in exhausted for event_id in lot.ids
    )
    return _with_lots(state, [lot.token for lot in exhausted], []), letters


def _room(state: State, name: str, max_in_flight: int) -> int:
    """How many more events a member may take now."""
    mine = [lot for lot in state.lots if lot.member == name]
    if any(_is_alone(state, lot, lot.tries) for lot in mine):
        return 0
    room = max_in_flight - sum(len(lot.ids) for lot in mine)
    if state.settings.max_in_flight is not None:
        room = min(room, state.settings.max_in_flight - state.in_flight)
    if state.settings.order is Order.STRICT and state.in_flight:
        return 0
    return room


def _is_alone(state: State, lot: Lot, tries: int) -> bool:
    """Whether this is the last try of events one of which may be what kills members.

    It is delivered by itself to a member that has nothing else, so that not everything that
    happened to be with it becomes a dead letter too.
    """
    return lot.suspect and state.settings.max_tries is not None and 1 < tries == state.settings.max_tries


def _again(state: State, now_us: int, name: str, room: int, tokens: Iterator[int]) -> tuple[Given | None, bool]:
    """Events that were delivered before, or had to wait for their subject: lowest first.

    And whether this member has to wait, rather than take new events.
    """
    waiting = sorted((lot for lot in state.lots if lot.member is None), key=lambda lot: lot.ids[0])
    strict = state.settings.order is Order.STRICT
    if strict and waiting:
        waiting = waiting[:1]
        if waiting[0].not_before_us > now_us:
            return None, True
    free = _FreeSubjects(state) if state.settings.order is Order.SUBJECT else None
    for lot in waiting:
        if lot.not_before_us > now_us:
            continue
        ids = lot.ids if free is None else free.of(lot)
        if not ids:
            continue
        alone = _is_alone(state, lot, lot.tries + 1)
        if alone and any(each.member == name for each in state.lots):
            return None, True
        chosen = frozenset(ids[: 1 if alone else room])
        taken = lot.only(chosen, next(tokens), member=name, tries=lot.tries + 1, not_before_us=0)
        rest = lot.only(frozenset(lot.ids) - chosen, lot.token)
        return Given(_with_lots(state, [lot.token], [taken, rest]), taken), False
    return None, strict and bool(waiting)


class _FreeSubjects:
    """Which events of waiting lots have no earlier event of their subject outstanding elsewhere."""

    def __init__(self, state: State) -> None:
        self._held = {key for lot in state.lots if lot.member is not None for key in lot.keys}
        # Of each subject, the two lowest waiting IDs that lie in different lots.
        self._lowest: dict[int, list[tuple[int, int]]] = {}
        for lot in state.lots:
            if lot.member is None:
                first: dict[int, int] = {}
                for event_id, key in zip(lot.ids, lot.keys, strict=True):
                    first.setdefault(key, event_id)
                for key, event_id in first.items():
                    self._lowest[key] = sorted([*self._lowest.get(key, []), (event_id, lot.token)])[:2]

    def of(self, lot: Lot) -> list[int]:
        return [
            event_id
            for event_id, key in zip(lot.ids, lot.keys, strict=True)
            if key == NO_KEY or (key not in self._held and not self._waits_elsewhere(key, event_id, lot.token))
        ]

    def _waits_elsewhere(self, key: int, event_id: int, token: int) -> bool:
        return any(earlier < event_id for earlier, where in self._lowest[key] if where != token)


def _latest(state: State, window: Window, room: int, tokens: Iterator[int]) -> Given:
    """The newest events, done as soon as they are given. Older ones are jumped over."""
    if window.through <= state.head:
        return Given(state)
    at = max(bisect_right(window.ids, state.head), len(window.ids) - room)
    jumped = (window.ids[at - 1] if at else window.after) - state.head
    state = replace(state, head=window.through, skipped=state.skipped + max(jumped, 0))
    ids = tuple(window.ids[at:])
    return Given(state, Lot(next(tokens), ids, tries=1) if ids else None)


@dataclass(slots=True)
class _Cut:
    """What of a window is taken, what is set aside for its subject, and the position behind both."""

    end: int
    taken: list[int] = field(default_factory=list)
    taken_keys: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    parked_keys: list[int] = field(default_factory=list)


def _fresh(state: State, name: str, window: Window, room: int, tokens: Iterator[int]) -> Given:
    """Events above the head, which moves behind them."""
    at = bisect_right(window.ids, state.head)
    if state.settings.order is Order.SUBJECT:
        cut = _by_subject(state, window, at, room)
    else:
        cut = _Cut(min(at + room, len(window.ids)), list(window.ids[at : at + room]))
    # Behind the last event of a window there is nothing up to its end.
    head = window.through if cut.end == len(window.ids) else window.ids[cut.end - 1] if cut.end > at else state.head
    lot = Lot(next(tokens), tuple(cut.taken), tuple(cut.taken_keys), name, tries=1) if cut.taken else None
    waiting = Lot(next(tokens), tuple(cut.parked), tuple(cut.parked_keys)) if cut.parked else None
    return Given(_with_lots(replace(state, head=head), [], [lot, waiting]), lot)


def _by_subject(state: State, window: Window, at: int, room: int) -> _Cut:
    busy = {key for lot in state.lots for key in lot.keys} - {NO_KEY}
    parked_max = PARKED_MAX - state.waiting
    cut = _Cut(len(window.ids))
    for position in range(at, len(window.ids)):
        event_id, key = window.ids[position], window.keys[position]
        is_busy = key in busy
        if (len(cut.parked) >= parked_max) if is_busy else (len(cut.taken) == room):
            cut.end = position
            break
        (cut.parked if is_busy else cut.taken).append(event_id)
        (cut.parked_keys if is_busy else cut.taken_keys).append(key)
    return cut


def _behind(state: State, lot: Lot, refused: frozenset[int]) -> frozenset[int]:
    """Events of the lot that must not be handled before the refused ones are."""
    if not refused or state.settings.order is Order.NONE:
        return frozenset()
    if state.settings.order is Order.STRICT:
        return frozenset(event_id for event_id in lot.ids if event_id > min(refused)) - refused
    found, waiting_keys = set(), set()
    for event_id, key in zip(lot.ids, lot.keys, strict=True):
        if event_id in refused:
            waiting_keys.add(key)
        elif key in waiting_keys and key != NO_KEY:
            found.add(event_id)
    return frozenset(found)


def _with_lots(state: State, without: Collection[int], added: Sequence[Lot | None]) -> State:
    gone = set(without)
    kept = (lot for lot in state.lots if lot.token not in gone)
    return replace(state, lots=(*kept, *(lot for lot in added if lot is not None)))
