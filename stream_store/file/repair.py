"""Mending damage in the middle of a stream folder with events from elsewhere.

`survey` reads every segment and finds the holes: ranges of IDs, after < id <= through, whose frames
cannot be read. `mend` fills them with events that a copy of the stream, or the out table, still
has, and puts each damaged segment in its place anew, whole and durable; the damaged file is kept
aside (`damaged/`). What cannot be filled is said, and a segment with such a hole stays as it is.

A last segment that is damaged is sealed first: readers go by offsets in the one being written.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.batch import EventBatch
from outbox.errors import OutboxError, StreamCorrupt
from stream_store.file import disk
from stream_store.file.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    DamagedFrame,
    FrameHeader,
    decode_events,
    decode_header,
    encode_events,
    encode_lost,
    move,
    seed_of,
)
from stream_store.file.identity import read_identity
from stream_store.file.lock import WriterLock
from stream_store.file.mark import MARK_NAME, Mark, encode_mark, read_mark
from stream_store.file.recovery import create_segment
from stream_store.file.segment import (
    ASIDE_NAME,
    SEGMENT_HEADER_BYTES,
    Segment,
    decode_segment_header,
    encode_segment_header,
    index_path,
    list_segments,
    segment_path,
)

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from stream_store.file.frame import Frame


class CannotMend(OutboxError):
    """Nobody who was asked has the events of a hole."""


# A lost range, or a batch: what a hole is filled with.
Piece = EventBatch | tuple[int, int]
# All that lies in after < id <= through, each piece following the one before; else `CannotMend`.
Fetch = Callable[[int, int], list[Piece]]


@dataclass(frozen=True, slots=True)
class Sound:
    """A frame that can be read."""

    offset: int
    header: FrameHeader


@dataclass(frozen=True, slots=True)
class Hole:
    """IDs whose frames cannot be read, and the header of the one frame that they were in if it is whole."""

    after: int
    through: int
    offset: int
    what: str
    header: FrameHeader | None = None


@dataclass(slots=True)
class Surveyed:
    """A segment, frame by frame."""

    name: int
    path: Path
    parts: list[Sound | Hole] = field(default_factory=list)
    has_header: bool = True
    # Of a last segment: what a crash left of an append that was never acknowledged begins here.
    torn_at: int | None = None

    @property
    def holes(self) -> list[Hole]:
        return [part for part in self.parts if isinstance(part, Hole)]

    @property
    def is_damaged(self) -> bool:
        return bool(self.holes) or not self.has_header


@dataclass(frozen=True, slots=True)
class Mended:
    """What became of one hole; the fields are a contract of `--json`."""

    file: str
    offset: int
    what: str
    after: int
    through: int
    events: int
    # Why it could not be filled; None when it was, or would be.
    problem: str | None = None


def repair(folder: Path, fetch: Fetch, *, dry_run: bool = False) -> list[Mended]:
    """Mend what can be mended; what became of each hole, or would. Takes the writer lock unless it is a dry run."""
    folder = folder.absolute()
    if dry_run:
        return [
            mended
            for each in survey(folder)
            for mended in [*_header(each), *(told for told, _ in _filled(each, fetch))]
        ]
    with disk.reporting("repairing", folder):
        lock = WriterLock(folder)
        try:
            return _repair(folder, fetch)
        finally:
            lock.release()


def _repair(folder: Path, fetch: Fetch) -> list[Mended]:
    stream_id = read_identity(folder).uuid
    found: list[Mended] = []
    segments = survey(folder)
    for each in segments:
        if not each.is_damaged:
            continue
        filled = _filled(each, fetch)
        found += [*_header(each), *(mended for mended, _ in filled)]
        if all(mended.problem is None for mended, _ in filled):
            _seal(folder, each, segments[-1], stream_id)
            _put_aside(folder, each)
            _rewrite(folder, each, [pieces for _, pieces in filled], stream_id)
    return found


def survey(folder: Path) -> list[Surveyed]:
    """Every segment of the folder, frame by frame. `StreamCorrupt` when stream.json itself is damaged."""
    identity = read_identity(folder)
    mark = read_mark(folder, identity.uuid)
    names = [name for name in list_segments(folder) if name >= identity.trimmed_through]
    if not names or names[0] != identity.trimmed_through:
        names.insert(0, identity.trimmed_through)  # its file is missing: one hole
    if mark is not None and mark.segment > names[-1]:
        names.append(mark.segment)
    ends: list[int | None] = [*names[1:], None]
    return [_survey(folder, name, end, identity.uuid, mark) for name, end in zip(names, ends, strict=True)]


def _survey(folder: Path, name: int, end: int | None, stream_id: UUID, mark: Mark | None) -> Surveyed:
    """One segment; `end` is where the next one begins, None for the last."""
    result = Surveyed(name, segment_path(folder, name))
    durable = mark.offset if mark is not None and mark.segment == name else SEGMENT_HEADER_BYTES
    reached, offset, unread, what, header = name, SEGMENT_HEADER_BYTES, None, "", None
    with _mapped(result.path) as view:
        result.has_header = _has_header(view, name, stream_id)
        for found in _walk(view, seed_of(stream_id)):
            if isinstance(found, Sound):
                if found.header.prev_id < reached:
                    raise StreamCorrupt(
                        f"{result.path} at offset {found.offset}: the frame follows ID {found.header.prev_id}, what lies before "
                        f"it ends at {reached}; this cannot be mended, put the folder back from a copy"
                    )
                if found.header.prev_id > reached:
                    result.parts.append(
                        Hole(reached, found.header.prev_id, unread or offset, what or "a frame is missing", header)
                    )
                result.parts.append(found)
                reached, unread, what, header = found.header.last_id, None, "", None
                offset = found.offset + found.header.frame_bytes
            else:
                # Two in a row are one hole, of which no single header tells.
                header = found.header if unread is None else None
                unread, what = (found.offset, found.what) if unread is None else (unread, what)
    if end is None:
        tail = mark.tail if mark is not None and mark.segment == name else name
        if unread is not None and unread >= durable:
            result.torn_at = unread
        end = max(reached, tail)
    if reached < end:
        result.parts.append(Hole(reached, end, unread or offset, what or "the frames end here", header))
    return result


@dataclass(frozen=True, slots=True)
class _Unread:
    offset: int
    what: str
    header: FrameHeader | None


def _walk(view: memoryview, seed: int) -> Iterator[Sound | _Unread]:
    """The frames of a segment in order, and where one cannot be read."""
    offset, size = SEGMENT_HEADER_BYTES, len(view)
    while offset < size:
        header = None
        try:
            header = decode_header(view, offset, size, offset, seed)
            if not header.is_lost:
                decode_events(header, _payload(view, offset, header))
        except DamagedFrame as damage:
            yield _Unread(offset, str(damage), header)
            offset = _next_valid(view, offset + ALIGNMENT, seed)
        else:
            yield Sound(offset, header)
            offset += header.frame_bytes


def _next_valid(view: memoryview, start: int, seed: int) -> int:
    """The next frame that is whole, or the end."""
    for offset in range(start, len(view) - HEADER_BYTES + 1, ALIGNMENT):
        if bytes(view[offset : offset + len(MAGIC)]) == MAGIC:
            try:
                header = decode_header(view, offset, len(view), offset, seed)
                if not header.is_lost:
                    decode_events(header, _payload(view, offset, header))
            except DamagedFrame:
                continue
            return offset
    return len(view)


def _payload(view: memoryview, offset: int, header: FrameHeader) -> pa.Buffer:
    # A copy: what is decoded must not keep the file mapped.
    return pa.py_buffer(bytes(view[offset + HEADER_BYTES : offset + header.frame_bytes]))


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file; none when it is missing."""
    size = path.stat().st_size if path.exists() else 0
    if not size:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _has_header(view: memoryview, name: int, stream_id: UUID) -> bool:
    try:
        return decode_segment_header(bytes(view[:SEGMENT_HEADER_BYTES])) == (stream_id, name)
    except DamagedFrame:
        return False


