"""Opening a stream folder for writing: find what is whole, and make it durable again.

A tail that a crash left half written is cut; anything else that is not whole is damage. The
two differ like this: the writer syncs each frame before it writes the next, so at most the
last frame of the last segment can be torn, and never one below the published mark. With
`acks=write` that holds for the settled mark (mark.py), and everything behind it may be torn.

The page cache is not the disk. After a failed sync the kernel may hold pages that it takes
for clean and that are not on the disk, and another sync of the same file says "done". So the
last segment is always written anew from what can be read of it, synced and put in place,
before its tail is reported.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from outbox.errors import StreamCorrupt
from stream_store.file import disk
from stream_store.file.identity import Identity, write_identity
from stream_store.file.index import SparseIndex, read_index
from stream_store.file.mark import MARK_NAME, Mark, encode_mark, is_relaxed, read_mark, settled_mark
from stream_store.file.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    encode_segment_header,
    index_path,
    list_segments,
    segment_path,
)

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Unsealed:
    """The segment being written: durable up to `offset`, which is the end of its last frame."""

    fd: int
    path: Path
    prev_id: int
    offset: int
    index: SparseIndex

    @property
    def tail(self) -> int:
        return self.index.last_id

    @property
    def mark(self) -> Mark:
        return Mark(self.prev_id, self.offset, self.tail)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A stream folder that is ready to be written."""

    identity: Identity
    unsealed: Unsealed
    # Sealed segments without an index: `tidy` was not reached before a crash.
    untidy: tuple[int, ...]


def create_segment(folder: Path, prev_id: int, stream_id: UUID) -> Unsealed:
    """A new segment with no frames, durable."""
    path = segment_path(folder, prev_id)
    fd = disk.replace(path, [encode_segment_header(prev_id, stream_id)])
    return Unsealed(fd, path, prev_id, SEGMENT_HEADER_BYTES, SparseIndex(prev_id))


def create_stream(folder: Path) -> None:
    """A new, empty stream in a folder that holds none.

    stream.json comes last: a folder that has one has had a segment, so that a folder without
    segments is known to have lost them.
    """
    for prev_id in list_segments(folder):
        if prev_id != 0 or segment_path(folder, prev_id).stat().st_size > SEGMENT_HEADER_BYTES:
            raise StreamCorrupt(f"{folder} has segments and no stream.json: put it back from a copy of the stream")
    identity = Identity.new()
    with disk.reporting("making a stream in", folder):
        os.close(create_segment(folder, 0, identity.uuid).fd)
        os.close(disk.replace(folder / MARK_NAME, [encode_mark(Mark(0, SEGMENT_HEADER_BYTES, 0), identity.uuid)]))
    write_identity(folder, identity)


def recover(folder: Path, identity: Identity) -> Recovered:
    """Make the folder writable. The caller holds the writer lock."""
    with disk.reporting("recovering", folder):
        _remove_leftovers(folder, identity)
        names = list_segments(folder)
        mark = settled_mark(folder, identity.uuid)
        _require_whole(folder, identity, names, mark)
        untidy = tuple(name for name, end in pairwise(names) if not _verify_sealed(folder, name, end, identity.uuid))
        unsealed, lost = _renew(folder, names[-1], identity.uuid, mark, is_relaxed(folder))
    if set(lost) - set(identity.lost):
        identity = identity.with_lost(lost)
        try:
            write_identity(folder, identity)
        except BaseException:
            os.close(unsealed.fd)
            raise
    return Recovered(identity, unsealed, untidy)


def _remove_leftovers(folder: Path, identity: Identity) -> None:
    """What a crash left behind: files never put in place, segments trimmed and not yet removed."""
    for path in folder.glob(f"*{disk.TEMPORARY}"):
        disk.remove(path)
    if begun_in_vain(folder, identity):
        disk.remove(segment_path(folder, list_segments(folder)[-1]))
        disk.sync_folder(folder)
    remove_segments(folder, identity.trimmed_through)
    for path in folder.glob("*.idx"):
        if not path.with_suffix(".log").exists():
            disk.remove(path)


