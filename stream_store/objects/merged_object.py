"""A merged object: frames one behind another, and an index of them at the end.

The index repeats each frame's offset and header, so a reader that wants a part of the object
fetches the index and then only the frames it needs. Headers carry their own CRC.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from outbox.batch import EventBatch, concatenate
from outbox.errors import StreamCorrupt
from stream_store.file.frame import (
    HEADER_BYTES,
    TIME_MAX,
    TIME_MIN,
    DamagedFrame,
    FrameHeader,
    decode_events,
    decode_header,
    encode_events,
    encode_lost,
)
from stream_store.objects.state import Merged

if TYPE_CHECKING:
    from stream_store.file.frame import Frame

# Small batches are joined to about this size: a read hands out fewer and larger ones.
FRAME_BYTES = 4 << 20
_OFFSET = struct.Struct("<q")
_ENTRY_BYTES = _OFFSET.size + HEADER_BYTES


class Placed(NamedTuple):
    """A frame of an object."""

    offset: int
    header: FrameHeader


class Builder:
    """Batches and lost ranges in order, as the bytes of a merged object."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts: list[bytes | pa.Buffer] = []
        self._index: list[bytes] = []
        self._gathered: list[EventBatch] = []
        self._gathered_bytes = 0
        self._size_bytes = 0
        self._prev_id: int | None = None
        self._last_id = 0
        self._times = (TIME_MAX, TIME_MIN)

    def add(self, batch: EventBatch) -> None:
        self._follow(batch.prev_id, batch.last_id)
        self._gathered.append(batch)
        self._gathered_bytes += batch.rows.nbytes
        if self._gathered_bytes >= FRAME_BYTES:
            self._flush()

    def add_lost(self, after: int, through: int) -> None:
        self._flush()
        self._follow(after, through)
        self._put(encode_lost(after, through, self._size_bytes, self._seed))

    def finish(self, name: str) -> tuple[bytes, Merged]:
        """The object, and how a state names it."""
        self._flush()
        assert self._prev_id is not None, "a merged object holds something"
        index = b"".join(self._index)
        data = b"".join(memoryview(part) for part in (*self._parts, index))
        return data, Merged(name, self._prev_id, self._last_id, len(data), len(index), *self._times)

    def _follow(self, prev_id: int, last_id: int) -> None:
        assert self._prev_id is None or prev_id == self._last_id, (prev_id, self._last_id)
        self._prev_id = prev_id if self._prev_id is None else self._prev_id
        self._last_id = last_id

    def _flush(self) -> None:
        if self._gathered:
            self._put(encode_events(concatenate(self._gathered), self._size_bytes, self._seed))
            self._gathered, self._gathered_bytes = [], 0

    def _put(self, frame: Frame) -> None:
        header = frame.header
        self._index.append(_OFFSET.pack(self._size_bytes) + bytes(memoryview(frame.parts[0])))
        self._parts += frame.parts
        self._size_bytes += header.frame_bytes
        self._times = min(self._times[0], header.time_min_us), max(self._times[1], header.time_max_us)


def decode_index(index: memoryview, merged: Merged, seed: int) -> list[Placed]:
    """The frames of a merged object. `StreamCorrupt` unless they are the ones that its state means."""
    frames = []
    reached = merged.prev_id
    try:
        if len(index) != merged.index_bytes or len(index) % _ENTRY_BYTES:
            raise DamagedFrame(f"its index has {len(index)} bytes")
        for position in range(0, len(index), _ENTRY_BYTES):
            (offset,) = _OFFSET.unpack_from(index, position)
            header = decode_header(index, position + _OFFSET.size, _endless(position), offset, seed)
            if header.prev_id != reached:
                raise DamagedFrame(f"its index jumps from ID {reached} to {header.prev_id}")
            reached = header.last_id
            frames.append(Placed(offset, header))
        if reached != merged.last_id:
            raise DamagedFrame(f"its index ends at ID {reached}, not at {merged.last_id}")
    except DamagedFrame as error:
        raise StreamCorrupt(f"{merged.name} is damaged: {error}; {RESTORE}") from error
    return frames


RESTORE = "put the object back from a copy or an older version of it"


def decode_frame(
    data: memoryview, position: int, offset: int, seed: int, name: str
) -> tuple[FrameHeader, EventBatch | None]:
    """The frame at a position of some bytes of an object; no batch for a lost range."""
    try:
        header = decode_header(data, position, len(data), offset, seed)
        if header.is_lost:
            return header, None
        return header, decode_events(
            header, pa.py_buffer(data[position + HEADER_BYTES : position + header.frame_bytes])
        )
    except DamagedFrame as error:
        raise StreamCorrupt(f"{name} is damaged at offset {offset}: {error}; {RESTORE}") from error


def decode_head(data: memoryview, seed: int, name: str) -> FrameHeader:
    """The header of a frame that begins an object, of which no more than that was fetched."""
    try:
        if len(data) < HEADER_BYTES:
            raise DamagedFrame(f"it has {len(data)} bytes, a frame header has {HEADER_BYTES}")
        return decode_header(data, 0, _endless(0), 0, seed)
    except DamagedFrame as error:
        raise StreamCorrupt(f"{name} is damaged at offset 0: {error}; {RESTORE}") from error


def _endless(position: int) -> int:
    """Only the header is at hand; how long the frame is cannot be checked against it."""
    return position + (1 << 40)
