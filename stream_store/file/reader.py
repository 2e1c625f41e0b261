"""Reading a stream folder while another process may be writing it.

What may be read ends at the published mark (mark.py). A name may come to stand for another
file: a writer that recovers puts a copy of the last segment in its place, and a sealed
segment is put in its place with larger frames. So the order of looking matters:

- the mark is read first and the file is looked up by name afterwards. A mark is published
  only when the file that then has the name holds all that the mark covers, and later files
  of that name hold at least as much;
- the mark's offset counts only while the segment is the last one. A segment is put in place
  with larger frames only after a mark with a higher segment was published and synced; so
  when the mark still names the segment after the file was opened, its offsets are the
  file's own.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from outbox.errors import OutboxError, StreamCorrupt, StreamUnavailable, Trimmed
from stream_store.file import disk
from stream_store.file.identity import read_identity
from stream_store.file.mark import Mark, read_mark
from stream_store.file.segment import SEGMENT_HEADER_BYTES, Placed, Segment, list_segments, segment_path
from stream_store.stream import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from outbox.batch import EventBatch

_OPEN_SEGMENTS_MAX = 4
_LOOKS_MAX = 100


def published_mark(folder: Path, stream_id: UUID) -> Mark:
    """The mark, or what is durable for sure without one: every segment before the last."""
    mark = read_mark(folder, stream_id)
    if mark is not None:
        return mark
    segments = list_segments(folder)
    if not segments:
        raise StreamCorrupt(f"{folder} has a stream.json and no segments: put the folder back from a copy")
    return Mark(segments[-1], SEGMENT_HEADER_BYTES, segments[-1])


class _Look(NamedTuple):
    segment: Segment
    limit: int
    sealed: bool


class Reader:
    """The reading half of a file stream. `position` says how far the stream is durable."""

    def __init__(self, folder: Path, stream_id: UUID, position: Callable[[], Mark]) -> None:
        self._folder = folder
        self._stream_id = stream_id
        self._position = position
        self._names: list[int] = []
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def read(self, after: int, through: int | None) -> Iterator[EventBatch]:
        """See `Stream.read`. Tail and trimmed range are looked up now, not at the first batch."""
        with disk.reporting("reading", self._folder):
            mark = self._position()
            last = mark.tail if through is None else min(through, mark.tail)
            if after >= last:
                return iter(())
            names = self._segments(mark, after)
            return self._batches(self._look_up(names[0]), names, after, last)

    def table(self, first: int, last: int) -> pa.Table:
        """The rows with first <= id <= last, as `judge` compares them."""
        return pa.Table.from_batches([batch.rows for batch in self.read(first - 1, last)], SCHEMA)

    def cuts(self, after: int, through: int) -> list[Cut]:
        """See `Stream.cuts`. An index entry is a unit: about 64 KiB, or one large frame.

        An index that is older than its tidied segment names ends of frames that are no more.
        That does no harm: any ID is good for a cut.
        """
        with disk.reporting("reading", self._folder):
            mark = self._position()
            last = min(through, mark.tail)
            found: list[Cut] = []
            if after >= last:
                return found
            for name in self._segments(mark, after):
                if name >= last:
                    break
                look = self._look_up(name)
                with self._lock:
                    units = look.segment.index(look.limit, sealed=look.sealed).units(look.limit)
                found += [Cut(min(end, last), size) for start, end, size in units if end > after and start < last]
            return found

    def find(self, time_us: int) -> int:
        """See `Stream.find`. Skips by the time ranges of segments, index entries and frames."""
        with disk.reporting("reading", self._folder):
            return self._find(time_us)

    def _find(self, time_us: int) -> int:
        mark = self._position()
        for name in self._segments(mark, None):
            try:
                look = self._look_up(name)
            except Trimmed:
                continue
            with self._lock:
                below = look.segment.index(look.limit, sealed=look.sealed).seek_time(time_us)
            if below is None:
                continue
            for frame in self._frames(look, below):
                if frame.header.time_max_us >= time_us:
                    rows = look.segment.events(frame).rows
                    at = pc.index(pc.greater_equal(rows.column("time").cast(pa.int64()), time_us), True).as_py()
                    return min(int(rows.column(0)[at].as_py()), mark.tail + 1)
        return mark.tail + 1

    def size_bytes(self) -> tuple[int, int]:
        """How many segments there are, and their bytes."""
        sizes = []
        for name in list_segments(self._folder):
            with suppress(FileNotFoundError):  # trimmed while we were looking
                sizes.append(segment_path(self._folder, name).stat().st_size)
        return len(sizes), sum(sizes)

    def _batches(self, look: _Look, names: list[int], after: int, last: int) -> Iterator[EventBatch]:
        reached = names[0]
        for name in names:
            if name >= last:
                break
            if name != names[0]:
                with disk.reporting("reading", self._folder):
                    look = self._look_up(name)
            if name != reached:
                raise look.segment.corrupt(0, f"the segment follows ID {name}, the one before ends at {reached}")
            for frame in self._frames(look, after):
                if frame.header.prev_id >= last:
                    return
                reached = frame.header.last_id
                if not frame.header.is_lost:
                    batch = look.segment.events(frame).after(after)
                    if batch is not None and reached > last:
                        batch = batch.through(last)
                    if batch is not None:
                        yield batch
        if reached < last:
            raise StreamCorrupt(
                f"{self._folder} was durable through ID {last}, its frames end at {reached}: run `outbox stream check` "
                "and put the folder back from a copy"
            )

    def _frames(self, look: _Look, after: int) -> Iterator[Placed]:
        """The frames of a segment that end above `after`, each following the one before."""
        with self._lock:
            start = look.segment.seek(after, look.limit, sealed=look.sealed)
        if start is None:
            return
        offset, reached = start
        for frame in look.segment.frames(offset, look.limit):
            if frame.header.prev_id != reached:
                raise look.segment.corrupt(
                    frame.offset, f"the frame follows ID {frame.header.prev_id}, the one before ends at {reached}"
                )
            reached = frame.header.last_id
            if reached > after:
                yield frame

    def _segments(self, mark: Mark, after: int | None) -> list[int]:
        """The segments from the one that goes on behind `after` to the one being written."""
        for _ in range(_LOOKS_MAX):
            with self._lock:
                for names in self._known_then_listed():
                    first = 0 if after is None else bisect_right(names, after) - 1
                    end = bisect_right(names, mark.segment)
                    if first >= 0 and end and names[end - 1] == mark.segment:
                        return names[first:end]
            if after is not None and self._names and after < self._names[0]:
                raise self._gone(after)
            if self._position() == mark:
                raise StreamCorrupt(
                    f"{segment_path(self._folder, mark.segment)} is missing, the stream was durable through ID "
                    f"{mark.tail} in it: put the folder back from a copy"
                )
            mark = self._position()  # sealed and trimmed since we looked
        raise StreamUnavailable(f"the segments of {self._folder} change faster than they can be listed: try again")

    def _known_then_listed(self) -> Iterator[list[int]]:
        yield self._names
        self._names = list_segments(self._folder)
        yield self._names

    def _look_up(self, name: int) -> _Look:
        """A segment and how far it may be read, by the order that the module's head explains."""
        for _ in range(_LOOKS_MAX):
            before = self._position()
            try:
                segment = self._file(name)
            except FileNotFoundError:
                raise self._gone(name) from None
            if before.segment > name:
                return _Look(segment, segment.size_bytes(), sealed=True)
            if before.segment == name == self._position().segment:
                return _Look(segment, before.offset, sealed=False)
        raise StreamUnavailable(f"{segment_path(self._folder, name)} changes faster than it can be opened: try again")

    def _file(self, name: int) -> Segment:
        with self._lock:
            segment = self._open.get(name)
            if segment is None or not segment.is_current():
                segment = self._open[name] = Segment(self._folder, name, self._stream_id)
            self._open.move_to_end(name)
            while len(self._open) > _OPEN_SEGMENTS_MAX:
                self._open.popitem(last=False)
            return segment

    def _gone(self, after: int) -> OutboxError:
        """Why what follows `after` is not there: it was trimmed, or somebody removed it."""
        trimmed_through = read_identity(self._folder).trimmed_through
        if after < trimmed_through:
            return Trimmed(
                f"{self._folder} no longer holds what follows ID {after}: it was trimmed through ID {trimmed_through}; "
                f"read from ID {trimmed_through + 1}, or from a copy of the stream"
            )
        return StreamCorrupt(
            f"the segment of {self._folder} that holds what follows ID {after} is missing, and the stream was trimmed "
            f"only through ID {trimmed_through}: put the folder back from a copy"
        )
