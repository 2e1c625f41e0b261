"""Reading a Redis stream: by pages, each decoded while the server makes the next."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from redis.exceptions import ResponseError

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import StreamCorrupt, Trimmed
from stream_store.redis.decoding import decode
from stream_store.redis.link import Link
from stream_store.redis.refusal import as_ours
from stream_store.stream import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stream_store.redis.address import Address
    from stream_store.redis.decoding import Entry, Page
    from stream_store.redis.facts import Facts

# A page is so many entries, or about so many bytes: the server does nothing else while it makes one.
PAGE_ENTRIES_FIRST = 200
PAGE_ENTRIES_MAX = 5_000
PAGE_BYTES = 2 << 20
_SPARE_LINKS_MAX = 2
_SAMPLE_EVERY = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reader:
    """The reading half of a Redis stream. `facts` looks the info hash up anew."""

    def __init__(self, address: Address, facts: Callable[[], Facts]) -> None:
        self._address = address
        self._url = address.url
        self._keys = address.keys
        self._facts = facts
        self._spare: list[Link] = []
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, []
        for link in spare:
            link.close()

    def read(self, after: int, through: int | None) -> Iterator[EventBatch]:
        """See `Stream.read`. Tail and trimmed range are looked up now, not at the first batch."""
        facts = self._facts()
        last = facts.tail if through is None else min(through, facts.tail)
        if after >= last:
            return iter(())
        self._require_held(facts, after)
        return self._batches(after, last, facts)

    def table(self, first: int, last: int) -> pa.Table:
        """The rows with first <= id <= last, as `judge` compares them."""
        return pa.Table.from_batches([batch.rows for batch in self.read(first - 1, last)], SCHEMA)

    def cuts(self, after: int, through: int) -> list[Cut]:
        """See `Stream.cuts`. The append script notes a unit about every thousand events."""
        facts = self._facts()
        last = min(through, facts.tail)
        if after >= last:
            return []
        self._require_held(facts, after)
        found: list[Cut] = []
        link = self._borrow()
        with self._returning(link):
            # Scores are floating-point numbers: IDs above 2^53 are compared here.
            units = link.call("ZRANGEBYSCORE", self._keys.units, str(after), "+inf")
        for end, size_bytes, _ in (_unit(member) for member in units):
            if end > after:
                found.append(Cut(min(end, last), size_bytes))
                if end >= last:
                    return found
        return [*found, Cut(last, facts.unit_bytes)]

    def find(self, time: datetime) -> int:
        """See `Stream.find`. A unit knows the latest time of all events through it, so units can be bisected."""
        time_us = (time - _EPOCH) // timedelta(microseconds=1)
        facts = self._facts()
        after = max(self._ends_before(time_us), facts.trimmed_through)
        for batch in self.read(after, facts.tail):
            at = pc.index(pc.greater_equal(batch.rows.column("time").cast(pa.int64()), time_us), True).as_py()
            if at >= 0:
                return int(batch.ids[at].as_py())
        return facts.tail + 1

    def _ends_before(self, time_us: int) -> int:
        """The last ID of the last unit through which every event is earlier."""
        link = self._borrow()
        with self._returning(link):
            low, high, end = 0, int(link.call("ZCARD", self._keys.units)), 0
            while low < high:
                middle = (low + high) // 2
                members = link.call("ZRANGE", self._keys.units, middle, middle)
                if members and _unit(members[0])[2] < time_us:
                    low, end = middle + 1, _unit(members[0])[0]
                else:
                    high = middle
            return end

    def _batches(self, after: int, last: int, facts: Facts) -> Iterator[EventBatch]:
        reached: int | None = None
        for page in self._pages(after, last):
            for batch in chained(page):
                if not self._follows(batch.prev_id, reached, after, facts):
                    self._explain(after if reached is None else reached, batch.prev_id)
                reached = batch.last_id
                yield batch
        behind = after if reached is None else reached
        if last == facts.tail and behind < last and not facts.is_lost(behind, last):
            self._explain(behind, last)

    def _follows(self, prev_id: int, reached: int | None, after: int, facts: Facts) -> bool:
        """Whether nothing is missing before an event; the first may follow an ID below a dead `after`."""
        if reached is None:
            return prev_id <= after or facts.is_lost(after, prev_id)
        return prev_id == reached or facts.is_lost(reached, prev_id)

    def _explain(self, behind: int, through: int) -> None:
        """Raise why events are missing: trimmed while they were read, or removed by somebody."""
        self._require_held(self._facts(), behind)
        raise StreamCorrupt(
            f"{self._url}: the events behind ID {behind} through ID {through} are missing, and were neither trimmed nor "
            "recorded as lost: somebody has removed entries; see `outbox stream check`"
        )

    def _require_held(self, facts: Facts, after: int) -> None:
        if after < facts.trimmed_through:
            raise Trimmed(
                f"{self._url} no longer holds what follows ID {after}: it was trimmed through ID {facts.trimmed_through}; "
                f"read from ID {facts.trimmed_through + 1}, or from a copy of the stream"
            )

    def _pages(self, after: int, last: int) -> Iterator[Page]:
        """The entries with after < id <= last. The next page is asked for before this one is decoded."""
        count = PAGE_ENTRIES_FIRST
        link = self._borrow()
        with self._returning(link):
            link.send(link.pack("XRANGE", self._keys.events, f"({after}-0", f"{last}-0", "COUNT", count))
            more = True
            while more:
                entries = link.receive()
                if isinstance(entries, ResponseError):
                    raise as_ours(entries, "reading", self._url)
                more = len(entries) == count
                if more:
                    count = _next_count(entries)
                    start = entries[-1][0].decode()
                    link.send(link.pack("XRANGE", self._keys.events, f"({start}", f"{last}-0", "COUNT", count))
                if entries:
                    yield decode(entries, self._url)

    def _borrow(self) -> Link:
        with self._lock:
            return self._spare.pop() if self._spare else Link(self._address)

    def _returning(self, link: Link) -> _Returning:
        return _Returning(self, link)

    def take_back(self, link: Link) -> None:
        with self._lock:
            if not self._closed and len(self._spare) < _SPARE_LINKS_MAX:
                self._spare.append(link)
                return
        link.close()


class _Returning:
    """Gives a link back when all is answered. One that still has an answer coming is closed."""

    def __init__(self, reader: Reader, link: Link) -> None:
        self._reader = reader
        self._link = link

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self._reader.take_back(self._link)
        else:
            self._link.close()


def chained(page: Page) -> Iterator[EventBatch]:
    """The events in batches inside which each follows its neighbour."""
    rows, previous = page.rows, page.previous
    ids = rows.column(0)
    start = 0
    while start < len(ids):
        broken = pc.index(pc.equal(previous[start + 1 :], ids[start:-1]), False).as_py()
        end = len(ids) if broken < 0 else start + 1 + broken
        prev_id = int(previous[start].as_py())
        if not prev_id < int(ids[start].as_py()):
            raise StreamCorrupt(f"event {ids[start]} of the stream claims to follow {prev_id}: somebody has written it")
        yield EventBatch(prev_id, rows.slice(start, end - start))
        start = end


def _next_count(entries: list[Entry]) -> int:
    sample = entries[::_SAMPLE_EVERY]
    size_bytes = sum(map(len, chain.from_iterable(entry[1] for entry in sample))) / len(sample)
    return max(1, min(PAGE_ENTRIES_MAX, int(PAGE_BYTES / (size_bytes + 100))))


def _unit(member: bytes) -> tuple[int, int, int]:
    """A unit's last ID, its bytes, and the latest time of all events through it."""
    end, size_bytes, time_max_us = member.split(b":")
    return int(end), int(size_bytes), int(time_max_us)
