"""The consumer's own database: an engine, a sessionmaker or a function that connects.

Statements of the inbox and of the handler run on one connection, in one transaction.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from outbox.connections import class_names, open_connection
from outbox.database import is_connection_error, one_line
from outbox.errors import DatabaseUnavailable, NoTransaction, UsageError
from outbox.queries import block, with_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox.connections import Driver
    from outbox.names import OutTable

TAKEN = "a SQLAlchemy Engine, a sessionmaker, or a function that opens a psycopg, PyMySQL or sqlite3 connection"

ENGINE_DRIVERS = frozenset({"psycopg", "pymysql", "pysqlite"})


class Work:
    """One transaction. `given` is what the handler gets: a Session, a Connection, a driver's connection."""

    def __init__(self, table: OutTable, driver: Driver, opened: Any, given: Any) -> None:
        self.dialect = driver.dialect
        self.given = given
        self._table = table
        self._driver = driver
        self._opened = opened

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a block and return its rows."""
        return self._run(name, parameters)[0]

    def change(self, name: str, /, **parameters: Any) -> int:
        """Run a block that changes rows and return how many."""
        return self._run(name, parameters)[1]

    def change_each(self, name: str, /, rows: Sequence[dict[str, Any]]) -> None:
        """Run a block once for each row."""
        if rows:
            sql, names = _rendered(self._driver, name, self._table)
            self._driver.execute_many(self._opened, sql, [tuple(row[name] for name in names) for row in rows])

    def flush(self) -> None:
        """Write what a Session still keeps to itself."""
        if hasattr(self.given, "flush"):
            self.given.flush()

    def commit(self) -> None:
        self.given.commit()

    def rollback(self) -> bool:
        """Undo everything; whether the connection is still good."""
        # SQLAlchemy's rollback of a connection that broke succeeds, and forgets that it broke.
        is_broken = getattr(self._opened, "invalidated", False)
        try:
            self.given.rollback()
        except Exception:
            return False
        return not is_broken

    @property
    def is_closed(self) -> bool:
        """Whether somebody has closed the connection, as psycopg's own `with connection:` does after a commit."""
        return bool(getattr(self._opened, "closed", False)) and not getattr(self._opened, "broken", False)

    def _run(self, name: str, parameters: dict[str, Any]) -> tuple[list[tuple[Any, ...]], int]:
        sql, names = _rendered(self._driver, name, self._table)
        values = tuple(parameters[name] for name in names)
        if hasattr(self._opened, "exec_driver_sql"):
            result = self._opened.exec_driver_sql(sql, values or None, execution_options={"preserve_rowcount": True})
            return [tuple(row) for row in result] if result.returns_rows else [], result.rowcount
        with contextlib.closing(_cursor(self._opened)) as cursor:
            cursor.execute(sql, values)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else [], cursor.rowcount


class Database(Protocol):
    """Where a consumer keeps its effects and its position."""

    def begin(self) -> Work:
        """A transaction, on a connection that is made when there is none."""

    def close(self) -> None:
        """Let go of the connection."""


class _Connections:
    """Transactions on one connection after the other: an Engine's, or those of a function."""

    def __init__(self, table: OutTable, connect: Callable[[], Any]) -> None:
        self._table = table
        self._connect = connect
        self._connection: Any = None

    def begin(self) -> Work:
        if self._connection is None:
            self._connection = _translated(self._connect)
        driver, opened = _checked(self._connection)
        return Work(self._table, driver, opened, self._connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


class _Sessions:
    """A new Session for each transaction, so that no object outlives it."""

    def __init__(self, table: OutTable, sessions: Callable[[], Any]) -> None:
        self._table = table
        self._sessions = sessions
        self._session: Any = None

    def begin(self) -> Work:
        self.close()
        self._session = self._sessions()
        driver, opened = _checked(self._session)
        return Work(self._table, driver, opened, self._session)

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()


def open_database(database: Any, table: OutTable) -> Database:
    """What an inbox works on, by what it was given."""
    names = class_names(database.__class__)
    if "sqlalchemy.Engine" in names:
        _require_known_driver(database)
        return _Connections(table, database.connect)
    if "sqlalchemy.sessionmaker" in names:
        _require_known_driver(database.kw.get("bind"))
        return _Sessions(table, database)
    if callable(database) and not isinstance(database, type):
        return _Connections(table, database)
    raise UsageError(f"an inbox cannot work on a {names[0]}: it takes {TAKEN}")


def _require_known_driver(engine: Any) -> None:
    """Errors of other drivers could not be told apart: a lost connection would count as a failed event."""
    driver = getattr(getattr(engine, "dialect", None), "driver", None)
    if driver is not None and driver not in ENGINE_DRIVERS:
        raise UsageError(
            f"an inbox cannot work on an engine with the driver {driver}: use postgresql+psycopg://, mysql+pymysql:// "
            "or sqlite://"
        )


def root_of(error: BaseException) -> BaseException:
    """The driver's own error inside SQLAlchemy's."""
    found = getattr(error, "orig", None)
    return found if isinstance(found, BaseException) else error


def is_passing(error: BaseException) -> bool:
    """Whether the database or the way to it is at fault: trying again can help."""
    return is_connection_error(root_of(error)) or bool(getattr(error, "connection_invalidated", False))


def has_failed_transaction(error: BaseException) -> bool:
    """Whether PostgreSQL refuses a statement because one before it has failed: the transaction is still there."""
    root = root_of(error)
    return "25P02" in (getattr(root, "sqlstate", None), getattr(root, "pgcode", None))


def _translated(connect: Callable[[], Any]) -> Any:
    try:
        return connect()
    except Exception as error:
        if is_passing(error):
            raise DatabaseUnavailable(f"the inbox's database does not answer: {one_line(error)}") from error
        raise


def _checked(connection: Any) -> tuple[Driver, Any]:
    try:
        return open_connection(connection)
    except NoTransaction as error:
        if getattr(connection, "closed", False):
            raise DatabaseUnavailable(f"the inbox's connection is closed: {error}") from error
        raise UsageError(
            f"the inbox needs connections with transactions, not in autocommit mode: {error}. Open them as the driver does "
            "by default"
        ) from error


_statements: dict[tuple[Driver, str, OutTable], tuple[str, list[str]]] = {}


def _rendered(driver: Driver, name: str, table: OutTable) -> tuple[str, list[str]]:
    found = _statements.get((driver, name, table))
    if found is None:
        found = with_parameters(block(driver.dialect, name, table), driver.paramstyle)
        _statements[driver, name, table] = found
    return found


def _cursor(connection: Any) -> Any:
    """A cursor whose rows are tuples, whatever the connection's own factory makes."""
    package = connection.__class__.__module__.split(".")[0]
    if package == "psycopg":
        import psycopg
        from psycopg.rows import tuple_row

        return psycopg.Cursor(connection, row_factory=tuple_row)
    if package == "pymysql":
        from pymysql.cursors import Cursor

        return connection.cursor(Cursor)
    cursor = connection.cursor()
    if package == "sqlite3":
        cursor.row_factory = None
    return cursor
