"""Reading: a few objects ahead, each checked against the chain, whatever is merged meanwhile."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from outbox.errors import StreamCorrupt, Trimmed
from stream_store.file.frame import HEADER_BYTES
from stream_store.objects.merged_object import RESTORE, decode_frame, decode_head, decode_index
from stream_store.stream import Cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from outbox.batch import EventBatch
    from stream_store.file.frame import FrameHeader
    from stream_store.objects.chain import Chain, Unit
    from stream_store.objects.state import State
    from stream_store.objects.store import Store

# What is fetched ahead of the reader: so many requests at once, and no more bytes in each than
# this where an object can be read in parts. Together they bound a reader's memory.
AHEAD = 4
PIECE_BYTES = 8 << 20


class Vanished(Exception):
    """An object is no longer there: merged, redacted or trimmed. The newest state says which."""


class Fetched(NamedTuple):
    """Bytes of an object, and when they were all here, by this process's own clock."""

    data: memoryview
    at: float


class Floor(NamedTuple):
    """The floor as it was found by a request that began at this moment."""

    floor: int = 0
    asked_at: float = -1.0


class Piece(NamedTuple):
    """Bytes to fetch: a whole batch, or frames of a merged object that lie together."""

    unit: Unit
    start: int
    end: int


class Reader:
    """The reading half of a stream. May be used by several threads."""

    def __init__(self, store: Store, chain: Chain, seed: int) -> None:
        self._store = store
        self._chain = chain
        self._seed = seed
        self._pool: ThreadPoolExecutor | None = None

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        last = self._last(through)
        self._require_held(self._chain.state, after, last)
        return self._batches(after, last)

    def cuts(self, after: int, through: int) -> list[Cut]:
        last = self._last(through)
        if after >= last:
            return []
        state, units = self._chain.units(after, last)
        self._require_held(state, after, last)
        return [Cut(min(unit.last_id, last), unit.size_bytes) for unit in units]

    def table(self, first: int, last: int) -> pa.Table:
        """The rows with first <= id <= last."""
        return pa.Table.from_batches([batch.rows for batch in self.read(first - 1, last)], SCHEMA)

    def find(self, time_us: int) -> int:
        """The lowest ID whose time is at or after this one; tail + 1 when there is none."""
        look = self._chain.look()
        reached = look.state.trimmed_through
        while True:
            try:
                found = self._find(reached, look.tail, time_us)
            except Vanished as vanished:
                reached = max(reached, self._moved_on(vanished, reached).trimmed_through)
            except StreamCorrupt:
                before, look = look, self._chain.look()
                if look.state.number == before.state.number:
                    raise
            else:
                return look.tail + 1 if found is None else found

    def _find(self, after: int, last: int, time_us: int) -> int | None:
        if after >= last:
            return None
        state, units = self._chain.units(after, last)
        for unit in units:
            for piece in self._late_frames(unit, time_us):
                fetched = self._fetch(piece)
                self._confirm(piece, fetched, Floor())
                for _, batch in self._decode(piece, fetched.data):
                    if batch is None or batch.last_id <= after:
                        continue
                    at = pc.index(pc.greater_equal(batch.rows.column("time").cast(pa.int64()), time_us), True).as_py()
                    if at >= 0:
                        self._confirm_skipped(state, unit)
                        return int(batch.ids[at].as_py())
        if units:
            self._confirm_skipped(state, units[-1])
        return None

    def _confirm_skipped(self, state: State, unit: Unit) -> None:
        """Batches were passed over by their headers: those count when the floor is where it was."""
        if unit.merged is None and self._chain.floor() != state.floor:
            raise Vanished(unit.name)

    def _late_frames(self, unit: Unit, time_us: int) -> Iterator[Piece]:
        """The frames of an object that have an event at or after a time, by their headers alone."""
        if unit.merged is not None and unit.merged.time_max_us < time_us:
            return
        if unit.merged is None or not unit.merged.index_bytes:
            data = self._store.get_range(unit.name, 0, HEADER_BYTES)
            if data is None:
                raise Vanished(unit.name)
            if decode_head(data, self._seed, self._name(unit)).time_max_us >= time_us:
                yield Piece(unit, 0, unit.size_bytes)
            return
        for offset, header in self._index(unit):
            if header.time_max_us >= time_us:
                yield Piece(unit, offset, offset + header.frame_bytes)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- ranges

    def _last(self, through: int | None) -> int:
        if through is not None and through <= self._chain.tail:
            return through
        tail = self._chain.look().tail
        return tail if through is None else min(through, tail)

    def _require_held(self, state: State, after: int, last: int) -> None:
        if after < state.trimmed_through and after < last:
            raise Trimmed(
                f"{self._store.url} no longer holds what follows ID {after}: it was trimmed through ID "
                f"{state.trimmed_through}; read from ID {state.trimmed_through + 1}"
            )

    # ---- events

    def _batches(self, after: int, last: int) -> Iterator[EventBatch]:
        """Each event once, in order. An object that vanished is looked up again from where we are."""
        reached = after
        while reached < last:
            state, units = self._chain.units(reached, last)
            self._require_held(state, reached, last)
            try:
                for header, batch in self.stored(units, reached):
                    part = batch.after(reached) if batch is not None else None
                    part = part.through(last) if part is not None else None
                    # Before it is handed out: the next look-up goes on behind it.
                    reached = max(reached, header.last_id)
                    if part is not None:
                        yield part
            except Vanished as vanished:
                self._moved_on(vanished, reached, state)
            except StreamCorrupt:
                # A name that a merge has freed meanwhile may have been created again by a writer that came too late.
                if self._chain.look().state.number == state.number:
                    raise
            else:
                return

    def _moved_on(self, vanished: Vanished, reached: int, state: State | None = None) -> State:
        """The newer state that explains why an object is gone; without one it is lost."""
        known = state or self._chain.state
        newer = self._chain.look().state
        if newer.number == known.number:
            raise StreamCorrupt(
                f"{vanished} of {self._store.url} is missing, behind ID {reached}, and nothing has merged or trimmed it: {RESTORE}"
            ) from None
        return newer

    def stored(self, units: list[Unit], after: int) -> Iterator[tuple[FrameHeader, EventBatch | None]]:
        """The frames of these objects, from the one with `after` on, fetched ahead; no batch for a lost range."""
        pieces = self._pieces(units, after)
        waiting: deque[tuple[Piece, Future[Fetched]]] = deque()
        first = True
        floor = Floor()
        try:
            while True:
                # One request at first: most reads want no more than that.
                while len(waiting) < (1 if first else AHEAD):
                    piece = next(pieces, None)
                    if piece is None:
                        break
                    waiting.append((piece, self._submit(piece)))
                if not waiting:
                    return
                first = False
                piece, future = waiting.popleft()
                fetched = future.result()
                floor = self._confirm(piece, fetched, floor)
                yield from self._decode(piece, fetched.data)
        finally:
            for _, future in waiting:
                future.cancel()

    def _pieces(self, units: list[Unit], after: int) -> Iterator[Piece]:
        for unit in units:
            if (
                unit.merged is None
                or not unit.merged.index_bytes
                or (unit.prev_id >= after and unit.size_bytes <= PIECE_BYTES)
            ):
                end = unit.size_bytes - (unit.merged.index_bytes if unit.merged else 0)
                self._require(end >= HEADER_BYTES, unit, f"it has {end} bytes, a frame header has {HEADER_BYTES}")
                yield Piece(unit, 0, end)
                continue
            start = end = -1
            for offset, header in self._index(unit):
                if header.last_id <= after:
                    continue
                if start < 0:
                    start = end = offset
                if end > start and offset + header.frame_bytes - start > PIECE_BYTES:
                    yield Piece(unit, start, end)
                    start = offset
                end = offset + header.frame_bytes
            if end > start:
                yield Piece(unit, start, end)

    def _index(self, unit: Unit) -> list[tuple[int, FrameHeader]]:
        assert unit.merged is not None
        data = self._store.get_range(unit.name, unit.size_bytes - unit.merged.index_bytes, unit.size_bytes)
        if data is None:
            raise Vanished(unit.name)
        return [(each.offset, each.header) for each in decode_index(data, unit.merged, self._seed)]

    def _submit(self, piece: Piece) -> Future[Fetched]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AHEAD, "outbox-read")
        return self._pool.submit(self._fetch, piece)

    def _fetch(self, piece: Piece) -> Fetched:
        data = self._store.get_range(piece.unit.name, piece.start, piece.end)
        if data is None:
            raise Vanished(piece.unit.name)
        return Fetched(data, time.monotonic())

    def _confirm(self, piece: Piece, fetched: Fetched, floor: Floor) -> Floor:
        """Make sure that a batch was not below the floor when it was fetched.

        Its name may have been freed since we looked it up, and a relay that came too late may have
        created it again, with other content: what was fetched counts only when the floor, looked at
        afterwards, is not above it. One look serves all that had been fetched when it began.
        Names of merged objects are never used twice.
        """
        if piece.unit.merged is None:
            if fetched.at > floor.asked_at:
                asked_at = time.monotonic()
                floor = Floor(self._chain.floor(), asked_at)
            if floor.floor > piece.unit.prev_id:
                raise Vanished(piece.unit.name)
        if len(fetched.data) != piece.end - piece.start:
            raise StreamCorrupt(
                f"{self._name(piece.unit)} ends after {piece.start + len(fetched.data)} bytes, not {piece.end}: {RESTORE}"
            )
        return floor

    def _decode(self, piece: Piece, data: memoryview) -> Iterator[tuple[FrameHeader, EventBatch | None]]:
        """The frames of a piece; they follow each other, and a whole object is what the chain says it is."""
        unit, position, reached = piece.unit, 0, None
        while position < len(data):
            header, batch = decode_frame(data, position, piece.start + position, self._seed, self._name(unit))
            if reached is None and piece.start == 0:
                self._require(
                    header.prev_id == unit.prev_id, unit, f"it follows ID {header.prev_id}, not {unit.prev_id}"
                )
            self._require(reached in (None, header.prev_id), unit, f"ID {header.prev_id} does not follow {reached}")
            reached = header.last_id
            position += header.frame_bytes
            yield header, batch
        whole = unit.size_bytes - (unit.merged.index_bytes if unit.merged else 0)
        if piece.end == whole:
            self._require(
                reached == unit.last_id, unit, f"it ends at ID {reached}, what follows it begins at {unit.last_id}"
            )

    def _name(self, unit: Unit) -> str:
        return f"{unit.name} of {self._store.url}"

    def _require(self, sound: bool, unit: Unit, what: str) -> None:
        if not sound:
            raise StreamCorrupt(f"{self._name(unit)} does not fit its place: {what}; {RESTORE}")
