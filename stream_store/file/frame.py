"""A frame: the unit of the file stream, one appended batch with its place in the chain.

    header, 64 bytes   magic, CRC of the header, CRC and length of the payload, flags, events,
                       prev_id, first_id, last_id, lowest and highest time
    payload            the batch as an Arrow IPC message, padded to 64 bytes

Frames start at multiples of 64 bytes, so Arrow reads the columns where they lie in a
memory-mapped file. The header's CRC also covers the stream's ID and the frame's own offset:
a frame is only valid where it was written, so one that is found inside an event's data, or
that a repair tool has shifted, is not taken for one of ours.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA, EventBatch

if TYPE_CHECKING:
    from uuid import UUID

MAGIC = b"OBXF"
ALIGNMENT = 64
LOST = 1
TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1
# The length field has 32 bits; half of that leaves room and is far above any sensible batch.
PAYLOAD_BYTES_MAX = 2**31 - ALIGNMENT

_HEADER = struct.Struct("<4sIIIIIqqqqq")
HEADER_BYTES = _HEADER.size
_CRC_COVERS_FROM = 8


class DamagedFrame(ValueError):
    """These bytes are not a whole frame of this stream at this offset."""


class FrameHeader(NamedTuple):
    """What is known of a frame without reading its payload."""

    magic: bytes
    header_crc: int
    payload_crc: int
    payload_bytes: int
    flags: int
    events: int
    prev_id: int
    first_id: int
    last_id: int
    time_min_us: int
    time_max_us: int

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes

    @property
    def is_lost(self) -> bool:
        return bool(self.flags & LOST)


class Frame(NamedTuple):
    """A frame ready to be written at the offset it was made for."""

    header: FrameHeader
    parts: tuple[bytes | pa.Buffer, ...]


def seed_of(stream_id: UUID) -> int:
    """Where the header CRCs of this stream's frames start from."""
    return zlib.crc32(stream_id.bytes)


def encode_events(batch: EventBatch, offset: int, seed: int) -> Frame:
    """The frame of a batch. A slice is written as what it is, not as its parent."""
    message = batch.rows.serialize()
    padding = bytes(-message.size % ALIGNMENT)
    payload_bytes = message.size + len(padding)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise ValueError(
            f"the batch {batch.first_id} to {batch.last_id} has {payload_bytes} bytes, a frame holds "
            f"{PAYLOAD_BYTES_MAX}: append it in smaller batches"
        )
    times = pc.min_max(batch.rows.column("time"))
    header = _seal(
        FrameHeader(
            magic=MAGIC,
            header_crc=0,
            payload_crc=zlib.crc32(padding, zlib.crc32(message)),
            payload_bytes=payload_bytes,
            flags=0,
            events=len(batch),
            prev_id=batch.prev_id,
            first_id=batch.first_id,
            last_id=batch.last_id,
            time_min_us=times["min"].value,
            time_max_us=times["max"].value,
        ),
        offset,
        seed,
    )
    return Frame(header, (_HEADER.pack(*header), message, padding))


def encode_lost(after: int, through: int, offset: int, seed: int) -> Frame:
    """The frame that records (after, through] as lost. Its time range is empty."""
    header = FrameHeader(MAGIC, 0, 0, 0, LOST, 0, after, after + 1, through, TIME_MAX, TIME_MIN)
    header = _seal(header, offset, seed)
    return Frame(header, (_HEADER.pack(*header),))


def move(header: FrameHeader, payload: pa.Buffer, offset: int, seed: int) -> Frame:
    """The same frame at another offset."""
    header = _seal(header, offset, seed)
    return Frame(header, (_HEADER.pack(*header), payload))


def decode_header(buffer: memoryview, position: int, end: int, offset: int, seed: int) -> FrameHeader:
    """The header at `position` of a buffer that is valid up to `end`.

    `offset` is the frame's offset in its segment. `DamagedFrame` unless the header is sound
    and the whole frame lies before `end`.
    """
    if end - position < HEADER_BYTES:
        raise DamagedFrame(f"{end - position} bytes are left, a frame header has {HEADER_BYTES}")
    header = FrameHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise DamagedFrame("there is no frame header")
    covered = buffer[position + _CRC_COVERS_FROM : position + HEADER_BYTES]
    if zlib.crc32(covered, _offset_seed(offset, seed)) != header.header_crc:
        raise DamagedFrame("the CRC of the frame header is wrong")
    if header.frame_bytes > end - position:
        raise DamagedFrame(f"the frame has {header.frame_bytes} bytes, only {end - position} are left")
    return header


def verify_payload(header: FrameHeader, payload: pa.Buffer) -> None:
    if zlib.crc32(payload) != header.payload_crc:
        raise DamagedFrame(f"the CRC of the events {header.first_id} to {header.last_id} is wrong")


def decode_events(header: FrameHeader, payload: pa.Buffer) -> EventBatch:
    """The batch of a frame, its columns lying in `payload`. `DamagedFrame` when it is not sound."""
    verify_payload(header, payload)
    try:
        rows = pa.ipc.read_record_batch(payload, SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise DamagedFrame(f"the events {header.first_id} to {header.last_id} are no Arrow message: {error}") from error
    ids = rows.column(0)
    if rows.num_rows != header.events or (ids[0].as_py(), ids[-1].as_py()) != (header.first_id, header.last_id):
        raise DamagedFrame(f"header and events differ in the frame {header.first_id} to {header.last_id}")
    return EventBatch(header.prev_id, rows)


def _seal(header: FrameHeader, offset: int, seed: int) -> FrameHeader:
    covered = _HEADER.pack(*header)[_CRC_COVERS_FROM:]
    return header._replace(header_crc=zlib.crc32(covered, _offset_seed(offset, seed)))


def _offset_seed(offset: int, seed: int) -> int:
    return zlib.crc32(offset.to_bytes(8, "little"), seed)
