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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from stream_store.file.frame import FrameHeader

INDEX_SUFFIX = ".idx"
ENTRY_BYTES = 64 * 1024

_MAGIC = b"OBXINDX1"
_HEADER = struct.Struct("<8sI16sqqqq")
_CRC_COVERS_FROM = 12


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

    def units(self, limit: int) -> list[tuple[int, int, int]]:
        """`prev_id`, last ID and bytes of each entry, when the frames end at `limit`."""
        ends = [*self.offsets[1:], limit]
        sizes = [end - start for start, end in zip(self.offsets, ends, strict=False)]
        return list(zip(self.prev_ids, self.last_ids, sizes, strict=True))

    def seek_time(self, time_us: int) -> int | None:
        """An ID below the first event at or after a time, and above most that are earlier."""
        for entry, highest in enumerate(self.times_max_us):
            if highest >= time_us:
                return self.prev_ids[entry]
        return None

    def encode(self, segment_bytes: int, stream_id: UUID) -> bytes:
        columns = b"".join(_little_endian(column).tobytes() for column in self._columns())
        header = _HEADER.pack(_MAGIC, 0, stream_id.bytes, segment_bytes, self.prev_id, self.frames, len(self.offsets))
        crc = zlib.crc32(columns, zlib.crc32(header[_CRC_COVERS_FROM:]))
        return header[:8] + crc.to_bytes(4, "little") + header[_CRC_COVERS_FROM:] + columns

    def _columns(self) -> tuple[array[int], ...]:
        return self.offsets, self.prev_ids, self.last_ids, self.times_min_us, self.times_max_us


def read_index(path: Path, prev_id: int, segment_bytes: int, stream_id: UUID) -> SparseIndex | None:
    """The index of a sealed segment; None unless it is sound and of this very segment."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _HEADER.size:
        return None
    magic, crc, *of, frames, entries = _HEADER.unpack_from(content)
    if magic != _MAGIC or crc != zlib.crc32(memoryview(content)[_CRC_COVERS_FROM:]):
        return None
    index = SparseIndex(prev_id)
    index.frames = frames
    width = entries * 8
    if of != [stream_id.bytes, segment_bytes, prev_id] or len(content) != _HEADER.size + width * len(index._columns()):
        return None
    for position, column in enumerate(index._columns()):
        start = _HEADER.size + position * width
        column.extend(_little_endian(array("q", content[start : start + width])))
    return index


def _little_endian(column: array[int]) -> array[int]:
    """The column's bytes as the file has them, or back: the same swap on the few machines that need it."""
    if sys.byteorder == "little":
        return column
    swapped = array("q", column)
    swapped.byteswap()
    return swapped
