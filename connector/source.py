"""The seam between the relay and a database: one implementation per dialect in `sources/`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    import pyarrow as pa

    from connector.fence import Holders
    from outbox.database import Session
    from outbox.info import Info


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of one read: rows in ID order, and a number per row that changes with the row.

    `versions` lets the cleaner prove that what it deletes is what was appended: the row
    version where the database has one (PostgreSQL's xmin), a checksum of the content else.
    """

    events: pa.RecordBatch
    versions: pa.Int64Array

    def slice(self, offset: int, length: int | None = None) -> Rows:
        return Rows(self.events.slice(offset, length), self.versions.slice(offset, length))


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the database stood at one moment."""

    # The last ID that the sequence has given out.
    drawn: int
    # As the info table has it.
    deleted_through: int
    # Everything visible before this moment is durable once this position is (PostgreSQL).
    wal_written: int = 0
    wal_flushed: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """One turn at the end of the table: four looks in this order, which the fence's proof needs.

    The rows are durable in the database.
    """

    before: Standing
    holders: Holders
    rows: Rows | None
    after: Standing


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that holds the stream back, as far as we may know it."""

    key: str
    pid: int | None
    application: str
    user: str
    state: str
    seconds: float | None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid is not None else f"transaction {self.key}"
        named = f", application {self.application}" if self.application else ""
        user = f", user {self.user}" if self.user else ""
        since = f" for {_spoken(self.seconds)}" if self.seconds is not None else ""
        return f"{who}{named}{user}, {self.state or 'state unknown'}{since}"


def _spoken(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Source(Protocol):
    """The sessions with which a relay reads one out table.

    Used by one thread. Every session is in autocommit and READ COMMITTED, so each
    statement sees what was committed before it began.
    """

    def open(self) -> None:
        """Connect, refuse what makes the fence blind, and prove by a canary that it sees."""

    def info(self) -> Info: ...

    def server_id(self) -> str:
        """What changes when the server is another one, or another timeline of it."""

    def standing(self) -> Standing: ...

    def read(self, after: int, limit_rows: int, through: int | None = None) -> Generator[Rows]:
        """Rows with after < id <= through, in ID order, all from one snapshot."""

    def look(self, after: int, limit_rows: int) -> Look:
        """The few rows behind `after` and all that must be known of them, in as few trips as can be."""

    def make_durable(self, standing: Standing) -> None:
        """Return when everything visible at `standing` survives a crash of the database."""

    def holders(self) -> Holders:
        """Who holds the lock that is taken before an ID is drawn. Sessions first, then prepared."""

    def ignore(self, session: Session) -> None:
        """Do not take this session, the relay's own cleaner, for a writer."""

    def barrier(self) -> tuple[int, frozenset[str]] | None:
        """Hold all writers off for a moment; None when that cannot be had.

        The last ID drawn before, and the prepared transactions listed behind it.
        """

    def late_id(self, deleted_through: int) -> int | None:
        """A row at or below `deleted_through`, where there must be none."""

    def blockers(self, keys: Iterable[str]) -> list[Blocker]: ...

    def terminate(self, blocker: Blocker) -> bool:
        """End the blocker's session; False when it cannot be ended."""

    def close(self) -> None: ...


def look_in_steps(source: Source, after: int, limit_rows: int) -> Look:
    """A look made of the other methods, for databases that take one statement at a time."""
    before = source.standing()
    holders = source.holders()
    with contextlib.closing(source.read(after, limit_rows)) as parts:
        rows = next(parts, None)
    standing = source.standing()
    if rows is not None:
        source.make_durable(standing)
    return Look(before, holders, rows, standing)
