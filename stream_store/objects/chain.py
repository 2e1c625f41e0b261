"""The chain: the merged objects up to the floor, then batches, each named by the ID that it follows.

Reading it right beside writers, merges and trims rests on three facts (argued in __init__.py):
a name at or above the floor is never deleted; the floor is raised before what it covers is
deleted; a batch at or above the floor follows the one before it. So whatever was looked up
counts when the state is still the same afterwards, and is looked up again when it is not.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from outbox.errors import StreamCorrupt
from stream_store.file.frame import HEADER_BYTES
from stream_store.objects import layout
from stream_store.objects.merged_object import RESTORE, decode_head
from stream_store.objects.state import FIRST, Merged, State, States

if TYPE_CHECKING:
    from stream_store.file.frame import FrameHeader
    from stream_store.objects.store import Store

# New batches are followed one by one, a request each, up to here; then looking for the last is cheaper.
_HOPS_MAX = 6


class Unit(NamedTuple):
    """A stored object of the chain: it holds prev_id < id <= last_id."""

    prev_id: int
    last_id: int
    size_bytes: int
    name: str
    merged: Merged | None = None

    @property
    def is_lost(self) -> bool:
        """A batch that records a lost range is a header and nothing else."""
        return self.merged is None and self.size_bytes == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Look:
    """What was true together, at one moment during the look."""

    state: State
    tail: int


class Chain:
    """What a process knows of a stream's chain. May be used by several threads."""

    def __init__(self, store: Store, states: States, seed: int) -> None:
        self._store = store
        self._states = states
        self._seed = seed
        self._lock = threading.RLock()
        self._look: Look | None = None
        # Batches that are known, each following the one before. They begin anywhere above the floor.
        self._units: list[Unit] = []

    @property
    def tail(self) -> int:
        """The tail as this process last saw it."""
        return self._look.tail if self._look else 0

    @property
    def state(self) -> State:
        return self._look.state if self._look else FIRST

    def floor(self) -> int:
        """The floor, looked up now: a request."""
        return self._states.newest().floor

    def look(self) -> Look:
        """The newest state and tail: as they were when this was called, or later.

        Two requests when nothing has changed, and one more per new batch, at most a handful.
        The first look costs one listing per level of the names instead.
        """
        with self._lock:
            state = self._look.state if self._look else self._states.newest()
            while True:
                tail = self._find_tail(state)
                # After the tail: no floor was raised while we looked for it, so no name was freed.
                after = self._states.newest()
                if tail is not None and after.number == state.number:
                    self._look = Look(state, tail)
                    self._units = [unit for unit in self._units if unit.prev_id >= state.floor]
                    return self._look
                if tail is None and after.number == state.number:
                    raise StreamCorrupt(f"a batch of {self._store.url} was deleted while it was looked at; {RESTORE}")
                state = after

    def _find_tail(self, state: State) -> int | None:
        """The end of the chain; None when a batch vanished meanwhile."""
        if self._look is not None and self._look.tail >= state.floor:
            tail = self._look.tail
            for _ in range(_HOPS_MAX):
                header = self.header(tail)
                if header is None:
                    return tail
                self.add(Unit(tail, header.last_id, header.frame_bytes, layout.batch_name(tail)))
                tail = header.last_id
        last = self._store.last(layout.BATCHES)
        if last is None or layout.number_of(last.name) < state.floor:
            return state.floor
        header = self.header(layout.number_of(last.name))
        return header.last_id if header else None

    def header(self, prev_id: int) -> FrameHeader | None:
        """The header of the batch that follows an ID; None when there is no such batch."""
        name = layout.batch_name(prev_id)
        data = self._store.get_range(name, 0, HEADER_BYTES)
        if data is None:
            return None
        header = decode_head(data, self._seed, f"{name} of {self._store.url}")
        if header.prev_id != prev_id:
            raise StreamCorrupt(f"{name} of {self._store.url} holds a batch that follows {header.prev_id}: {RESTORE}")
        return header

    def add(self, unit: Unit) -> None:
        """A batch that is known to be in the stream."""
        with self._lock:
            if self._units and self._units[-1].last_id != unit.prev_id:
                self._units = []
            self._units.append(unit)

    def appended(self, unit: Unit) -> None:
        """Our own append: the tail is known without asking."""
        with self._lock:
            self.add(unit)
            self._look = Look(self._states.newest_known(), unit.last_id)

    def units(self, after: int, through: int) -> tuple[State, list[Unit]]:
        """The objects that hold after < id <= through, in order; `through` is at most the tail."""
        with self._lock:
            while True:
                look = self._look or self.look()
                state = look.state
                merged = [Unit(each.prev_id, each.last_id, each.size_bytes, each.name, each) for each in state.merged]
                merged = merged[bisect_right(merged, after, key=lambda unit: unit.last_id) :]
                if through <= state.floor:
                    return state, [unit for unit in merged if unit.prev_id < through]
                batches = self._batches(state, max(after, state.floor), through)
                if batches is not None:
                    return state, merged + batches
                self.look()

    def _batches(self, state: State, after: int, through: int) -> list[Unit] | None:
        """The batches that hold the range; None when the state has changed meanwhile."""
        if not self._units or self._units[0].prev_id > after or self._units[-1].last_id < through:
            listed = self._listed(state)
            if listed is None:
                return None
            self._units = listed
        start = bisect_right(self._units, after, key=lambda unit: unit.last_id)
        return [unit for unit in self._units[start:] if unit.prev_id < through]

    def _listed(self, state: State) -> list[Unit] | None:
        """All batches above the floor: a request per thousand. Each ends where the next begins."""
        before = layout.batch_name(state.floor - 1) if state.floor else None
        listed = self._store.list(layout.BATCHES, after=before)
        starts = [layout.number_of(each.name) for each in listed]
        last = self.header(starts[-1]) if starts else None
        if self._states.newest().number != state.number:
            return None
        if not listed or last is None or starts[0] != state.floor:
            missing = layout.batch_name(state.floor)
            raise StreamCorrupt(f"{missing} of {self._store.url} is missing, and there are events behind it: {RESTORE}")
        ends = [*starts[1:], last.last_id]
        return [
            Unit(start, end, each.size_bytes, each.name) for start, end, each in zip(starts, ends, listed, strict=True)
        ]
