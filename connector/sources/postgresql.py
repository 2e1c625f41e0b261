"""PostgreSQL: fenced by the lock on the out table's sequence.

Backlogs are read by ADBC as Arrow. A few rows come over psycopg together with all else that
a turn needs, in one trip: on a busy machine a turn takes as long as it has trips.
"""

from __future__ import annotations

import contextlib
import sys
import time
from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connector.fence import Holders
from connector.source import Blocker, Look, Rows, Standing
from connector.sources.arrow import COLUMN_COUNT, from_python, to_rows
from connector.sources.session import open_session
from outbox.batch import SCHEMA
from outbox.database import connection_defaults
from outbox.errors import DatabaseUnavailable, Transient, Unsupported
from outbox.info import Info, read_info
from outbox.queries import block, with_integers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from connector.options import RelayOptions
    from outbox.database import DatabaseUrl, Session

ID_MAX = 2**63 - 1
XID_BYTES = 4
# The blocks that a look executes, prepared.
LOOK_BLOCKS = ("standing", "holders", "flush_wal")
# Of a backlog, as Arrow: some of them are in memory at once, being read, waiting, and being written.
PART_BYTES = 8 * 2**20
# How long to hope that the writers' own commits flush the WAL before we force it.
FLUSH_PATIENCE_SECONDS = 0.002


class PostgresSource:
    """Two sessions: ADBC for rows, psycopg for everything small."""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._reader: Any = None
        self._look_sql = block("postgresql", "look", options.table)

    def open(self) -> None:
        self._session = open_session(self._options, "outbox relay")
        try:
            self._refuse_unsupported()
            keep_json_as_text(self._session)
            for name in LOOK_BLOCKS:
                self._session.run(f"PREPARE outbox_{name} AS {block('postgresql', name, self._options.table)}")
            self._open_reader()
            self._prove_sight()
        except BaseException:
            self.close()
            raise

    def _refuse_unsupported(self) -> None:
        table = self._options.table
        isolation, row_security, in_recovery, encoding, server_encoding = self.session.row("session_verified")
        if in_recovery:
            raise Unsupported(f"{self._options.database} is a replica: point the relay at the primary")
        if (isolation, row_security, encoding) != ("read committed", "off", "UTF8"):
            raise Unsupported(
                f"the relay's session is {isolation} with row_security {row_security} and client_encoding {encoding}, "
                "though it has set read committed, off and UTF8: something in between does not keep session settings "
                "(a transaction pooler?); connect directly"
            )
        if server_encoding == "SQL_ASCII":
            raise Unsupported(
                "the database is in SQL_ASCII, where text may be any bytes, and events are Unicode text: "
                "keep the out table in a database created with ENCODING 'UTF8'"
            )
        settings = self.session.query("sequence_settings")
        if not settings:
            raise Unsupported(
                f"column id of {table} has no sequence of its own named {table}_id_seq: "
                "restore it with GENERATED ALWAYS AS IDENTITY, or rename the sequence back"
            )
        cache, cycle, increment, identity = settings[0]
        if cache != 1 or cycle or increment != 1:
            raise Unsupported(
                f"the sequence of {table} must have CACHE 1, NO CYCLE and INCREMENT 1, it has CACHE {cache}, "
                f"{'CYCLE' if cycle else 'NO CYCLE'}, INCREMENT {increment}: IDs would not be drawn in order; "
                f"run ALTER TABLE {table} ALTER COLUMN id SET CACHE 1 SET NO CYCLE SET INCREMENT 1"
            )
        if identity not in ("a", b"a"):
            raise Unsupported(
                f"column id of {table} is not GENERATED ALWAYS: run ALTER TABLE {table} ALTER COLUMN id SET GENERATED ALWAYS"
            )
        if self.session.value("subscribed"):
            raise Unsupported(
                f"{table} is the target of a logical replication subscription: its IDs are drawn elsewhere"
            )

    def _open_reader(self) -> None:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise Unsupported("reading PostgreSQL needs ADBC: pip install 'outbox-connector[postgresql]'") from error
        try:
            self._reader = dbapi.connect(conninfo(self._options.database, "outbox reader"), autocommit=True)
            with self._reader.cursor() as cursor:
                cursor.execute(block("postgresql", "session_settings", self._options.table))
                cursor.fetchall()
                cursor.execute(block("postgresql", "session_verified", self._options.table))
                isolation, row_security, in_recovery, encoding, _ = cursor.fetchone()
                cursor.execute(block("postgresql", "server_id", self._options.table))
                (server_id,) = cursor.fetchone()
        except dbapi.Error as error:
            raise adbc_error(self._options, error) from error
        settings = (isolation, row_security, encoding)
        if settings != ("read committed", "off", "UTF8") or in_recovery or server_id != self.server_id():
            raise Unsupported(
                f"the reading session is {isolation}, row_security {row_security}, {encoding}, on server {server_id}: the "
                "relay's connections differ; connect to the primary without a pooler or a balancer in between"
            )

    def _prove_sight(self) -> None:
        """The canary: a second session takes the lock, and the listing must show it."""
        import psycopg

        with open_session(self._options, "outbox canary") as canary:
            before = self.holders().sessions
            canary.run("BEGIN")
            key = str(canary.value("canary_key"))
            canary.run("SAVEPOINT canary")
            try:
                canary.query("canary")
            except psycopg.errors.ObjectNotInPrerequisiteState:
                # As expected. The lock belongs to the top transaction and stays.
                canary.run("ROLLBACK TO SAVEPOINT canary")
            after = self.holders().sessions
            canary.run("ROLLBACK")
        if key in before or key not in after:
            raise Unsupported(
                "the fence is blind: a session that holds the sequence's lock is not listed in pg_locks. "
                "The relay's two connections reach different servers, or a pooler stands in between"
            )

    @property
    def session(self) -> Session:
        if self._session is None:
            raise DatabaseUnavailable("the relay's session is closed")
        return self._session

    def info(self) -> Info:
        return read_info(self.session)

    def server_id(self) -> str:
        return str(self.session.value("server_id"))

    def standing(self) -> Standing:
        return Standing(*map(int, self.session.row("standing")))

    def read(self, after: int, limit_rows: int, through: int | None = None) -> Generator[Rows]:
        from adbc_driver_postgresql import dbapi

        # Integers stand in the text: with bound parameters the driver does not use COPY.
        sql = with_integers(
            block("postgresql", "read", self._options.table),
            after=after,
            through=ID_MAX if through is None else through,
            limit_rows=limit_rows,
        )
        try:
            with self._reader.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": PART_BYTES})
                cursor.execute(sql)
                parts = cursor.fetch_record_batch()
                try:
                    for part in parts:
                        if part.num_rows:
                            yield to_rows(part.columns, xids(part.column(COLUMN_COUNT)))
                except GeneratorExit:
                    end_early(cursor, parts)
                    raise
        except (dbapi.Error, pa.ArrowException, OSError) as error:
            raise adbc_error(self._options, error) from error

    def look(self, after: int, limit_rows: int) -> Look:
        sql = with_integers(self._look_sql, after=after, limit_rows=limit_rows)
        (before,), holders, rows, (standing,), _ = self.session.run_each(sql)
        return Look(
            Standing(*map(int, before)),
            Holders(frozenset(key for (key,) in holders)),
            from_python(rows, SCHEMA.field("time").type) if rows else None,
            Standing(*map(int, standing)),
        )

    def make_durable(self, standing: Standing) -> None:
        """With synchronous_commit off a visible row can vanish in a crash, and its ID come again.

        Every row visible at `standing` had its commit record written below `wal_written`.
        """
        if standing.wal_flushed >= standing.wal_written:
            return
        deadline = time.monotonic() + FLUSH_PATIENCE_SECONDS
        while int(self.session.value("wal_flushed")) < standing.wal_written:
            if time.monotonic() >= deadline:
                self.session.query("flush_wal")
                return
            time.sleep(FLUSH_PATIENCE_SECONDS / 8)

    def holders(self) -> Holders:
        return Holders(frozenset(str(key) for (key,) in self.session.query("holders")))

    def ignore(self, session: Session) -> None:
        """A DELETE does not take the sequence's lock: nothing to leave out."""

    def barrier(self) -> tuple[int, frozenset[str]] | None:
        return None

    def late_id(self, deleted_through: int) -> int | None:
        found = self.session.value("late_id", deleted_through=deleted_through)
        return None if found is None else int(found)

    def blockers(self, keys: Iterable[str]) -> list[Blocker]:
        wanted = set(keys)
        return [Blocker(*row) for row in self.session.query("blockers") if row[0] in wanted]

    def terminate(self, blocker: Blocker) -> bool:
        if blocker.pid is None:
            return False
        return bool(self.session.query("terminate", pid=blocker.pid, key=blocker.key))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._reader is not None:
            reader, self._reader = self._reader, None
            try:
                reader.close()
            except Exception:  # a broken connection cannot be closed more than this
                return


