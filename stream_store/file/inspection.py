"""Reading every frame of every segment: `outbox stream check`.

It goes on behind damage: past a payload by the length in its header, past a damaged header by
looking for the next valid frame. It takes no lock and reads up to the mark, so it may run
beside a writer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from outbox.errors import OutboxError, StreamCorrupt
from stream_store.file.frame import DamagedFrame, decode_events
from stream_store.file.identity import IDENTITY_NAME, read_identity
from stream_store.file.mark import MARK_NAME, Mark, is_relaxed, settled_mark
from stream_store.file.recovery import begun_in_vain
from stream_store.file.segment import (
    SEGMENT_HEADER_BYTES,
    Placed,
    Segment,
    decode_segment_header,
    list_segments,
    segment_path,
)
from stream_store.redaction import is_redacted
from stream_store.stream import Damage, StreamCheck

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID


@dataclass(slots=True)
class _Tally:
    folder: Path
    stream_id: UUID | None = None
    reached: int = 0
    trimmed_through: int = 0
    frames: int = 0
    events: int = 0
    dead_ids: int = 0
    lost_ids: int = 0
    redacted: int = 0
    compacted: bool = False
    size_bytes: int = 0
    unacknowledged_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)

    def add_damage(self, path: Path, offset: int, what: str) -> None:
        self.damage.append(Damage(str(path), offset, what))


def inspect(folder: Path) -> StreamCheck:
    """What the folder holds, and every place where it cannot be read."""
    folder = folder.absolute()
    names = list_segments(folder) if folder.is_dir() else []
    tally = _Tally(folder)
    identity = None
    try:
        identity = read_identity(folder)
        tally.stream_id, tally.trimmed_through = identity.uuid, identity.trimmed_through
        tally.compacted = identity.compacted
    except OutboxError as error:
        if not names:
            raise
        tally.add_damage(folder / IDENTITY_NAME, 0, str(error))
        tally.stream_id, tally.trimmed_through = _owner(folder, names), names[0]
    # The mark before the segments: what it covers is in the files that are looked at afterwards.
    mark = _mark(tally)
    # What lies before the trimmed range is left over from a trim that a crash cut short.
    names = [name for name in list_segments(folder) if name >= tally.trimmed_through]
    if identity is not None and begun_in_vain(folder, identity):
        names = names[:1]
    tally.reached = tally.trimmed_through
    if tally.stream_id is not None:
        for name in names:
            durable = mark.offset if mark and mark.segment == name else SEGMENT_HEADER_BYTES
            _inspect_segment(tally, name, tally.stream_id, durable if name == names[-1] else None)
    if mark and mark.tail > tally.reached:
        path = segment_path(folder, mark.segment)
        tally.add_damage(path, mark.offset, f"it was durable through ID {mark.tail}, the frames end at {tally.reached}")
    return StreamCheck(
        url=folder.as_uri(),
        stream_id=str(tally.stream_id) if tally.stream_id else None,
        tail=tally.reached,
        trimmed_through=tally.trimmed_through,
        segments=len(names),
        frames=tally.frames,
        events=tally.events,
        dead_ids=tally.dead_ids,
        lost_ids=tally.lost_ids,
        size_bytes=tally.size_bytes,
        unacknowledged_bytes=tally.unacknowledged_bytes,
        damage=tuple(tally.damage),
        redacted=tally.redacted,
        compacted=tally.compacted,
    )


def _owner(folder: Path, names: list[int]) -> UUID | None:
    """The stream that the segments say they belong to, where stream.json cannot be asked."""
    for name in names:
        try:
            return decode_segment_header(segment_path(folder, name).read_bytes()[:SEGMENT_HEADER_BYTES])[0]
        except (OSError, DamagedFrame):
            continue
    return None


def _mark(tally: _Tally) -> Mark | None:
    if tally.stream_id is None:
        return None
    try:
        return settled_mark(tally.folder, tally.stream_id)
    except StreamCorrupt as error:
        tally.add_damage(tally.folder / MARK_NAME, 0, str(error))
        return None


def _inspect_segment(tally: _Tally, name: int, stream_id: UUID, durable: int | None) -> None:
    """Read one segment; `durable` is where an unacknowledged append may begin, None when it is sealed."""
    path = segment_path(tally.folder, name)
    try:
        segment = Segment(tally.folder, name, stream_id)
    except FileNotFoundError:
        trimmed_through = read_identity(tally.folder).trimmed_through
        if name < trimmed_through:  # while we were reading
            tally.reached = tally.trimmed_through = trimmed_through
        else:
            tally.add_damage(path, 0, "the file was removed while it was to be read")
        return
    except StreamCorrupt as error:
        tally.add_damage(path, 0, str(error.__cause__ or error))
        tally.size_bytes += path.stat().st_size
        return
    if name != tally.reached:
        tally.add_damage(path, 0, f"the segment follows ID {name}, what lies before it ends at ID {tally.reached}")
        tally.reached = name
    size_bytes = segment.size_bytes()
    tally.size_bytes += size_bytes
    offset = SEGMENT_HEADER_BYTES
    while offset < size_bytes:
        frame = None
        try:
            for frame in segment.frames(offset, size_bytes):
                offset = frame.offset
                _take(tally, path, frame)
                offset += frame.header.frame_bytes
        except (DamagedFrame, StreamCorrupt) as error:
            behind = segment.next_valid(offset, size_bytes)
            # Whole frames may lie behind torn ones where nothing was synced.
            torn = behind is None or is_relaxed(tally.folder)
            if torn and durable is not None and offset >= durable:
                tally.unacknowledged_bytes = size_bytes - offset
                return
            unread_bytes = (behind or size_bytes) - offset
            tally.add_damage(path, offset, f"{error.__cause__ or error}; {unread_bytes} bytes cannot be read")
            if isinstance(error, DamagedFrame) and frame is not None:
                tally.reached = frame.header.last_id  # the header is whole: no need to report a gap as well
            offset = behind or size_bytes


def _take(tally: _Tally, path: Path, frame: Placed) -> None:
    header = frame.header
    redacted = 0
    if not header.is_lost:
        batch = decode_events(header, frame.payload)
        if len(batch) > 1 and not pc.all(pc.less(batch.ids[:-1], batch.ids[1:])).as_py():
            raise DamagedFrame(f"the IDs {header.first_id} to {header.last_id} do not strictly increase")
        redacted = pc.sum(is_redacted(batch.rows)).as_py()
    if header.prev_id != tally.reached:
        tally.add_damage(
            path, frame.offset, f"the frame follows ID {header.prev_id}, what lies before it ends at ID {tally.reached}"
        )
    tally.frames += 1
    tally.reached = header.last_id
    ids = header.last_id - header.prev_id
    if header.is_lost:
        tally.lost_ids += ids
    else:
        tally.events += header.events
        tally.redacted += redacted
        tally.dead_ids += ids - header.events
