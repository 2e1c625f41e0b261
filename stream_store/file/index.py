"""The sparse index of a segment: where to start looking, by ID and by time.

One entry for about 64 KiB of frames. Beside a sealed segment it is kept in an `.idx` file,
which is a cache and nothing more: when it is missing, damaged or of another segment, it is
made again from the frame headers.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from stream_store.file.frame import TIME_MAX, TIME_MIN, FrameHeader

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

INDEX_SUFFIX = ".idx"
ENTRY_BYTES = 64 * 1024

_MAGIC = b"OBXINDX1"
_HEADER = struct.Struct("<8sII16sqqqqqqq")
_CRC_COVERS_FROM = 12


class Summary(NamedTuple):
    """A sealed segment as a whole."""

    segment_bytes: int
    prev_id: int
    last_id: int
    time_min_us: int
    time_max_us: int
    frames: int


class SparseIndex:
    """Columns of entries; an entry reaches to the next one's offset."""

    def __init__(self, prev_id: int) -> None:
        self.prev_id = prev_id
        self.frames = 0
        self.offsets = array("q")
        self.prev_ids = array("q")
        self.last_ids = array("q")
        self.times_min_us = array("q")
        self.times_max_us = array("q")

    @property
    def last_id(self) -> int:
        return self.last_ids[-1] if self.last_ids else self.prev_id

    def add(self, offset: int, header: FrameHeader) -> None:
        """Take in the next frame."""
        self.frames += 1
        if not self.offsets or offset - self.offsets[-1] >= ENTRY_BYTES:
            self.offsets.append(offset)
            self.prev_ids.append(header.prev_id)
            self.last_ids.append(header.last_id)
            self.times_min_us.append(header.time_min_us)
            self.times_max_us.append(header.time_max_us)
        else:
            self.last_ids[-1] = header.last_id
            self.times_min_us[-1] = min(self.times_min_us[-1], header.time_min_us)
            self.times_max_us[-1] = max(self.times_max_us[-1], header.time_max_us)

    def seek(self, after: int) -> tuple[int, int] | None:
        """Offset and `prev_id` of a frame at or shortly before the first that ends above `after`."""
        entry = bisect_right(self.last_ids, after)
        return (self.offsets[entry], self.prev_ids[entry]) if entry < len(self.offsets) else None

    def seek_time(self, time_us: int) -> int | None:
        """An ID below the first event at or after a time, and above most that are earlier."""
        for entry, highest in enumerate(self.times_max_us):
            if highest >= time_us:
                return self.prev_ids[entry]
        return None

    def encode(self, segment_bytes: int, stream_id: UUID) -> bytes:
        columns = b"".join(_little_endian(column).tobytes() for column in self._columns())
        header = _HEADER.pack(
            _MAGIC,
            0,
            zlib.crc32(columns),
            stream_id.bytes,
            segment_bytes,
            self.prev_id,
            self.last_id,
            min(self.times_min_us, default=TIME_MAX),
            max(self.times_max_us, default=TIME_MIN),
            self.frames,
            len(self.offsets),
        )
        crc = zlib.crc32(header[_CRC_COVERS_FROM:])
        return header[:8] + crc.to_bytes(4, "little") + header[_CRC_COVERS_FROM:] + columns

    def _columns(self) -> tuple[array[int], ...]:
        return self.offsets, self.prev_ids, self.last_ids, self.times_min_us, self.times_max_us


def read_summary(path: Path, prev_id: int, segment_bytes: int, stream_id: UUID) -> Summary | None:
    """The summary in an index file; None unless it is sound and of this very segment."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    return _decode_summary(header, prev_id, segment_bytes, stream_id)


def read_index(path: Path, prev_id: int, segment_bytes: int, stream_id: UUID) -> SparseIndex | None:
    """The index of a sealed segment; None unless it is sound and of this very segment."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    summary = _decode_summary(content[: _HEADER.size], prev_id, segment_bytes, stream_id)
    if summary is None:
        return None
    entries, columns_crc = _HEADER.unpack_from(content)[-1], _HEADER.unpack_from(content)[2]
    columns = content[_HEADER.size :]
    index = SparseIndex(prev_id)
    width = entries * 8
    if len(columns) != width * len(index._columns()) or zlib.crc32(columns) != columns_crc:
        return None
    for position, column in enumerate(index._columns()):
        column.frombytes(columns[position * width : (position + 1) * width])
        _little_endian(column)
    index.frames = summary.frames
    return index


def _decode_summary(header: bytes, prev_id: int, segment_bytes: int, stream_id: UUID) -> Summary | None:
    if len(header) != _HEADER.size or header[:8] != _MAGIC:
        return None
    _, crc, _, owner, *fields, _ = _HEADER.unpack(header)
    summary = Summary(*fields)
    same = owner == stream_id.bytes and summary.prev_id == prev_id and summary.segment_bytes == segment_bytes
    return summary if same and crc == zlib.crc32(header[_CRC_COVERS_FROM:]) else None


def _little_endian(column: array[int]) -> array[int]:
    """The column with its bytes as the file has them; swapped in place on other machines."""
    if sys.byteorder != "little":
        column.byteswap()
    return column
