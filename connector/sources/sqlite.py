"""SQLite: one writer at a time, so every gap in a snapshot is dead.

Everything goes through Python's own sqlite3, rows too. ADBC reads three times faster, but
brings a second copy of SQLite into the process, and POSIX locks belong to the process: one
copy closing a file drops the locks of the other (run: "disk I/O error" in the other one).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connector.fence import Holders
from connector.source import Blocker, Look, Rows, Standing, look_in_steps
from connector.sources.arrow import from_python
from connector.sources.session import open_session
from connector.sources.sizing import ReadSize
from outbox.errors import DatabaseUnavailable
from outbox.info import Info, read_info

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from connector.options import RelayOptions
    from outbox.database import Session

ID_MAX = 2**63 - 1


class SqliteSource:
    """One connection for the rows and everything small."""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._path = Path(options.database.path)
        # SQLite follows links, and keeps its log or journal beside the file that they lead to.
        self._file = self._path
        self._session: Session | None = None
        self._inode = 0
        self._size = ReadSize()

    def open(self) -> None:
        if not self._path.exists():
            raise DatabaseUnavailable(f"there is no database file {self._path}: has the application made it yet?")
        self._file = self._path.resolve()
        self._inode = self._file.stat().st_ino
        self._session = open_session(self._options, "outbox relay")

    @property
    def session(self) -> Session:
        if self._session is None:
            raise DatabaseUnavailable("the relay's connection is closed")
        return self._session

    def info(self) -> Info:
        return read_info(self.session)

    def server_id(self) -> str:
        return str(self.session.value("server_id"))

    def standing(self) -> Standing:
        # A file that was replaced or removed would go on being read through the old inode.
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            raise DatabaseUnavailable(f"the database file {self._path} has been removed") from None
        if inode != self._inode:
            raise DatabaseUnavailable(f"the database file {self._path} has been replaced")
        drawn, deleted_through = self.session.row("standing")
        return Standing(int(drawn), int(deleted_through))

    def read(self, after: int, limit_rows: int, through: int | None = None) -> Generator[Rows]:
        last = ID_MAX if through is None else through
        limit_rows = self._size.rows_within(self.session, after, last, limit_rows)
        asked = {"after": after, "through": last, "limit_rows": limit_rows}
        try:
            rows = self.session.query("read", **asked)
        except sqlite3.OperationalError as error:
            # The driver's own, it has no code of SQLite's: text that is not UTF-8, and it does not say in which row.
            if hasattr(error, "sqlite_errorcode"):
                raise
            rows = self._read_bytes(asked)
        if rows:
            part = from_python(rows, pa.string())
            self._size.learn(part.events)
            yield part

    def _read_bytes(self, asked: dict[str, int]) -> list[tuple[Any, ...]]:
        """The same rows with their text as bytes. By a connection of its own: it is a setting of all of it."""
        with open_session(self._options, "outbox relay") as session:
            session.driver.text_factory = bytes
            return session.query("read", **asked)

    def look(self, after: int, limit_rows: int) -> Look:
        return look_in_steps(self, after, limit_rows)

    def make_durable(self, standing: Standing) -> None:  # noqa: ARG002 - the files say it all
        """SQLite commits without fsync under `synchronous` NORMAL and OFF: we do it for it.

        The WAL and the file hold every row we read: the WAL first, for what it holds may be
        moved into the file meanwhile. A rollback journal commits by its end, truncated or
        overwritten in place or removed from the folder, which must not be durable before the file.
        """
        _sync(self._file.with_name(self._file.name + "-wal"))
        os.fsync(_descriptor(self._file))
        _sync(self._file.with_name(self._file.name + "-journal"))
        _sync(self._file.parent)

    def holders(self) -> Holders:
        return Holders()

    def ignore(self, session: Session) -> None:
        """Nobody is listed: nothing to leave out."""

    def barrier(self) -> tuple[int, frozenset[str]] | None:
        return None

    def late_id(self, deleted_through: int) -> int | None:
        found = self.session.value("late_id", deleted_through=deleted_through)
        return None if found is None else int(found)

    def blockers(self, keys: Iterable[str]) -> list[Blocker]:  # noqa: ARG002 - nobody can hold SQLite back
        return []

    def terminate(self, blocker: Blocker) -> bool:  # noqa: ARG002
        return False

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _sync(path: Path) -> None:
    """Sync a file that may not be there, or a folder: nothing that SQLite holds locks on."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# POSIX drops all of a process's locks on a file when any of its descriptors is closed, and
# SQLite's locks are such: a descriptor of a database file is opened once and never closed.
_descriptors: dict[tuple[int, int], int] = {}


def _descriptor(path: Path) -> int:
    status = path.stat()
    key = (status.st_dev, status.st_ino)
    if key not in _descriptors:
        _descriptors[key] = os.open(path, os.O_RDONLY)
    return _descriptors[key]
