"""The Kafka stream: one writer that fences out the one before it, and any number of readers."""

from __future__ import annotations

import threading
import time as clock
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from outbox.errors import StaleTail, StreamCorrupt, StreamMissing, StreamUnavailable, UsageError, WrongPartner
from stream_store.kafka.clients import ANSWER_SECONDS, Clients
from stream_store.kafka.known import KnownReaders
from stream_store.kafka.partition import Partition
from stream_store.kafka.reader import Reader
from stream_store.kafka.records import encode
from stream_store.kafka.state import State, require_kept, tail_of
from stream_store.kafka.topics import MESSAGE_BYTES_MAX, READERS, STATE, create, delete_before, describe, exist, require
from stream_store.kafka.writer import Writer
from stream_store.outcome import judge, require_sound, require_unused
from stream_store.stream import Appended, Outcome, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from outbox.batch import EventBatch
    from stream_store.kafka.address import Address
    from stream_store.readers import Kind
    from stream_store.readers import Reader as KnownReader
    from stream_store.stream import Cut

# A reader that goes on reading looks this often whether a range was recorded as lost.
STATE_SECONDS = 1.0


class KafkaStream:
    """A stream in a topic. Its methods may be called from several threads."""

    def __init__(self, address: Address, *, writing: bool = False, create: bool = True) -> None:
        self.address = address
        self.url = address.url
        self._lock = threading.RLock()
        self._clients = Clients(address)
        self._writer: Writer | None = None
        self._writes = writing
        self._known_at = 0.0
        self._tail = 0
        # Where the topic ends behind what we have appended.
        self._end = 0
        self._events = Partition(self._clients, address.topic)
        self._companion = Partition(self._clients, address.companion, STATE)
        self._known = KnownReaders(self._clients, Partition(self._clients, address.companion, READERS))
        self._reader = Reader(self._events, self.url, self._state_now)
        try:
            self._state = self._open_writer(create) if writing else self._open_reader()
        except BaseException:
            self.close()
            raise
        self.stream_id = self._state.stream_id

    def _open_reader(self) -> State:
        if not all(exist(self._clients)):
            raise self._missing()
        state = self._read_state()
        if state is None:
            raise self._missing()
        self._known_at = clock.monotonic()
        return state

    def _open_writer(self, make: bool) -> State:
        if not all(exist(self._clients)):
            if not make:
                raise self._missing()
            create(self._clients)
        events, companion = describe(self._clients)
        require(events, companion)
        # In this order: what the predecessor had under way is decided by this, and nothing of his comes after it.
        self._writer = Writer(self._clients, self._events, events.number("max.message.bytes", MESSAGE_BYTES_MAX))
        state = self._read_state() or self._begin_state(self._writer, make)
        seen = self._reader.look()
        require_kept(seen, state, self.url)
        self._end, self._tail = seen.end, tail_of(seen, state, self.url)
        return state

    def _begin_state(self, writer: Writer, make: bool) -> State:
        """Make the stream, in topics that are there and empty."""
        if not make:
            raise self._missing()
        if self._events.bounds()[1] > 0:
            raise StreamCorrupt(
                f"topic {self.address.topic} has held records, and {self.address.companion} does not say whose: it is somebody "
                "else's topic, or its companion was deleted. Choose another topic; see docs/stream-kafka.md"
            )
        state = State(str(uuid4()))
        writer.commit(state)
        deadline = clock.monotonic() + ANSWER_SECONDS
        while self._read_state() is None:  # the commit's marker is on its way
            if clock.monotonic() > deadline:
                raise StreamUnavailable(f"{self.url}: the commit that makes the stream does not become visible")
        return state

    def _missing(self) -> StreamMissing:
        return StreamMissing(
            f"there is no stream {self.url}: no relay has made topic {self.address.topic} and its companion "
            f"{self.address.companion} yet"
        )

    def _read_state(self) -> State | None:
        low, end = self._companion.bounds()
        message = self._companion.last(low, end)
        if message is None:
            return None
        value = message.value()
        return State.decode(
            value if isinstance(value, bytes) else None,
            f"the record at offset {message.offset()} of {self.address.companion}",
        )

    def _state_now(self, *, fresh: bool = False) -> State:
        """The writer knows it. A reader asks, now and then or when it must know."""
        if self._writer is None and (fresh or clock.monotonic() - self._known_at > STATE_SECONDS):
            state = self._read_state()
            if state is None:
                # It was there when it was opened. Whoever opens it again learns whether it is gone for good.
                raise StreamUnavailable(
                    f"{self.url}: {self.address.companion} holds nothing any more: it was made anew, or its records are on no broker "
                    "just now"
                )
            if state.stream_id != self.stream_id:
                raise WrongPartner(
                    f"{self.url} was stream {self.stream_id} when it was opened and is {state.stream_id} now"
                )
            self._state, self._known_at = state, clock.monotonic()
        return self._state

    def info(self) -> StreamInfo:
        with self._lock:
            state = self._state_now(fresh=True)
            seen = self._reader.look()
            return StreamInfo(
                url=self.url,
                stream_id=state.stream_id,
                outbox_id=state.outbox_id,
                source=state.source,
                tail=tail_of(seen, state, self.url),
                trimmed_through=self._reader.trimmed_through(seen),
                lost=state.lost,
                segments=1,
                size_bytes=self._reader.size_bytes(seen),
                compacted=state.compacted,
            )

    def bind(self, outbox_id: str, source: str) -> None:
        with self._lock:
            self._writing("bind")
            bound = self._state.outbox_id
            if bound not in (None, outbox_id):
                raise WrongPartner(
                    f"{self.url} is bound to outbox {bound} (source {self._state.source}), not to {outbox_id} "
                    f"(source {source}): give each outbox a stream of its own"
                )
            if (bound, self._state.source) != (outbox_id, source):
                self._change(replace(self._state, outbox_id=outbox_id, source=source))

    def tail(self) -> int:
        if not self._writes:
            return self._reader.tail()
        # Not while an append is under way: the topic's end moves before we know of it.
        with self._lock:
            _, end = self._events.bounds()
            if end > self._end:
                raise StaleTail(
                    f"{self.url} ended at offset {self._end} with ID {self._tail}, and ends at {end} now: another writer has taken over"
                )
            if end < self._end:
                raise StreamUnavailable(
                    f"{self.url} ended at offset {self._end} with ID {self._tail}, and ends at {end} now: its broker was replaced, or "
                    "the topic was made anew; open it again"
                )
            return self._tail

    def append(self, batch: EventBatch) -> Appended:
        require_sound(batch)
        with self._lock:
            writer = self._writing("append")
            trimmed_through = self._reader.trimmed_through() if batch.last_id <= self._tail else 0
            result = judge(batch, self._tail, trimmed_through, self._reader.table)
            if result.outcome is Outcome.APPENDED:
                end = self._end + len(batch)
                state = replace(self._state, tail=batch.last_id, end_offset=end)
                writer.commit(state, encode(batch, state.source))
                self._reader.mark(self._tail, self._end)
                self._state, self._tail = state, batch.last_id
                self._end = writer.wait_until_visible(self._end, end)
            return result

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        return self._reader.read(after, through)

    def cuts(self, after: int, through: int) -> list[Cut]:
        return self._reader.cuts(after, through)

    def find(self, time: datetime) -> int:
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: events have, so give the time with one")
        return self._reader.find(time)

    def lose(self, through: int) -> None:
        with self._lock:
            self._writing("lose")
            if through > self._tail:
                self._change(self._state.losing(self._tail, through))
                self._tail = through

    def begin(self, through: int, *, compacted: bool = False) -> None:
        with self._lock:
            self._writing("begin")
            require_unused(self.info())
            self._change(replace(self._state, begin=through, tail=through, compacted=compacted))
            self._tail = through

    def trim(self, through: int) -> None:
        with self._lock:
            self._writing("trim")
            offset = self._reader.offset_behind(min(through, self._tail))
            if offset is None:
                return
            if self._state.tail != self._tail:
                # The topic has lost its end once. When all is deleted, the companion alone knows the tail.
                self._change(replace(self._state, tail=self._tail))
            delete_before(self._clients, offset)

    def redact(self, ids: Sequence[int]) -> int:
        self._writing("redact")
        raise UsageError(
            f"{self.url}: a record of Kafka cannot be changed, so the content of {len(ids)} events cannot be erased there. Trim the "
            "stream past them, or copy it into a new topic (`outbox stream copy`) from a backend that can redact, and delete this one"
        )

    def promised_tail(self) -> int:
        """The tail that the companion was last written with. Less is there only when the topic has lost its end."""
        return self._state_now().tail

    def settle(self) -> int:
        """Every commit is on all replicas in sync: there is nothing to wait for."""
        return self.tail()

    def report(self, kind: Kind, name: str, through: int) -> None:
        self._known.report(kind, name, through)

    def readers(self) -> list[KnownReader]:
        return self._known.all()

    def forget(self, kind: Kind, name: str) -> None:
        self._known.forget(kind, name)

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            self._known.close()
            self._clients.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _writing(self, action: str) -> Writer:
        if self._writer is None:
            raise UsageError(f"{self.url} is open for reading: open it for writing to {action}")
        return self._writer

    def _change(self, state: State) -> None:
        """Write what the companion says anew, and nothing else."""
        state = replace(state, end_offset=self._end)
        self._writing("change").commit(state)
        self._state = state
