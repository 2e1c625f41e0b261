"""Erasing events in a sealed segment.

A file with the same frames, but without the erased content, is put in the segment's place, whole
and durable. A reader that has the old file mapped finishes on it; nobody else finds it any more.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from outbox.batch import EventBatch
from stream_store.file import disk
from stream_store.file.frame import encode_events, move, seed_of
from stream_store.file.segment import SEGMENT_HEADER_BYTES, Placed, Segment, encode_segment_header, index_path
from stream_store.redaction import between, count_content, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    import pyarrow as pa


def count(folder: Path, prev_id: int, stream_id: UUID, ids: pa.Int64Array) -> int:
    """How many of these events the segment holds with their content."""
    segment = Segment(folder, prev_id, stream_id)
    return sum(
        count_content(segment.events(frame).rows, chosen)
        for frame in segment.frames(SEGMENT_HEADER_BYTES, segment.size_bytes())
        if len(chosen := _chosen(frame, ids))
    )


def rewrite(folder: Path, prev_id: int, stream_id: UUID, ids: pa.Int64Array) -> None:
    """Put a sealed segment in its place without the content of these events, and its index anew.

    A crash between the two leaves an index of another size, which is made again when a writer
    opens the stream.
    """
    segment = Segment(folder, prev_id, stream_id)
    os.close(disk.replace(segment.path, _without(segment, ids)))
    segment = Segment(folder, prev_id, stream_id)
    size_bytes = segment.size_bytes()
    index = segment.index(size_bytes, sealed=False)
    os.close(disk.replace(index_path(folder, prev_id), [index.encode(size_bytes, stream_id)]))


def _without(segment: Segment, ids: pa.Int64Array) -> Iterator[bytes | pa.Buffer]:
    seed = seed_of(segment.stream_id)
    offset = SEGMENT_HEADER_BYTES
    yield encode_segment_header(segment.prev_id, segment.stream_id)
    for placed in segment.frames(offset, segment.size_bytes()):
        chosen = _chosen(placed, ids)
        if len(chosen):
            batch = segment.events(placed)
            frame = encode_events(EventBatch(batch.prev_id, redacted(batch.rows, chosen)), offset, seed)
        else:
            segment.verify(placed)
            frame = move(placed.header, placed.payload, offset, seed)
        offset += frame.header.frame_bytes
        yield from frame.parts


def _chosen(frame: Placed, ids: pa.Int64Array) -> pa.Int64Array:
    if frame.header.is_lost:
        return ids.slice(0, 0)
    return between(ids, frame.header.prev_id, frame.header.last_id)