def conninfo(url: DatabaseUrl, application: str) -> str:
    """The URL with the settings that libpq needs to notice a server that vanished."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(url.libpq, **connection_defaults(url, application))


def end_early(cursor: Any, parts: pa.RecordBatchReader) -> None:
    """Have the server stop sending: else the next read waits until all rows have come (run: 1.2 s for 1M)."""
    with contextlib.suppress(Exception):  # what is in flight ends with the server's word that it was cancelled
        cursor.adbc_cancel()
        for _ in parts:
            pass


def keep_json_as_text(session: Session) -> None:
    """Have psycopg hand over JSON as it was written, instead of parsing it."""
    from psycopg.types.string import TextLoader

    session.driver.adapters.register_loader("json", TextLoader)


def xids(column: pa.Array) -> pa.Int64Array:
    """Transaction IDs as numbers: ADBC hands them over as four bytes, high byte first."""
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    assert array("I").itemsize == XID_BYTES
    numbers = array("I")
    start = storage.offset * XID_BYTES
    numbers.frombytes(memoryview(storage.buffers()[2])[start : start + len(storage) * XID_BYTES])
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.Array.from_buffers(pa.uint32(), len(numbers), [None, pa.py_buffer(numbers)]).cast(pa.int64())


def adbc_error(options: RelayOptions, error: Exception) -> Exception:
    """A lost connection as `DatabaseUnavailable`; what the server says of a statement as it is."""
    state = (getattr(error, "sqlstate", None) or "").strip("\0")
    if state and state[:2] not in ("08", "53", "40", "57", "55"):
        return error if state[:2] != "42" else Unsupported(f"PostgreSQL refuses the relay's read: {error}")
    if isinstance(error, Transient):
        return error
    return DatabaseUnavailable(f"{options.database} does not answer: {error}")
