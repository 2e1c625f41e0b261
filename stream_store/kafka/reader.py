"""Finding and reading events: by ID, by time, in ranges. Offsets are not IDs, so places are looked up and remembered."""

from __future__ import annotations

import threading
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from outbox.errors import StreamCorrupt, Trimmed
from stream_store.kafka.partition import BULK_RECORDS
from stream_store.kafka.records import chained, decode, place_of, size_bytes_of
from stream_store.kafka.state import Place, Seen, tail_of, trimmed_of
from stream_store.stream import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox.batch import EventBatch
    from stream_store.kafka.partition import Partition
    from stream_store.kafka.state import State

# So many records are read and dropped rather than looked into once more.
NEAR_RECORDS = BULK_RECORDS
CUT_RECORDS = 65_536
MARKS_MAX = 4_096

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reader:
    """Reads the events of one topic. May be used from several threads."""

    def __init__(self, events: Partition, url: str, state: Callable[..., State]) -> None:
        self._events = events
        self._url = url
        # The stream's state: as it was known lately, or `state(fresh=True)`.
        self._state = state
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._first: tuple[int, Place] | None = None
        # (ID, offset): what is at or below the ID lies before the offset, and what is above it does not.
        self._marks: list[tuple[int, int]] = []

    def look(self) -> Seen:
        """What the topic holds now."""
        low, end = self._events.bounds()
        known = self._seen
        if known is not None and known.end == end:
            last = known.last if known.last and known.last.offset >= low else None
        else:
            if known is not None and end < known.end:
                self.forget_marks()  # truncated, or made anew
                self._first = None
            message = self._events.last(low, end)
            last = place_of(message, self._events.topic) if message is not None else None
        self._seen = Seen(low, end, last)
        return self._seen

    def tail(self) -> int:
        seen = self.look()
        return tail_of(seen, self._state(fresh=seen.last is None), self._url)

    def trimmed_through(self, seen: Seen | None = None) -> int:
        seen = seen or self.look()
        if seen.last is not None and (self._first is None or self._first[0] != seen.low):
            message = self._events.first(seen.low, seen.end)
            self._first = (seen.low, place_of(message, self._events.topic)) if message is not None else None
        first = self._first[1] if self._first and seen.last is not None else None
        return trimmed_of(seen, first, self._state(fresh=seen.last is None), self._url)

    def read(self, after: int, through: int | None) -> Iterator[EventBatch]:
        seen = self.look()
        last = self._last(seen, through)
        self._require_held(after, last, seen)
        return self._read(after, last, seen)

    def table(self, first: int, last: int) -> pa.Table:
        """The rows with first <= id <= last."""
        return pa.Table.from_batches([batch.rows for batch in self.read(first - 1, last)], SCHEMA)

    def cuts(self, after: int, through: int) -> list[Cut]:
        """Every so many records, at the same offsets whoever asks. Their sizes are guessed from one record each."""
        seen = self.look()
        last = self._last(seen, through)
        self._require_held(after, last, seen)
        if after >= last:
            return []
        offset = self._locate(after, seen)
        found: list[Cut] = []
        reached, per_record = after, 0
        for edge in range((offset // CUT_RECORDS + 1) * CUT_RECORDS, seen.end, CUT_RECORDS):
            message = self._events.first(edge, seen.end)
            if message is None:
                break
            place, per_record = place_of(message, self._events.topic), size_bytes_of(message)
            self.mark(place.prev_id, place.offset)
            if place.prev_id >= last:
                break
            if place.prev_id > reached:
                found.append(Cut(place.prev_id, max(1, (edge - offset) * per_record)))
                reached, offset = place.prev_id, edge
        return [*found, Cut(last, self._rest_bytes(seen, offset, per_record))]

    def _rest_bytes(self, seen: Seen, offset: int, per_record: int) -> int:
        records = min(seen.end - offset, CUT_RECORDS)
        if records > 0 and not per_record:
            message = self._events.first(offset, seen.end)
            per_record = size_bytes_of(message) if message is not None else 0
        return max(0, records * per_record)

    def size_bytes(self, seen: Seen) -> int:
        """About as many as the topic holds: Kafka's protocol for clients does not say it."""
        message = self._events.last(seen.low, seen.end)
        return size_bytes_of(message) * (seen.end - seen.low) if message is not None else 0

    def find(self, time: datetime) -> int:
        """A record's timestamp is its event's time in milliseconds, so that Kafka's index says where to begin.

        It answers the first record at or after a timestamp, whatever the order of the timestamps is, and that may
        be the marker of a commit. Where the front was deleted it may answer that there is none (seen on 4.3).
        """
        seen = self.look()
        wanted_us = (time - _EPOCH) // timedelta(microseconds=1)
        offset: int | None = seen.low
        if wanted_us >= 1000:  # what is older than Kafka's times has the first of them
            offset = self._events.offset_at(wanted_us // 1000)
        if offset is None and seen.low and self._events.newest_ms() >= wanted_us // 1000:
            offset = seen.low
        if offset is not None and seen.last is not None:
            moment = pa.scalar(wanted_us, pa.int64())
            for messages in self._events.read(max(offset, seen.low), seen.last.offset + 1, "probe"):
                _, rows = decode(messages, self._events.topic)
                at = pc.index(pc.greater_equal(rows.column("time").cast(pa.int64()), moment), True).as_py()
                if at >= 0:
                    return int(rows.column(0)[at].as_py())
        return tail_of(seen, self._state(fresh=True), self._url) + 1

    def offset_behind(self, through: int) -> int | None:
        """The offset behind the events through an ID; None when there are none."""
        seen = self.look()
        if seen.last is None or through <= self.trimmed_through(seen):
            return None
        if through >= seen.last.id:
            return seen.end
        for messages in self._events.read(self._locate(through, seen), seen.end, "probe"):
            for message in messages:
                place = place_of(message, self._events.topic)
                if place.id > through:
                    return place.offset
        return None

    def _last(self, seen: Seen, through: int | None) -> int:
        tail = tail_of(seen, self._state(fresh=seen.last is None), self._url)
        if through is not None and through > tail:
            tail = tail_of(seen, self._state(fresh=True), self._url)
        return tail if through is None else min(through, tail)

    def _require_held(self, after: int, last: int, seen: Seen) -> None:
        if after >= last:
            return
        trimmed_through = self.trimmed_through(seen)
        if after < trimmed_through:
            raise self._trimmed(after, trimmed_through)

    def _trimmed(self, after: int, trimmed_through: int) -> Trimmed:
        return Trimmed(
            f"{self._url} no longer holds what follows ID {after}: it was trimmed through ID {trimmed_through}; read from ID "
            f"{trimmed_through + 1}"
        )

    def _read(self, after: int, last: int, seen: Seen) -> Iterator[EventBatch]:
        if after >= last or seen.last is None or after >= seen.last.id:
            return
        reached, begun = after, False
        try:
            for batch in self._batches(self._locate(after, seen), seen.last.offset + 1, last - after):
                if batch.last_id <= after:
                    continue
                part = batch.after(after)
                assert part is not None
                if part.first_id > last:
                    return
                self._require_chain(reached, part.prev_id, begun)
                begun, reached = True, part.last_id
                cut = part.through(last)
                assert cut is not None
                yield cut
                if reached >= last:
                    return
        except Trimmed as error:
            raise self._trimmed(reached, self.trimmed_through()) from error
        if reached < seen.last.id:
            self.forget_marks()
            raise StreamCorrupt(
                f"{self._url} ended with ID {seen.last.id} when the read began, and the records end at {reached}: the topic was "
                "truncated or made anew meanwhile"
            )

    def _batches(self, offset: int, end: int, ids: int) -> Iterator[EventBatch]:
        for messages in self._events.read(offset, end, "probe" if ids < NEAR_RECORDS else "bulk"):
            previous, rows = decode(messages, self._events.topic)
            yield from chained(previous, rows)
            self.mark(int(rows.column(0)[-1].as_py()), (messages[-1].offset() or 0) + 1)

    def _require_chain(self, reached: int, prev_id: int, begun: bool) -> None:
        """What is read next follows what was read, or a range that was recorded as lost lies between.

        The first event may follow one below `reached`, which is dead then.
        """
        if prev_id == reached or (not begun and prev_id < reached):
            return
        before = self._state(fresh=True).before_lost(prev_id)
        if before == reached or (not begun and before <= reached):
            return
        self.forget_marks()
        raise StreamCorrupt(
            f"{self._url}: behind ID {reached} comes an event that follows {prev_id}, and nothing was recorded as lost between them: "
            "somebody else has written to the topic, or records were deleted from its middle"
        )

    # ---- places

    def mark(self, event_id: int, offset: int) -> None:
        """Remember that what is at or below an ID lies before an offset, and nothing else does."""
        with self._lock:
            at = bisect_right(self._marks, (event_id, offset))
            if at and self._marks[at - 1][0] == event_id:
                return
            self._marks.insert(at, (event_id, offset))
            if len(self._marks) > MARKS_MAX:
                del self._marks[1:-1:2]

    def forget_marks(self) -> None:
        with self._lock:
            self._marks.clear()

    def _locate(self, after: int, seen: Seen) -> int:
        """An offset from which the first event above `after` is not far: by known places, guesses and halving."""
        with self._lock:
            at = bisect_right(self._marks, (after, seen.end))
            below = self._marks[at - 1] if at and self._marks[at - 1][1] >= seen.low else (0, seen.low)
            above = self._marks[at] if at < len(self._marks) and self._marks[at][1] <= seen.end else None
        if seen.last is None or below[0] == after:
            return below[1]
        high_id, high = above or (seen.last.id, seen.end)
        low_id, low = below
        halve = False
        while high - low > NEAR_RECORDS:
            share = (after - low_id) / max(1, high_id - low_id)
            # A guess from the IDs is good when few are dead; every other time the middle is taken.
            middle = (low + high) // 2 if halve else low + int((high - low) * share)
            middle = min(max(middle - NEAR_RECORDS // 2, low + 1), high - 1) if not halve else middle
            halve = not halve
            message = self._events.first(middle, high)
            if message is None:
                high = middle
                continue
            place = place_of(message, self._events.topic)
            self.mark(place.prev_id, place.offset)
            if place.prev_id <= after:
                low_id, low = place.prev_id, place.offset
            else:
                high_id, high = place.prev_id, middle
        return low
