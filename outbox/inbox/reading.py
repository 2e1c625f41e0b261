"""What a consumer reads: the events that follow its position, proven by the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from outbox.batch import EventBatch
from outbox.database import redact
from outbox.errors import EventsTrimmed, StreamCorrupt, TailLost, Trimmed, WrongPartner
from outbox.event import events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from outbox.event import Event


class ReadableInfo(Protocol):
    """What an inbox wants to know of a stream; `stream_store.StreamInfo` is one."""

    @property
    def outbox_id(self) -> str | None: ...

    @property
    def source(self) -> str | None: ...

    @property
    def tail(self) -> int: ...

    @property
    def trimmed_through(self) -> int: ...

    @property
    def lost(self) -> tuple[tuple[int, int], ...]: ...


class Readable(Protocol):
    """An opened stream, as far as an inbox needs one. Every stream of `stream_store` is one."""

    @property
    def url(self) -> str: ...

    def info(self) -> ReadableInfo: ...

    def tail(self) -> int: ...

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]: ...

    def find(self, time: datetime) -> int: ...

    def report(self, kind: Literal["group"], name: str, through: int) -> None: ...


class Reading:
    """A stream, read on from wherever a consumer stands.

    One read of the stream serves many calls: stored batches are large, transactions are small.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        info = stream.info()
        if info.outbox_id is None and info.tail > 0:
            raise WrongPartner(
                f"{redact(stream.url)} holds events and is bound to no outbox, so nobody can say whose they are: "
                "let its relay run once, or name the stream that a relay writes"
            )
        # It is kept in the consumer's database, and shown: without a password.
        self.url = redact(stream.url)
        self.outbox_id = info.outbox_id
        self._source = info.source or "/outbox"
        self._lost = info.lost
        self._batches: Iterator[EventBatch] | None = None
        self._batch: EventBatch | None = None
        self._at = -1

    def take(self, after: int, events_max: int, *, exact: bool) -> list[Event]:
        """The next events behind `after`; none at the tail.

        `exact`: the event `after` was read from this stream before, so the next one must name
        it. A consumer that has read nothing yet may stand at an ID that is dead.
        """
        if self._at != after or self._batches is None:
            self._batch, self._batches = None, self._open(after)
        self._at = after
        found: list[Event] = []
        while self._batches is not None and len(found) < events_max:
            if self._batch is None:
                self._batch = self._next(exact=exact or bool(found))
                continue
            part = EventBatch(self._batch.prev_id, self._batch.rows.slice(0, events_max - len(found)))
            found += events(part, self._source)
            self._at, self._batch = part.last_id, self._batch.after(part.last_id)
        return found

    def _open(self, after: int) -> Iterator[EventBatch] | None:
        tail = self._stream.tail()
        if tail < after:
            raise TailLost(
                f"{self.url} went back in time: its tail is {tail}, and this consumer has everything through {after}. "
                "Restore the stream from a newer copy; where its events are gone for good, record that by "
                "`outbox rebase` and let the relay go on"
            )
        try:
            return self._stream.read(after) if tail > after else None
        except Trimmed as error:
            raise self._trimmed(after) from error

    def _next(self, *, exact: bool) -> EventBatch | None:
        """The next stored batch; at the end of the read None, and no batches any more."""
        assert self._batches is not None
        try:
            batch = next(self._batches, None)
        except Trimmed as error:
            raise self._trimmed(self._at) from error
        if batch is None:
            self._batches = None
        elif not follows(batch.prev_id, self._at, self._lost, exact=exact):
            # A range may have been recorded as lost since the stream was opened.
            self._lost = self._stream.info().lost
            if not follows(batch.prev_id, self._at, self._lost, exact=exact):
                raise StreamCorrupt(
                    f"{self.url} breaks the chain: event {batch.first_id} follows {batch.prev_id}, and this consumer stands "
                    f"at {self._at}. Events between are missing, or this is another history of the stream: "
                    "run `outbox stream check` and `outbox verify`, and restore the stream"
                )
        return batch

    def _trimmed(self, after: int) -> EventsTrimmed:
        return EventsTrimmed(
            f"{self.url} was trimmed through ID {self._stream.info().trimmed_through}, and this consumer has read only "
            f"through {after}: the events between are gone from it. Restore them from a copy of the stream, or accept "
            "the gap: `outbox inbox forget` this stream's position, then run with --from earliest"
        )


def follows(prev_id: int, at: int, lost: tuple[tuple[int, int], ...], *, exact: bool) -> bool:
    """Whether a batch with this `prev_id` is the next one for a reader at `at`.

    It may jump over what a person has recorded as lost (`outbox rebase`), and nothing else.
    """
    for after, through in sorted(lost):
        at = through if after <= at < through else at
    return prev_id == at if exact else prev_id <= at
