"""The object-store stream: any number of processes write and read it; compare-and-set keeps them apart."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.errors import StaleTail, StreamUnavailable, Transient, UsageError
from stream_store.file.frame import (
    HEADER_BYTES,
    LOST,
    MAGIC,
    TIME_MAX,
    TIME_MIN,
    FrameHeader,
    encode_events,
    move,
    seed_of,
)
from stream_store.objects import identity, layout, readers
from stream_store.objects.chain import Chain, Unit
from stream_store.objects.changes import Changes
from stream_store.objects.identity import Bond
from stream_store.objects.merger import Merger
from stream_store.objects.reader import Reader
from stream_store.objects.state import States
from stream_store.outcome import judge, require_sound, require_unused
from stream_store.stream import Appended, Outcome, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from outbox.batch import EventBatch
    from stream_store.objects.store import Store
    from stream_store.readers import Kind
    from stream_store.readers import Reader as KnownReader
    from stream_store.stream import Cut

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Flags of the frame that a stream begins with, when it does not begin at 1.
_BEGUN, _COMPACTED = 2, 4


class ObjectStream:
    """A stream below a prefix of an object store. Its methods may be called from several threads."""

    def __init__(self, store: Store, *, writing: bool, create: bool, merge_objects: int, merge_bytes: int) -> None:
        self.url = store.url
        self._store = store
        self._writes = writing
        self._closed = False
        self._broken: str | None = None
        self._lock = threading.RLock()
        if writing and create:
            identity.require_conditional_writes(store)
            self._identity = identity.make_identity(store)
        else:
            self._identity = identity.read_identity(store)
            if writing:
                identity.require_conditional_writes(store)
        self.stream_id = self._identity.stream_id
        self._seed = seed_of(self._identity.uuid)
        self._states = States(store)
        self._chain = Chain(store, self._states, self._seed)
        self._reader = Reader(store, self._chain, self._seed)
        self._changes = Changes(store, self._states, self._chain, self._reader, self._seed, merge_bytes)
        self._merger = Merger(self._changes, merge_objects)
        if writing:
            self._finish_begin()

    def info(self) -> StreamInfo:
        found = identity.read_identity(self._store)
        bond = identity.read_bond(self._store)
        look = self._chain.look()
        state, units = self._chain.units(look.state.trimmed_through, look.tail)
        lost = {*state.lost, *((unit.prev_id, unit.last_id) for unit in units if unit.is_lost)}
        return StreamInfo(
            url=self.url,
            stream_id=found.stream_id,
            outbox_id=bond.outbox_id if bond else None,
            source=bond.source if bond else None,
            tail=look.tail,
            trimmed_through=state.trimmed_through,
            lost=tuple(sorted(lost)),
            segments=len(units),
            size_bytes=sum(unit.size_bytes for unit in units),
            compacted=state.compacted,
        )

    def bind(self, outbox_id: str, source: str) -> None:
        self._require_writing("bind")
        identity.bind(self._store, Bond(outbox_id, source))

    def tail(self) -> int:
        return self._chain.look().tail

    def settle(self) -> int:
        """An append is durable when it answers: there is nothing to wait for."""
        return self._chain.tail or self.tail()

    # ---- appending; why it is sound stands in __init__.py

    def append(self, batch: EventBatch) -> Appended:
        require_sound(batch)
        with self._lock:
            self._require_writing("append")
            self._require_unbroken()
            self._merger.count()
            if batch.prev_id == self._chain.tail:
                if self._create(batch.prev_id, batch.last_id, _bytes_of(batch, self._seed)):
                    return Appended(Outcome.APPENDED, batch.last_id)
                was_tail = True
            else:
                was_tail = False
            while True:
                # Only what was looked up now is judged: another relay may have been here.
                look = self._chain.look()
                result = judge(batch, look.tail, look.state.trimmed_through, self._reader.table)
                if result.outcome is Outcome.LATE and was_tail and batch.first_id <= look.state.trimmed_through:
                    # It followed the tail as we knew it; others have gone on, and trimmed since. Whether
                    # the rows are late, only the start path can tell.
                    return Appended(Outcome.STALE, look.tail)
                if result.outcome is not Outcome.APPENDED:
                    return result
                if self._create(batch.prev_id, batch.last_id, _bytes_of(batch, self._seed)):
                    return result
                was_tail = True

    def _create(self, prev_id: int, last_id: int, data: bytes) -> bool:
        """Create the batch that follows `prev_id`. True when it is in the stream; False when to look again."""
        name = layout.batch_name(prev_id)
        try:
            if not self._store.create(name, data):
                # There is a batch: another relay's, or ours, when an answer got lost and the client
                # tried again. Only the content tells.
                theirs = self._store.get(name)
                if theirs is None or bytes(theirs) != data:
                    return False
            # The name may have been free only because a merge or a trim had freed it. Then the floor
            # was raised before, and we see it now.
            if self._states.newest().floor > prev_id:
                self._store.delete([name])
                return False
        except Transient as error:
            self._broken = str(error)
            raise
        self._chain.appended(Unit(prev_id, last_id, len(data), name))
        return True

    def lose(self, through: int) -> None:
        with self._lock:
            self._require_writing("lose")
            tail = self._chain.look().tail
            if through > tail:
                self._create_range(tail, through, LOST)

    def begin(self, through: int, *, compacted: bool = False) -> None:
        """A frame that nothing else can follow ID 0 with, then the floor above it: a crash in between is
        finished by whoever next opens the stream for writing."""
        with self._lock:
            self._require_writing("begin")
            require_unused(self.info())
            if not through:
                if compacted:
                    self._changes.begin(0, compacted=True)
                return
            self._create_range(0, through, LOST | _BEGUN | (_COMPACTED if compacted else 0))
            self._finish_begin()

    def _finish_begin(self) -> None:
        if self._chain.look().state.floor or self._chain.tail == 0:
            return
        header = self._chain.header(0)
        if header is not None and header.flags & _BEGUN:
            self._changes.begin(header.last_id, compacted=bool(header.flags & _COMPACTED))

    def _create_range(self, after: int, through: int, flags: int) -> None:
        header = FrameHeader(MAGIC, 0, 0, 0, flags, 0, after, after + 1, through, TIME_MAX, TIME_MIN)
        frame = move(header, pa.py_buffer(b""), 0, self._seed)
        data = b"".join(memoryview(part) for part in frame.parts)
        assert len(data) == HEADER_BYTES
        if not self._create(after, through, data):
            raise StaleTail(
                f"another process has appended to {self.url} meanwhile, behind ID {after}: look again, then repeat"
            )

    # ---- reading

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        return self._reader.read(after, through)

    def cuts(self, after: int, through: int) -> list[Cut]:
        return self._reader.cuts(after, through)

    def find(self, time: datetime) -> int:
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: events have, so give the time with one")
        return self._reader.find((time - _EPOCH) // timedelta(microseconds=1))

    # ---- keeping

    def trim(self, through: int) -> None:
        self._require_writing("trim")
        self._changes.trim(through)

    def redact(self, ids: Sequence[int]) -> int:
        self._require_writing("redact")
        return self._changes.redact(ids)

    def report(self, kind: Kind, name: str, through: int) -> None:
        readers.report(self._store, kind, name, through)

    def readers(self) -> list[KnownReader]:
        return readers.readers(self._store)

    def forget(self, kind: Kind, name: str) -> None:
        readers.forget(self._store, kind, name)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._merger.close()
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_writing(self, action: str) -> None:
        if not self._writes:
            raise UsageError(f"{self.url} is open for reading: open it for writing to {action}")
        if self._closed:
            raise StreamUnavailable(f"{self.url} is closed")

    def _require_unbroken(self) -> None:
        if self._broken is not None:
            raise StreamUnavailable(
                f"an append to {self.url} failed, and whether it arrived is unknown: close the stream and open it again. "
                f"The failure was: {self._broken}"
            )


def _bytes_of(batch: EventBatch, seed: int) -> bytes:
    return b"".join(memoryview(part) for part in encode_events(batch, 0, seed).parts)