def _header(segment: Surveyed) -> list[Mended]:
    """A segment's own header follows from its name; it needs nobody."""
    if segment.has_header:
        return []
    return [Mended(str(segment.path), 0, "the segment header is damaged or missing", segment.name, segment.name, 0)]


def _filled(segment: Surveyed, fetch: Fetch) -> list[tuple[Mended, list[Piece]]]:
    """For each hole of a segment, what fills it."""
    found = []
    for hole in segment.holes:
        problem, pieces = None, []
        try:
            pieces = fetch(hole.after, hole.through)
            _require_fit(hole, pieces)
        except CannotMend as error:
            problem = str(error)
        events = sum(len(piece) for piece in pieces if isinstance(piece, EventBatch))
        mended = Mended(str(segment.path), hole.offset, hole.what, hole.after, hole.through, events, problem)
        found.append((mended, pieces))
    return found


def _require_fit(hole: Hole, pieces: list[Piece]) -> None:
    """Refuse what does not lie in the hole exactly, or is not what the frame's own header says of it."""
    at = hole.after
    for piece in pieces:
        before, last = (piece.prev_id, piece.last_id) if isinstance(piece, EventBatch) else piece
        if before != at:
            raise CannotMend(f"what there is of the IDs {hole.after + 1} to {hole.through} does not follow ID {at}")
        at = last
    if at != hole.through:
        raise CannotMend(f"what there is of the IDs {hole.after + 1} to {hole.through} ends at ID {at}")
    batches = [piece for piece in pieces if isinstance(piece, EventBatch)]
    if hole.header is not None and not hole.header.is_lost and hole.header.last_id == hole.through:
        first = batches[0].first_id if batches else None
        if first != hole.header.first_id or sum(map(len, batches)) != hole.header.events:
            raise CannotMend(
                f"the damaged frame had {hole.header.events} events from ID {hole.header.first_id} on, what there is has "
                f"{sum(map(len, batches))} from ID {first} on: it is no copy of this stream"
            )


