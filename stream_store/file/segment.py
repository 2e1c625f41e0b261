"""A segment: a file of frames, named by the ID that its first frame follows.

    header, 64 bytes   magic, format version, CRC, the stream's ID, prev_id
    frames             each directly behind the other (see frame.py)

The segment with the highest name is the one being written; all others are sealed: complete,
synced, and not changed any more, except that `tidy` may put a file with the same events in
larger frames in its place. A file is never shortened or overwritten in place, because readers
have it mapped into their memory. They notice by the inode that the name has another file now.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
import zlib
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pyarrow as pa

from outbox.errors import StreamCorrupt, StreamUnavailable
from stream_store.file import disk
from stream_store.file.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    DamagedFrame,
    FrameHeader,
    decode_events,
    decode_header,
    seed_of,
    verify_payload,
)
from stream_store.file.index import INDEX_SUFFIX, SparseIndex, read_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outbox.batch import EventBatch

SEGMENT_SUFFIX = ".log"
# Where a repair keeps damaged segments.
ASIDE_NAME = "damaged"
SEGMENT_HEADER_BYTES = 64
SEGMENT_VERSION = 1

_MAGIC = b"OBXSEGM1"
_HEADER = struct.Struct("<8sII16sq24x")
_CRC_COVERS_FROM = 12
# Below this a copy is cheaper than a new mapping: a follower reads a few frames at a time.
_COPY_BYTES_MAX = 256 * 1024


def segment_path(folder: Path, prev_id: int) -> Path:
    return folder / f"{prev_id:020d}{SEGMENT_SUFFIX}"


def index_path(folder: Path, prev_id: int) -> Path:
    return folder / f"{prev_id:020d}{INDEX_SUFFIX}"


def list_segments(folder: Path) -> list[int]:
    """The `prev_id` of every segment, ascending."""
    with os.scandir(folder) as entries:
        stems = [entry.name.removesuffix(SEGMENT_SUFFIX) for entry in entries if entry.name.endswith(SEGMENT_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def encode_segment_header(prev_id: int, stream_id: UUID) -> bytes:
    header = _HEADER.pack(_MAGIC, 0, SEGMENT_VERSION, stream_id.bytes, prev_id)
    return header[:8] + zlib.crc32(header[_CRC_COVERS_FROM:]).to_bytes(4, "little") + header[_CRC_COVERS_FROM:]


def decode_segment_header(header: bytes) -> tuple[UUID, int]:
    """Stream ID and `prev_id`; `DamagedFrame` when it is not a header of this version."""
    if len(header) < SEGMENT_HEADER_BYTES:
        raise DamagedFrame(f"the file has {len(header)} bytes, its header alone has {SEGMENT_HEADER_BYTES}")
    magic, crc, version, owner, prev_id = _HEADER.unpack(header)
    if magic != _MAGIC or crc != zlib.crc32(header[_CRC_COVERS_FROM:]):
        raise DamagedFrame("the segment header is damaged")
    if version != SEGMENT_VERSION:
        raise DamagedFrame(f"the segment has version {version}, this program reads {SEGMENT_VERSION}")
    return UUID(bytes=owner), prev_id


class Placed(NamedTuple):
    """A frame, where it lies in its segment."""

    offset: int
    header: FrameHeader
    payload: pa.Buffer


class Segment:
    """A segment file open for reading. What a caller may read ends at the limit it passes."""

    def __init__(self, folder: Path, prev_id: int, stream_id: UUID) -> None:
        self.path = segment_path(folder, prev_id)
        self.prev_id = prev_id
        self.stream_id = stream_id
        self._index_path = index_path(folder, prev_id)
        self._seed = seed_of(stream_id)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        # Batches that were handed out keep the mapping; the segment alone keeps the descriptor.
        weakref.finalize(self, os.close, self._fd)
        self.inode = os.fstat(self._fd).st_ino
        self._mapped: pa.Buffer | None = None
        self._index: SparseIndex | None
        self._forget_index()
        try:
            owner, named = decode_segment_header(os.pread(self._fd, SEGMENT_HEADER_BYTES, 0))
        except DamagedFrame as damage:
            raise self.corrupt(0, str(damage)) from damage
        if owner != stream_id:
            raise self.corrupt(0, f"it belongs to stream {owner}, not to {stream_id}")
        if named != prev_id:
            raise self.corrupt(0, f"its header says that it follows ID {named}")

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        disk.sync(self._fd)

    def is_current(self) -> bool:
        """Whether the name still stands for this file. `FileNotFoundError` when it is gone."""
        return self.path.stat().st_ino == self.inode

    def corrupt(self, offset: int, what: str) -> StreamCorrupt:
        return StreamCorrupt(
            f"{self.path} is damaged at offset {offset}: {what}; run `outbox stream check` for the extent and put the "
            "file back from a copy"
        )

    def frames(self, start: int, limit: int) -> Iterator[Placed]:
        """The frames from `start` to `limit`, which is the end of one. Payloads are not verified."""
        if start >= limit:
            return
        buffer = self.buffer(start, limit)
        view = memoryview(buffer)
        position, end = 0, limit - start
        while position < end:
            try:
                header = decode_header(view, position, end, start + position, self._seed)
            except DamagedFrame as damage:
                raise self.corrupt(start + position, str(damage)) from damage
            payload = buffer.slice(position + HEADER_BYTES, header.payload_bytes)
            yield Placed(start + position, header, payload)
            position += header.frame_bytes

    def verify(self, frame: Placed) -> None:
        """Compare a frame's payload with its CRC."""
        try:
            verify_payload(frame.header, frame.payload)
        except DamagedFrame as damage:
            raise self.corrupt(frame.offset, str(damage)) from damage

    def events(self, frame: Placed) -> EventBatch:
        """The batch of a frame, verified, where it lies in the file."""
        try:
            return decode_events(frame.header, frame.payload)
        except DamagedFrame as damage:
            raise self.corrupt(frame.offset, str(damage)) from damage

    def index(self, limit: int, *, sealed: bool) -> SparseIndex:
        """The index of the frames below `limit`: from its file, or from the headers not seen yet."""
        if self._index is None and sealed:
            self._index = read_index(self._index_path, self.prev_id, limit, self.stream_id)
            if self._index is not None:
                self._index_is_from_file = True
                self._indexed_to = limit
        index = self._index or SparseIndex(self.prev_id)
        for offset, header, _ in self.frames(self._indexed_to, limit):
            if header.prev_id != index.last_id:
                raise self.corrupt(
                    offset, f"the frame follows ID {header.prev_id}, the one before ends at {index.last_id}"
                )
            index.add(offset, header)
            self._indexed_to = offset + header.frame_bytes
        self._index = index
        return index

    def seek(self, after: int, limit: int, *, sealed: bool) -> tuple[int, int] | None:
        """Where to read on behind `after`: offset and `prev_id` of a frame shortly before it."""
        start = self.index(limit, sealed=sealed).seek(after)
        if start is not None and self._index_is_from_file and not self._begins_at(*start, limit):
            # An index of the same segment with frames of other sizes: it is only a cache.
            self._forget_index()
            start = self.index(limit, sealed=False).seek(after)
        return start

    def _begins_at(self, offset: int, prev_id: int, limit: int) -> bool:
        try:
            return next(self.frames(offset, limit)).header.prev_id == prev_id
        except (StreamCorrupt, StopIteration):
            return False

    def _forget_index(self) -> None:
        self._index = None
        self._index_is_from_file = False
        self._indexed_to = SEGMENT_HEADER_BYTES

    def next_valid(self, start: int, end: int) -> int | None:
        """The offset of the first whole, verified frame at or behind `start`."""
        if start >= end:
            return None
        with mmap.mmap(self._fd, end, access=mmap.ACCESS_READ) as mapped:
            found = mapped.find(MAGIC, start)
            while found >= 0:
                if found % ALIGNMENT == 0 and self._is_valid(mapped, found, end):
                    return found
                found = mapped.find(MAGIC, found + 1)
        return None

    def _is_valid(self, mapped: mmap.mmap, offset: int, end: int) -> bool:
        with memoryview(mapped) as view:
            try:
                header = decode_header(view, offset, end, offset, self._seed)
            except DamagedFrame:
                return False
            with view[offset + HEADER_BYTES : offset + header.frame_bytes] as payload:
                return zlib.crc32(payload) == header.payload_crc

    def buffer(self, start: int, end: int) -> pa.Buffer:
        """The file's bytes: a copy of few, a mapping of many."""
        if self.size_bytes() < end:
            raise self.corrupt(self.size_bytes(), f"the file ends here, {end} bytes of it were durable")
        if end - start <= _COPY_BYTES_MAX:
            copy = pa.allocate_buffer(end - start)
            try:
                os.preadv(self._fd, [memoryview(copy)], start)
            except OSError as error:
                raise StreamUnavailable(f"reading {self.path} at offset {start}: {error.strerror}") from error
            return copy
        if self._mapped is None or self._mapped.size < end:
            self._mapped = pa.py_buffer(mmap.mmap(self._fd, end, access=mmap.ACCESS_READ))
        return self._mapped.slice(start, end - start)
