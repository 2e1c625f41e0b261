"""The memory stream: for tests of applications and of this product. It dies with the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import StreamLocked, StreamMissing, StreamUnavailable, Trimmed, UsageError, WrongPartner
from stream_store.outcome import judge, require_sound, require_unused
from stream_store.readers import Reader
from stream_store.redaction import between, count_content, id_set, is_redacted, redacted
from stream_store.stream import Appended, Cut, Outcome, StreamCheck, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from stream_store.readers import Kind


@dataclass(slots=True)
class _Store:
    """What outlives the openings of a stream."""

    stream_id: str = field(default_factory=lambda: str(uuid4()))
    outbox_id: str | None = None
    source: str | None = None
    batches: list[EventBatch] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    tail: int = 0
    trimmed_through: int = 0
    compacted: bool = False
    readers: dict[tuple[Kind, str], Reader] = field(default_factory=dict)
    has_writer: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


class MemoryStream:
    """A stream in a process-wide registry, under a name."""

    def __init__(self, name: str, *, writing: bool = False, create: bool = True) -> None:
        self.url = f"memory://{name}"
        with _stores_lock:
            if name not in _stores and not (writing and create):
                raise StreamMissing(f"there is no stream {self.url} in this process: open it for writing first")
            store = _stores.setdefault(name, _Store())
            if writing and store.has_writer:
                raise StreamLocked(f"{self.url} has a writer already, in this process: close it first")
            store.has_writer |= writing
        self.stream_id = store.stream_id
        self._store = store
        self._writes = writing
        self._closed = False

    def info(self) -> StreamInfo:
        store = self._store
        with store.lock:
            return StreamInfo(
                url=self.url,
                stream_id=store.stream_id,
                outbox_id=store.outbox_id,
                source=store.source,
                tail=store.tail,
                trimmed_through=store.trimmed_through,
                lost=tuple(store.lost),
                segments=len(store.batches),
                size_bytes=sum(batch.nbytes for batch in store.batches),
                compacted=store.compacted,
            )

    def bind(self, outbox_id: str, source: str) -> None:
        store = self._writing("bind")
        with store.lock:
            if store.outbox_id not in (None, outbox_id):
                raise WrongPartner(
                    f"{self.url} is bound to outbox {store.outbox_id} (source {store.source}), not to {outbox_id} "
                    f"(source {source}): give each outbox a stream of its own"
                )
            store.outbox_id, store.source = outbox_id, source

    def begin(self, through: int, *, compacted: bool = False) -> None:
        store = self._writing("begin")
        with store.lock:
            require_unused(self.info())
            store.tail = store.trimmed_through = through
            store.compacted = compacted

    def tail(self) -> int:
        return self._store.tail

    def settle(self) -> int:
        return self._store.tail

    def append(self, batch: EventBatch) -> Appended:
        require_sound(batch)
        store = self._writing("append")
        with store.lock:
            result = judge(batch, store.tail, store.trimmed_through, self._table)
            if result.outcome is Outcome.APPENDED:
                store.batches.append(batch)
                store.tail = batch.last_id
            return result

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        with self._store.lock:
            last = self._store.tail if through is None else min(through, self._store.tail)
            return self._sliced(self._stored(after, last), after, last)

    def cuts(self, after: int, through: int) -> list[Cut]:
        with self._store.lock:
            last = min(through, self._store.tail)
            if after >= last:
                return []
            cuts = []
            for batch in self._stored(after, last):
                cuts.append(Cut(min(batch.last_id, last), batch.nbytes))
                if batch.last_id >= last:
                    return cuts
            return [*cuts, Cut(last, 0)]

    def _stored(self, after: int, last: int) -> list[EventBatch]:
        """The batches that end above `after`."""
        store = self._store
        if after < store.trimmed_through and after < last:
            raise Trimmed(
                f"{self.url} no longer holds what follows ID {after}: it was trimmed through ID "
                f"{store.trimmed_through}; read from ID {store.trimmed_through + 1}"
            )
        return store.batches[bisect_right(store.batches, after, key=lambda batch: batch.last_id) :]

    def _sliced(self, batches: list[EventBatch], after: int, last: int) -> Iterator[EventBatch]:
        for batch in batches:
            part = batch.after(after)
            part = part.through(last) if part else None
            if part is None:
                return
            yield part

    def _table(self, first: int, last: int) -> pa.Table:
        return pa.Table.from_batches([batch.rows for batch in self.read(first - 1, last)], SCHEMA)

    def find(self, time: datetime) -> int:
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: events have, so give the time with one")
        store = self._store
        with store.lock:
            moment = pa.scalar(time.astimezone(UTC), pa.timestamp("us", tz="UTC"))
            for batch in store.batches:
                at = pc.index(pc.greater_equal(batch.rows.column("time"), moment), True).as_py()
                if at >= 0:
                    return int(batch.ids[at].as_py())
            return store.tail + 1

    def lose(self, through: int) -> None:
        store = self._writing("lose")
        with store.lock:
            if through > store.tail:
                store.lost.append((store.tail, through))
                store.tail = through

    def trim(self, through: int) -> None:
        store = self._writing("trim")
        with store.lock:
            keep = bisect_right(store.batches, through, key=lambda batch: batch.last_id)
            if keep:
                store.trimmed_through = store.batches[keep - 1].last_id
                store.batches = store.batches[keep:]

    def redact(self, ids: Sequence[int]) -> int:
        store = self._writing("redact")
        chosen = id_set(ids)
        erased = 0
        with store.lock:
            for at, batch in enumerate(store.batches):
                here = between(chosen, batch.prev_id, batch.last_id)
                count = count_content(batch.rows, here) if len(here) else 0
                if count:
                    store.batches[at] = EventBatch(batch.prev_id, redacted(batch.rows, here))
                    erased += count
        return erased

    def report(self, kind: Kind, name: str, through: int) -> None:
        with self._store.lock:
            self._store.readers[kind, name] = Reader(kind, name, through, datetime.now(UTC))

    def readers(self) -> list[Reader]:
        with self._store.lock:
            return list(self._store.readers.values())

    def forget(self, kind: Kind, name: str) -> None:
        with self._store.lock:
            self._store.readers.pop((kind, name), None)

    def check(self) -> StreamCheck:
        """Memory does not rot: only counts."""
        info = self.info()
        with self._store.lock:
            events = sum(len(batch) for batch in self._store.batches)
            erased = sum(pc.sum(is_redacted(batch.rows)).as_py() for batch in self._store.batches)
        lost_ids = sum(max(0, through - max(after, info.trimmed_through)) for after, through in info.lost)
        return StreamCheck(
            url=self.url,
            stream_id=info.stream_id,
            tail=info.tail,
            trimmed_through=info.trimmed_through,
            segments=info.segments,
            frames=info.segments,
            events=events,
            dead_ids=info.tail - info.trimmed_through - events - lost_ids,
            lost_ids=lost_ids,
            size_bytes=info.size_bytes,
            unacknowledged_bytes=0,
            damage=(),
            redacted=erased,
            compacted=info.compacted,
        )

    def close(self) -> None:
        if self._writes and not self._closed:
            self._store.has_writer = False
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _writing(self, action: str) -> _Store:
        if not self._writes:
            raise UsageError(f"{self.url} is open for reading: open it for writing to {action}")
        if self._closed:
            raise StreamUnavailable(f"{self.url} is closed")
        return self._store
