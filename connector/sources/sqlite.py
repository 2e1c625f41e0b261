"""SQLite: read by ADBC as Arrow. One writer at a time, so every gap in a snapshot is dead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connector.fence import Holders
from connector.source import Blocker, Rows, Standing
from connector.sources.arrow import COLUMN_COUNT, to_rows
from connector.sources.session import open_session
from connector.sources.sizing import rows_within
from outbox.errors import DatabaseUnavailable
from outbox.info import Info, read_info
from outbox.queries import block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connector.options import RelayOptions
    from outbox.database import Session

ID_MAX = 2**63 - 1


class SqliteSource:
    """Two connections to one file: ADBC for rows, sqlite3 for everything small."""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._path = Path(options.database.path)
        self._session: Session | None = None
        self._reader: Any = None
        self._inode = 0

    def open(self) -> None:
        if not self._path.exists():
            raise DatabaseUnavailable(f"there is no database file {self._path}: has the application made it yet?")
        from adbc_driver_sqlite import dbapi

        self._inode = self._path.stat().st_ino
        self._session = open_session(self._options, "outbox relay")
        try:
            self._reader = dbapi.connect(str(self._path), autocommit=True)
            with self._reader.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 5000")
                cursor.fetchall()
        except dbapi.Error as error:
            self.close()
            raise DatabaseUnavailable(f"{self._options.database} cannot be opened: {error}") from error

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

    def read(self, after: int, limit_rows: int, through: int | None = None) -> Iterator[Rows]:
        from adbc_driver_sqlite import dbapi

        last = ID_MAX if through is None else through
        limit_rows = rows_within(self.session, after, last, limit_rows)
        try:
            with self._reader.cursor() as cursor:
                # One batch for the whole read: the driver infers a column's type from its first batch.
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(limit_rows)})
                cursor.execute(block("sqlite", "read", self._options.table), (after, last, limit_rows))
                for part in cursor.fetch_record_batch():
                    if part.num_rows:
                        yield to_rows(part, part.column(COLUMN_COUNT).cast(pa.int64()))
        except (dbapi.Error, OSError) as error:
            raise DatabaseUnavailable(f"{self._options.database} cannot be read: {error}") from error

    def make_durable(self, standing: Standing) -> None:  # noqa: ARG002 - the files say it all
        """SQLite commits without fsync under `synchronous` NORMAL and OFF: we do it for it.

        The WAL and the file hold every row we read; the folder holds the journal's removal.
        """
        folder = self._path.resolve().parent
        for path in (self._path.with_name(self._path.name + "-wal"), self._path, folder):
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def holders(self) -> Holders:
        return Holders()

    def ignore(self, session: Session) -> None:
        """Nobody is listed: nothing to leave out."""

    def barrier(self) -> int | None:
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
        if self._reader is not None:
            self._reader.close()
            self._reader = None
