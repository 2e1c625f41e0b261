"""States: what holds below the floor, as a row of numbered objects.

A change (a merge, a trim, a redaction) makes the next number, put-if-absent. Numbers are never
deleted, so creating one is a true compare-and-set on the one before: of two who change the
same state, one is refused. Superseded states are emptied, for they are as long as the list of
merged objects; their names stay taken.
"""

from __future__ import annotations

import json
import threading
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from outbox.errors import StreamCorrupt, StreamUnavailable, Transient, Unsupported
from stream_store.objects import layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stream_store.objects.store import Store

FORMAT = 1
_MAGIC = b"OBXS"
# A reader that has found a number still gets its content when a few more have come meanwhile.
_KEPT = 4


class Merged(NamedTuple):
    """A merged object: many batches that follow each other. `index_bytes` is 0 when it is a single frame."""

    name: str
    prev_id: int
    last_id: int
    size_bytes: int
    index_bytes: int
    time_min_us: int
    time_max_us: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything through `floor` is in the merged objects, or trimmed. Batches below it mean nothing."""

    number: int = 0
    floor: int = 0
    trimmed_through: int = 0
    merged: tuple[Merged, ...] = ()
    # Lost ranges that lie below the floor, also trimmed ones: (after, through].
    lost: tuple[tuple[int, int], ...] = ()
    compacted: bool = False

    def raised(self, floor: int, merged: Iterable[Merged], lost: Iterable[tuple[int, int]] = ()) -> State:
        """The next state, with the floor at or above this one's."""
        assert floor >= self.floor, (floor, self.floor)
        merged = tuple(merged)
        reached = self.trimmed_through
        for each in merged:
            assert each.prev_id == reached < each.last_id, (each, reached)
            reached = each.last_id
        assert reached == floor, (reached, floor)
        return replace(
            self, number=self.number + 1, floor=floor, merged=merged, lost=tuple(sorted({*self.lost, *lost}))
        )

    def trimmed(self, through: int, floor: int, lost: Iterable[tuple[int, int]] = ()) -> State:
        """The next state, without what lies at or below an ID where a stored unit ends."""
        assert self.trimmed_through < through <= floor, (self.trimmed_through, through, floor)
        kept = [each for each in self.merged if each.last_id > through]
        return replace(self, trimmed_through=through).raised(floor, kept, lost)


FIRST = State()


def encode_state(state: State) -> bytes:
    body = json.dumps({"format": FORMAT, **asdict(state)}, separators=(",", ":")).encode()
    return b"%s %08x\n%s\n" % (_MAGIC, zlib.crc32(body), body)


def decode_state(data: bytes, name: str) -> State:
    head, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    if head != b"%s %08x" % (_MAGIC, zlib.crc32(body)):
        raise StreamCorrupt(
            f"{name} is damaged: its CRC is wrong; put it back from a copy or an older version of the object"
        )
    fields = json.loads(body)
    version = fields.pop("format")
    if version != FORMAT:
        raise Unsupported(
            f"{name} has format {version}, this program reads format {FORMAT}: install a newer outbox-connector"
        )
    fields["merged"] = tuple(Merged(*each) for each in fields["merged"])
    fields["lost"] = tuple((after, through) for after, through in fields["lost"])
    state = State(**fields)
    if state.number != layout.number_of(name):
        raise StreamCorrupt(f"{name} says that it is state {state.number}: somebody has moved it; put it back")
    return state


class States:
    """The newest state, looked at as cheaply as can be. May be used by several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: State | None = None

    def newest(self) -> State:
        """The newest state. One request when it is the one that is known already.

        What was newest when the call was made, or came after it: a floor that was raised
        before the call is always seen.
        """
        with self._lock:
            known = self._known
            # Numbers have no gaps and are never deleted: no next one, no later one.
            if known is not None and not self._store.exists(layout.state_name(known.number + 1)):
                return known
            self._known = self._find()
            return self._known

    def newest_known(self) -> State:
        """The state that the last look found."""
        return self._known or FIRST

    def commit(self, state: State) -> bool:
        """Make this the newest state, durably. False when somebody else was faster: nothing changed then."""
        with self._lock:
            data = encode_state(state)
            name = layout.state_name(state.number)
            if not self._store.create(name, data):
                # An answer got lost, and this is our own object that the client met again? No two
                # changes make the same bytes: names of merged objects are unique, and a trim that
                # is the same is as good as ours.
                theirs = self._store.get(name)
                if not theirs:
                    # Refused, and not there (a store may refuse because our own first request is still under way), or
                    # superseded by now: it may be ours, or become ours. What was written for it must stay.
                    raise StreamUnavailable(
                        f"whether {name} of {self._store.url} is ours is not known: open the stream again"
                    )
                if bytes(theirs) != data:
                    return False
            self._known = state
        if state.number > _KEPT:
            with suppress(Transient):  # only for the space
                self._store.replace(layout.state_name(state.number - _KEPT), b"")
        return True

    def _find(self) -> State:
        while True:
            last = self._store.last(layout.STATES)
            if last is None:
                return FIRST
            data = self._store.get(last.name)
            if data is None:
                raise StreamCorrupt(f"{last.name} of {self._store.url} was deleted: states are never; put it back")
            if data:
                return decode_state(bytes(data), last.name)
            # Emptied, so there are newer ones by now.