def begun_in_vain(folder: Path, identity: Identity) -> bool:
    """Whether a crash in `Writer.begin` left an empty second segment that stream.json does not know."""
    names = list_segments(folder)
    return (
        len(names) == 2
        and identity.trimmed_through == names[0] == 0
        and read_mark(folder, identity.uuid) == Mark(0, SEGMENT_HEADER_BYTES, 0)
        and all(segment_path(folder, name).stat().st_size == SEGMENT_HEADER_BYTES for name in names)
    )


def remove_segments(folder: Path, through: int) -> None:
    """Remove the segments that end at or below an ID."""
    removed = False
    for name, end in pairwise(list_segments(folder)):
        if end <= through:
            disk.remove(index_path(folder, name))
            disk.remove(segment_path(folder, name))
            removed = True
    if removed:
        disk.sync_folder(folder)


def _require_whole(folder: Path, identity: Identity, names: list[int], mark: Mark | None) -> None:
    advice = "put the folder back from a copy"
    if not names or names[0] != identity.trimmed_through:
        first = f"the first is {segment_path(folder, names[0]).name}" if names else "there is none"
        raise StreamCorrupt(
            f"{folder} is trimmed through ID {identity.trimmed_through}, so its first segment must be "
            f"{segment_path(folder, identity.trimmed_through).name}, and {first}: {advice}"
        )
    if mark is not None and mark.segment > names[-1]:
        raise StreamCorrupt(
            f"{segment_path(folder, mark.segment)} is missing, the stream was durable through ID {mark.tail} in it: "
            f"{advice}; if the folder is a copy made while a writer ran, remove {folder / MARK_NAME} to go on from the "
            f"last segment that is there"
        )


def _verify_sealed(folder: Path, name: int, end: int, stream_id: UUID) -> bool:
    """Whether a sealed segment has its index. `StreamCorrupt` unless it ends where the next begins.

    It was synced when it was sealed; a folder restored from a backup may not have been.
    """
    segment = Segment(folder, name, stream_id)
    segment.sync()
    size_bytes = segment.size_bytes()
    index = read_index(index_path(folder, name), name, size_bytes, stream_id)
    last_id = (index or segment.index(size_bytes, sealed=False)).last_id
    if last_id != end:
        raise StreamCorrupt(
            f"{segment.path} ends at ID {last_id} and the next segment follows ID {end}: what lies between is missing; "
            "put the folder back from a copy"
        )
    return index is not None


def _renew(
    folder: Path, name: int, stream_id: UUID, mark: Mark | None, relaxed: bool
) -> tuple[Unsealed, tuple[tuple[int, int], ...]]:
    """Write the last segment anew, without a torn tail; also the lost ranges it records.

    `relaxed`: behind the mark nothing was synced, so whole frames may lie behind torn ones.
    """
    segment = Segment(folder, name, stream_id)
    size_bytes = segment.size_bytes()
    durable = mark.offset if mark is not None and mark.segment == name else SEGMENT_HEADER_BYTES
    index = SparseIndex(name)
    end = SEGMENT_HEADER_BYTES
    lost = []
    try:
        for frame in segment.frames(end, size_bytes):
            header = frame.header
            segment.verify(frame)
            if header.prev_id != index.last_id:
                raise segment.corrupt(
                    frame.offset, f"the frame follows ID {header.prev_id}, the one before ends at {index.last_id}"
                )
            index.add(frame.offset, header)
            if header.is_lost:
                lost.append((header.prev_id, header.last_id))
            end = frame.offset + header.frame_bytes
    except StreamCorrupt:
        if end < durable or (not relaxed and segment.next_valid(end, size_bytes) is not None):
            raise
    if end < durable:
        raise StreamCorrupt(
            f"{segment.path} ends at offset {end} with ID {index.last_id}, it was durable up to offset {durable}: put "
            f"the folder back from a copy; if it is itself a copy made while a writer ran, remove {folder / MARK_NAME} "
            f"to go on from ID {index.last_id}"
        )
    fd = disk.replace(segment.path, [segment.buffer(0, end)])
    if end < size_bytes:
        log.warning("%s: cut %d bytes of an append that was never acknowledged", segment.path, size_bytes - end)
    return Unsealed(fd, segment.path, name, end, index), tuple(lost)