def _seal(folder: Path, segment: Surveyed, last: Surveyed, stream_id: UUID) -> None:
    """Move the mark behind the segment, so that it may be put in place with other offsets.

    Behind the last one a new one is made for that. A crash in between leaves an empty last
    segment and an old mark, so the mark is looked at whichever segment it is.
    """
    end = last.name
    if segment is last:
        part = segment.parts[-1] if segment.parts else None
        end = segment.name if part is None else part.through if isinstance(part, Hole) else part.header.last_id
        if end == segment.name:
            return  # nothing but its header was damaged
        os.close(create_segment(folder, end, stream_id).fd)
    mark = read_mark(folder, stream_id)
    if mark is not None and mark.segment <= segment.name:
        os.close(disk.replace(folder / MARK_NAME, [encode_mark(Mark(end, SEGMENT_HEADER_BYTES, end), stream_id)]))


def _put_aside(folder: Path, segment: Surveyed) -> None:
    if not segment.path.exists():
        return
    aside = folder / ASIDE_NAME
    disk.make_folder(aside)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    target = aside / f"{segment.path.stem}-{moment}{segment.path.suffix}"
    temporary = target.with_name(target.name + disk.TEMPORARY)
    shutil.copyfile(segment.path, temporary)
    with temporary.open("rb") as file:
        disk.sync(file.fileno())
    disk.rename(temporary, target)
    disk.sync_folder(aside)


def _rewrite(folder: Path, segment: Surveyed, fillings: list[list[Piece]], stream_id: UUID) -> None:
    with _mapped(segment.path) as view:
        os.close(disk.replace(segment.path, _content(segment, fillings, view, stream_id)))
    whole = Segment(folder, segment.name, stream_id)
    size_bytes = whole.size_bytes()
    index = whole.index(size_bytes, sealed=False)
    os.close(disk.replace(index_path(folder, segment.name), [index.encode(size_bytes, stream_id)]))


def _content(
    segment: Surveyed, fillings: list[list[Piece]], view: memoryview, stream_id: UUID
) -> Iterator[bytes | pa.Buffer]:
    seed = seed_of(stream_id)
    offset = SEGMENT_HEADER_BYTES
    pieces = iter(fillings)
    yield encode_segment_header(segment.name, stream_id)
    for part in segment.parts:
        frames: list[Callable[[int], Frame]]
        if isinstance(part, Sound):
            frames = [lambda at, part=part: move(part.header, _payload(view, part.offset, part.header), at, seed)]  # type: ignore[misc]
        else:
            frames = [lambda at, piece=piece: _encoded(piece, at, seed) for piece in next(pieces)]  # type: ignore[misc]
        for make in frames:
            frame = make(offset)
            offset += frame.header.frame_bytes
            yield from frame.parts


def _encoded(piece: Piece, offset: int, seed: int) -> Frame:
    return encode_events(piece, offset, seed) if isinstance(piece, EventBatch) else encode_lost(*piece, offset, seed)
