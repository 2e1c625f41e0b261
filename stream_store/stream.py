"""The stream: one partition, keyed by the row's own ID, appended by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from outbox.batch import EventBatch
    from stream_store.readers import Kind, Reader


class Outcome(Enum):
    """What became of an append. The whole batch is taken or the whole batch is refused."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    STALE = "stale"
    TAIL_LOST = "tail_lost"
    LATE = "late"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Appended:
    """An outcome, the tail after it, and the first ID that was refused for what it is."""

    outcome: Outcome
    tail: int
    at_id: int | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream says of itself, without reading every event."""

    url: str
    stream_id: str
    outbox_id: str | None
    source: str | None
    tail: int
    # IDs through this one are no longer held: trimmed, or before the stream's beginning.
    trimmed_through: int
    # IDs acknowledged once and gone, as `outbox rebase` recorded them: (after, through].
    lost: tuple[tuple[int, int], ...]
    segments: int
    size_bytes: int
    # Made by compaction: it holds the latest event of each subject, and no relay appends to it.
    compacted: bool = False


class Cut(NamedTuple):
    """A place where a stream is best cut: a stored unit ends with this ID, and has this size."""

    id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be read back: where, and what is wrong with them."""

    file: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """What reading every frame found. Counts are of what could be read."""

    url: str
    stream_id: str | None
    tail: int
    trimmed_through: int
    segments: int
    frames: int
    events: int
    dead_ids: int
    lost_ids: int
    size_bytes: int
    # Bytes behind the durable offset: an append that was never acknowledged, or is under way.
    unacknowledged_bytes: int
    damage: tuple[Damage, ...]
    # Events whose content was erased; they count among the events.
    redacted: int = 0
    compacted: bool = False

    @property
    def ok(self) -> bool:
        return not self.damage


class Readable(Protocol):
    """What can be read like a stream: one, or a snapshot and the stream behind it (snapshot.py)."""

    def info(self) -> StreamInfo: ...

    def tail(self) -> int: ...

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]: ...

    def find(self, time: datetime) -> int: ...


class Stream(Protocol):
    """One module per backend; one contract suite for all of them (`tests/contract`).

    A stream opened for reading can do everything but `bind`, `begin`, `append`, `lose`, `trim` and
    `redact`.
    """

    url: str
    stream_id: str

    def info(self) -> StreamInfo: ...

    def bind(self, outbox_id: str, source: str) -> None:
        """Make the stream that outbox's own, durably. `WrongPartner` when it has another."""

    def begin(self, through: int, *, compacted: bool = False) -> None:
        """Let the stream begin behind an ID, durably: its tail and `trimmed_through` become `through`.

        So copies of trimmed streams and snapshots keep their IDs. Only a stream that has never held
        anything can (`UsageError`). `compacted` marks it for ever (`StreamInfo.compacted`).
        """

    def tail(self) -> int:
        """The highest ID that is appended and durable; 0 for an empty stream."""

    def append(self, batch: EventBatch) -> Appended:
        """Append by compare-and-set on the tail. Durable when it answers APPENDED (durability.py names the exceptions).

        After `StreamUnavailable` the stream takes no more appends: whether the batch is in
        it is unknown until it is closed and opened again.
        """

    def settle(self) -> int:
        """Make what was appended as durable as this backend can; the ID through which it is.

        Rows are deleted from the out table only through this ID. With the strongest durability, the
        default, an append has done it already.
        """

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        """Durable events with after < id <= through, chained, in batches as they are stored.

        The first batch's `prev_id` is the event before it: `after` itself, or an ID below it
        when `after` is dead. Behind a lost range (`StreamInfo.lost`) a batch's `prev_id` is
        the end of the range, so a reader that checks the chain sees the loss. Ends at the
        tail as it was when `read` was called. Asking for trimmed IDs is an error (`Trimmed`).
        """

    def cuts(self, after: int, through: int) -> list[Cut]:
        """The stored units that hold after < id <= through, in order, without reading events.

        The last one ends at `through`, or at the tail when that is lower. Sizes are those of
        the whole units. Asking for trimmed IDs is an error (`Trimmed`).
        """

    def find(self, time: datetime) -> int:
        """The lowest ID whose time is at or after `time`; tail + 1 when there is none."""

    def lose(self, through: int) -> None:
        """Record that every ID above the tail through this one is lost (`outbox rebase`)."""

    def trim(self, through: int) -> None:
        """Forget events through this ID, as far as the storage units allow."""

    def redact(self, ids: Sequence[int]) -> int:
        """Erase the content of these events, durably and in every copy that the backend keeps.

        Answers how many were newly erased. IDs, types, subjects, times and the chain stay
        (redaction.py). IDs that the stream does not hold are passed over. A backend that cannot
        forget says so (`UsageError`).
        """

    def report(self, kind: Kind, name: str, through: int) -> None:
        """Make known, durably, that a table or a group has every event through this ID.

        Needs no writer lock: readers are other processes than the relay.
        """

    def readers(self) -> list[Reader]:
        """Everybody who has reported, and was not forgotten."""

    def forget(self, kind: Kind, name: str) -> None:
        """Know a reader no longer; nothing is kept for it then."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
