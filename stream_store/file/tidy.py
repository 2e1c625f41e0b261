"""Tidying a sealed segment: many small frames become few large ones, and it gets its index.

A relay that follows its database closely appends a few rows at a time, and reading a frame
has a fixed price. IDs, content and chain stay as they are. The new file is put in place whole
and durable, and the index comes last: a segment without one is tidied when a writer next
opens the stream.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from outbox.batch import concatenate
from outbox.errors import OutboxError
from stream_store.file import disk
from stream_store.file.frame import encode_events, move, seed_of
from stream_store.file.segment import SEGMENT_HEADER_BYTES, Placed, Segment, encode_segment_header, index_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    import pyarrow as pa

SMALL_FRAME_BYTES = 64 * 1024
MERGED_FRAME_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


class Tidier:
    """Tidies one segment at a time, beside the appends."""

    def __init__(self, folder: Path, stream_id: UUID) -> None:
        self._folder = folder
        self._stream_id = stream_id
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox-tidy")
        self._pending: list[Future[None]] = []

    def submit(self, prev_id: int) -> None:
        self._pending = [job for job in self._pending if not job.done()]
        self._pending.append(self._thread.submit(self._run, prev_id))

    def wait(self) -> None:
        """Return when nothing is being tidied: before segments are removed."""
        for job in self._pending:
            job.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, prev_id: int) -> None:
        try:
            tidy(self._folder, prev_id, self._stream_id)
        except (OSError, OutboxError) as error:
            # The segment stays as it is: readable when it is whole, reported by its reader when not.
            log.warning("segment %020d of %s stays as it was written: %s", prev_id, self._folder, error)


def tidy(folder: Path, prev_id: int, stream_id: UUID) -> None:
    """Put a sealed segment's small frames together where that is worth it, and write its index."""
    segment = Segment(folder, prev_id, stream_id)
    size_bytes = segment.size_bytes()
    index = segment.index(size_bytes, sealed=False)
    if index.frames > 1 and size_bytes / index.frames < SMALL_FRAME_BYTES:
        os.close(disk.replace(segment.path, _merged(segment, size_bytes)))
        segment = Segment(folder, prev_id, stream_id)
        size_bytes = segment.size_bytes()
        index = segment.index(size_bytes, sealed=False)
    os.close(disk.replace(index_path(folder, prev_id), [index.encode(size_bytes, stream_id)]))


def _merged(segment: Segment, limit: int) -> Iterator[bytes | pa.Buffer]:
    """The segment's content with its small frames put together."""
    seed = seed_of(segment.stream_id)
    offset = SEGMENT_HEADER_BYTES
    yield encode_segment_header(segment.prev_id, segment.stream_id)
    for group in _groups(segment, limit):
        if len(group) == 1:
            segment.verify(group[0])
            frame = move(group[0].header, group[0].payload, offset, seed)
        else:
            frame = encode_events(concatenate(segment.events(small) for small in group), offset, seed)
        offset += frame.header.frame_bytes
        yield from frame.parts


def _groups(segment: Segment, limit: int) -> Iterator[list[Placed]]:
    """The frames in order, small neighbours together. A lost range stays a frame of its own."""
    group: list[Placed] = []
    group_bytes = 0
    for frame in segment.frames(SEGMENT_HEADER_BYTES, limit):
        alone = frame.header.is_lost or frame.header.payload_bytes >= SMALL_FRAME_BYTES
        if group and (alone or group_bytes >= MERGED_FRAME_BYTES):
            yield group
            group, group_bytes = [], 0
        if alone:
            yield [frame]
        else:
            group.append(frame)
            group_bytes += frame.header.frame_bytes
    if group:
        yield group
