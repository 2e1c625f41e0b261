"""Frames: what is written comes back, and damaged bytes never come back as events."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_store.file.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    DamagedFrame,
    Frame,
    decode_events,
    decode_header,
    encode_events,
    encode_lost,
    move,
    seed_of,
)
from tests.crash.stream_events import batch

if TYPE_CHECKING:
    from outbox.batch import EventBatch

STREAM_ID = UUID("6f0c7a34-5a6c-4b39-9d0a-4a4f5a3c2b11")
SEED = seed_of(STREAM_ID)
OFFSET = 4 * ALIGNMENT


def flat(frame: Frame) -> bytes:
    return b"".join(bytes(memoryview(part)) for part in frame.parts)


def decode(data: bytes, position: int = 0, offset: int = OFFSET, seed: int = SEED) -> EventBatch | tuple[int, int]:
    buffer = pa.py_buffer(data)
    header = decode_header(memoryview(buffer), position, len(data), offset, seed)
    if header.is_lost:
        return header.prev_id, header.last_id
    return decode_events(header, buffer.slice(position + HEADER_BYTES, header.payload_bytes))


def test_frame_round_trip():
    events = batch([5, 6, 9], prev_id=2)
    data = flat(encode_events(events, OFFSET, SEED))
    assert len(data) % ALIGNMENT == 0
    assert decode(data) == events


def test_lost_frame_is_a_header_alone():
    data = flat(encode_lost(7, 12, OFFSET, SEED))
    assert len(data) == HEADER_BYTES
    assert decode(data) == (7, 12)


def test_header_tells_ids_and_times():
    header = encode_events(batch([5, 6, 9], prev_id=2), OFFSET, SEED).header
    assert (header.prev_id, header.first_id, header.last_id, header.events) == (2, 5, 9, 3)
    assert header.time_max_us - header.time_min_us == 4_000_000


def test_slice_is_written_without_its_parent():
    parent = batch(range(1, 5001))
    part = parent.through(4000).after(3995)
    frame = encode_events(part, OFFSET, SEED)
    assert frame.header.payload_bytes < 4096
    assert decode(flat(frame)) == part


def test_columns_are_read_where_they_lie():
    data = pa.py_buffer(flat(encode_events(batch(range(1, 100)), OFFSET, SEED)))
    header = decode_header(memoryview(data), 0, data.size, OFFSET, SEED)
    events = decode_events(header, data.slice(HEADER_BYTES, header.payload_bytes))
    for column in events.rows.columns:
        for buffer in column.buffers():
            assert buffer is None or buffer.size == 0 or data.address <= buffer.address < data.address + data.size


def test_frame_is_valid_only_in_its_stream_and_at_its_offset():
    frame = encode_events(batch([1]), OFFSET, SEED)
    data = flat(frame)
    with pytest.raises(DamagedFrame):
        decode(data, offset=OFFSET + ALIGNMENT)
    with pytest.raises(DamagedFrame):
        decode(data, seed=seed_of(UUID(int=1)))
    moved = move(frame.header, pa.py_buffer(data[HEADER_BYTES:]), OFFSET + ALIGNMENT, SEED)
    assert decode(flat(moved), offset=OFFSET + ALIGNMENT) == batch([1])


def test_batch_too_large_for_a_frame_is_refused(monkeypatch):
    monkeypatch.setattr("stream_store.file.frame.PAYLOAD_BYTES_MAX", 1024)
    with pytest.raises(ValueError, match="smaller batches"):
        encode_events(batch(range(1, 100)), OFFSET, SEED)


FRAMES = [
    encode_events(batch([1, 2, 3]), 0, SEED),
    encode_events(batch([7, 8], prev_id=3), 1, SEED),
    encode_lost(8, 20, 2, SEED),
    encode_events(batch(range(21, 60), salt="long " * 20), 3, SEED),
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """Which frame, its bytes, and the same bytes flipped, cut, with bytes put in or taken out."""
    number = draw(st.integers(0, len(FRAMES) - 1))
    whole = flat(FRAMES[number])
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "delete", "zero"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=100))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 100))]
        else:
            length = min(draw(st.integers(1, 200)), len(data) - at)
            data[at : at + length] = bytes(length)
    return number, whole, bytes(data)


@settings(max_examples=600)
@given(damaged())
def test_damaged_bytes_are_refused_or_are_the_very_events(case):
    number, whole, data = case
    try:
        found = decode(data, offset=number)
    except DamagedFrame:
        return
    # Damage behind the frame's own bytes does not concern it.
    assert found == decode(whole, offset=number)
    assert data[: len(whole)] == whole


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data):
    with pytest.raises(DamagedFrame):
        decode(data)


@settings(max_examples=300)
@given(number=st.integers(0, len(FRAMES) - 1), bit=st.integers(0, 63 * 8))
def test_no_flipped_bit_of_a_header_goes_unseen(number, bit):
    data = bytearray(flat(FRAMES[number]))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedFrame):
        decode(bytes(data), offset=number)
