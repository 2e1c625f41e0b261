"""`durable`: how far the stream is on the disk, published for readers in other processes.

The writer overwrites it after each successful sync of a segment. It is itself synced only
when a segment is sealed and when the stream is closed, so after a power failure it may be
older than the segments, never newer.

Unless the stream is written with `acks=write`: then the writer publishes what it has written,
and syncs when it is told to settle. Readers may see what a power failure takes back. As long as
there is a second record of the same form, `settled`, it is this one that says how far the
stream is on the disk for sure.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from outbox.errors import StreamCorrupt

if TYPE_CHECKING:
    from pathlib import Path

MARK_NAME = "durable"
SETTLED_NAME = "settled"

_MAGIC = b"OBXMARK1"
_RECORD = struct.Struct("<8s16sqqqI")
_TORN_READS_MAX = 20
_TORN_PAUSE_SECONDS = 0.0005


class Mark(NamedTuple):
    """Bytes of the segment below `offset`, and all segments before it, are durable."""

    segment: int
    offset: int
    tail: int


def encode_mark(mark: Mark, stream_id: UUID) -> bytes:
    body = _RECORD.pack(_MAGIC, stream_id.bytes, *mark, 0)[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def read_mark(folder: Path, stream_id: UUID, name: str = MARK_NAME) -> Mark | None:
    """The published mark; None when there is no readable one.

    A record that was read while it was being overwritten fails its CRC and is read again.
    """
    path = folder / name
    for _ in range(_TORN_READS_MAX):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            record = os.pread(fd, _RECORD.size, 0)
        finally:
            os.close(fd)
        if len(record) == _RECORD.size:
            magic, owner, segment, offset, tail, crc = _RECORD.unpack(record)
            if magic == _MAGIC and crc == zlib.crc32(record[:-4]):
                if owner != stream_id.bytes:
                    raise StreamCorrupt(
                        f"{path} belongs to stream {UUID(bytes=owner)}, the folder to {stream_id}: two streams were "
                        "mixed; restore the folder as a whole"
                    )
                return Mark(segment, offset, tail)
        time.sleep(_TORN_PAUSE_SECONDS)
    return None


def is_relaxed(folder: Path) -> bool:
    """Whether the published mark may be ahead of what is on the disk."""
    return (folder / SETTLED_NAME).exists()


def settled_mark(folder: Path, stream_id: UUID) -> Mark | None:
    """How far the stream is on the disk for sure; None when that is not known."""
    return read_mark(folder, stream_id, SETTLED_NAME if is_relaxed(folder) else MARK_NAME)
