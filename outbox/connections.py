"""The connections that `emit` takes: which database it is, whether a transaction is open,
and how to run a statement on it.

No driver is imported here: a connection is known by the name of its class, and its driver
is loaded, or there would be no connection. Every check reads what the driver already knows;
none costs a round trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outbox.errors import EmitError, NoTransaction

Parameters = tuple[Any, ...]

# The transaction status of libpq, as psycopg and psycopg2 report it.
_IDLE, _IN_TRANSACTION, _IN_ERROR, _UNKNOWN = 0, 2, 3, 4
# Bits of the server status that MySQL sends with every answer.
_MYSQL_IN_TRANSACTION, _MYSQL_AUTOCOMMIT = 1, 2

CLOSED = "the connection is closed: emit before it is closed, inside the transaction that the event belongs to"
AUTOCOMMIT = (
    "the connection is in autocommit mode and no transaction is open, so the event could not commit or roll back with "
    "your changes: begin a transaction first"
)
ABORTED = "the transaction has failed and can only be rolled back: roll back, then do the work and emit again"
SUPPORTED = (
    "SQLAlchemy Session and Connection, psycopg, psycopg2, PyMySQL, mysqlclient, sqlite3 and Django connections, and with "
    "emit_async AsyncSession, AsyncConnection, asyncpg and psycopg's AsyncConnection"
)


@dataclass(frozen=True, eq=False, slots=True)
class Driver:
    """How to run SQL on one kind of connection. Compared by identity, so that it is a fast key."""

    dialect: str
    paramstyle: str
    execute: Callable[[Any, str, Parameters], object]
    execute_many: Callable[[Any, str, list[Parameters]], object]


Opener = Callable[[Any], tuple[Driver, Any]]


def open_connection(connection: Any) -> tuple[Driver, Any]:
    """The driver of a connection and what to run statements on.

    `NoTransaction` when the event could not be part of a transaction.
    """
    # `__class__`, not type(): the tracing proxies of APM libraries answer with what they wrap.
    cls = connection.__class__
    opener = _openers.get(cls)
    if opener is None:
        opener = _openers[cls] = _find_opener(cls)
    return opener(connection)


def class_names(cls: type) -> list[str]:
    """`package.Class` of a class and of those it derives from."""
    return [f"{parent.__module__.split('.')[0]}.{parent.__qualname__}" for parent in cls.__mro__]


def check_driver(connection: Any) -> None:
    """Refuse a driver's connection that has no transaction, under SQLAlchemy too."""
    _CHECKS.get(connection.__class__.__module__.split(".")[0], check_dbapi)(connection)


def check_psycopg(connection: Any) -> None:
    status = connection.pgconn.transaction_status
    if status != _IN_TRANSACTION:
        _check_libpq(status, connection.autocommit)


def check_psycopg2(connection: Any) -> None:
    if connection.closed:
        raise NoTransaction(CLOSED)
    _check_libpq(connection.get_transaction_status(), connection.autocommit)


def _check_libpq(status: int, autocommit: bool) -> None:
    if status == _IDLE and autocommit:
        raise NoTransaction(AUTOCOMMIT)
    if status == _IN_ERROR:
        raise NoTransaction(ABORTED)
    if status == _UNKNOWN:
        raise NoTransaction(CLOSED)


def check_pymysql(connection: Any) -> None:
    """PyMySQL, and aiomysql, which is built from it."""
    if getattr(connection, "closed", False) or not getattr(connection, "open", True):
        raise NoTransaction(CLOSED)
    if connection.server_status & (_MYSQL_AUTOCOMMIT | _MYSQL_IN_TRANSACTION) == _MYSQL_AUTOCOMMIT:
        raise NoTransaction(AUTOCOMMIT)
    _check_charset(connection.charset)


def check_sqlite(connection: Any) -> None:
    """sqlite3, and aiosqlite, which wraps it."""
    try:
        if connection.in_transaction:
            return
        autocommit = connection.isolation_level is None
    except Exception as error:  # each driver has its own way to say so
        raise NoTransaction(CLOSED) from error
    # From Python 3.12 on `autocommit` decides, unless it is -1: then isolation_level still does.
    mode = getattr(connection, "autocommit", -1)
    if autocommit if mode == -1 else mode:
        raise NoTransaction(AUTOCOMMIT)


def check_dbapi(connection: Any) -> None:
    """Any other DB-API driver, as far as it tells."""
    if getattr(connection, "closed", False) is True or getattr(connection, "open", True) in (False, 0):
        raise NoTransaction(CLOSED)
    charset = getattr(connection, "character_set_name", None)
    if callable(charset):
        _check_charset(charset())
    if getattr(connection, "in_transaction", False) is True:
        return
    try:
        get_autocommit = getattr(connection, "get_autocommit", None)
        autocommit = get_autocommit() if callable(get_autocommit) else getattr(connection, "autocommit", False)
    except Exception as error:  # MySQL Connector asks the server
        raise NoTransaction(CLOSED) from error
    if autocommit is True or autocommit == 1:
        raise NoTransaction(AUTOCOMMIT)


_CHECKS: dict[str, Callable[[Any], None]] = {
    "psycopg": check_psycopg,
    "psycopg2": check_psycopg2,
    "pymysql": check_pymysql,
    "aiomysql": check_pymysql,
    "sqlite3": check_sqlite,
    "aiosqlite": check_sqlite,
}


def _check_charset(name: str) -> None:
    # Anything less cannot carry every character, and outside strict mode MySQL cuts the text there.
    if name != "utf8mb4":
        raise EmitError(
            f"the connection's character set is {name}, which cannot carry every text: connect with charset=utf8mb4"
        )


def _execute(connection: Any, sql: str, parameters: Parameters) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(sql, parameters)
    finally:
        cursor.close()


def _execute_many(connection: Any, sql: str, rows: list[Parameters]) -> None:
    cursor = connection.cursor()
    try:
        cursor.executemany(sql, rows)
    finally:
        cursor.close()


# Cursors of our own, below: the connection's cursor factory may make raw or server-side ones.
def _psycopg_execute(connection: Any, sql: str, parameters: Parameters) -> None:
    import psycopg

    psycopg.Cursor(connection).execute(sql, parameters)


def _psycopg_execute_many(connection: Any, sql: str, rows: list[Parameters]) -> None:
    import psycopg

    psycopg.Cursor(connection).executemany(sql, rows)


_PSYCOPG = Driver("postgresql", "format", _psycopg_execute, _psycopg_execute_many)
_SQLITE = Driver(
    "sqlite",
    "qmark",
    lambda connection, sql, parameters: connection.execute(sql, parameters),
    lambda connection, sql, rows: connection.executemany(sql, rows),
)
_PYMYSQL = Driver("mysql", "format", _execute, _execute_many)
# Django's cursors take %s on every database, SQLite included.
_DJANGO = {name: Driver(name, "format", _execute, _execute_many) for name in ("postgresql", "mysql", "sqlite")}
# DB-API drivers that nothing above knows, by their package.
_DBAPI = {
    "psycopg2": Driver("postgresql", "format", _execute, _execute_many),
    "pg8000": Driver("postgresql", "format", _execute, _execute_many),
    "MySQLdb": _PYMYSQL,
    "mysql": _PYMYSQL,
}


def _open_psycopg(connection: Any) -> tuple[Driver, Any]:
    check_psycopg(connection)
    return _PSYCOPG, connection


def _open_pymysql(connection: Any) -> tuple[Driver, Any]:
    check_pymysql(connection)
    return _PYMYSQL, connection


def _open_sqlite(connection: Any) -> tuple[Driver, Any]:
    check_sqlite(connection)
    return _SQLITE, connection


def _open_django(connection: Any) -> tuple[Driver, Any]:
    driver = _DJANGO.get(connection.vendor)
    if driver is None:
        raise EmitError(
            f"Django's {connection.vendor} backend is not supported: use PostgreSQL, MySQL, MariaDB or SQLite"
        )
    if connection.in_atomic_block:
        if connection.needs_rollback:
            raise NoTransaction(ABORTED)
        if connection.closed_in_transaction:
            raise NoTransaction(CLOSED)
    elif connection.get_autocommit():
        raise NoTransaction("Django commits each statement on its own here: emit inside transaction.atomic()")
    return driver, connection


def _open_session(session: Any) -> tuple[Driver, Any]:
    from outbox import sqlalchemy_connections

    return sqlalchemy_connections.open_session(session)


def _open_sqlalchemy(connection: Any) -> tuple[Driver, Any]:
    from outbox import sqlalchemy_connections

    return sqlalchemy_connections.open_connection(connection)


def _refuse_async(connection: Any) -> tuple[Driver, Any]:
    raise EmitError(f"{connection.__class__.__name__} is asynchronous: use `await outbox.emit_async(…)`")


def _refuse_factory(connection: Any) -> tuple[Driver, Any]:
    name = connection.__class__.__name__
    raise EmitError(f"{name} hands out connections, it is not in a transaction itself: pass a connection that it gave")


_OPENERS: dict[str, Opener] = {
    "sqlite3.Connection": _open_sqlite,
    "psycopg.Connection": _open_psycopg,
    "pymysql.Connection": _open_pymysql,
    "sqlalchemy.Session": _open_session,
    "sqlalchemy.scoped_session": lambda registry: _open_session(registry()),
    "sqlalchemy.Connection": _open_sqlalchemy,
    "sqlalchemy.PoolProxiedConnection": lambda fairy: open_connection(fairy.driver_connection),
    "django.BaseDatabaseWrapper": _open_django,
    "django.ConnectionProxy": _open_django,
    "django.CursorWrapper": lambda cursor: _open_django(cursor.db),
    # A cursor stands for its connection: its own result set is left alone.
    "sqlite3.Cursor": lambda cursor: open_connection(cursor.connection),
    "psycopg.Cursor": lambda cursor: open_connection(cursor.connection),
    "psycopg2.cursor": lambda cursor: open_connection(cursor.connection),
    "pymysql.Cursor": lambda cursor: open_connection(cursor.connection),
    "sqlalchemy.AsyncSession": _refuse_async,
    "sqlalchemy.async_scoped_session": _refuse_async,
    "sqlalchemy.AsyncConnection": _refuse_async,
    "psycopg.AsyncConnection": _refuse_async,
    "psycopg.AsyncCursor": _refuse_async,
    "asyncpg.Connection": _refuse_async,
    "asyncpg.PoolConnectionProxy": _refuse_async,
    "sqlalchemy.Engine": _refuse_factory,
    "sqlalchemy.sessionmaker": _refuse_factory,
    "psycopg_pool.BasePool": _refuse_factory,
}
_openers: dict[type, Opener] = {}


def _find_opener(cls: type) -> Opener:
    names = class_names(cls)
    for name in names:
        if name in _OPENERS:
            return _OPENERS[name]
    for name in names:
        driver = _DBAPI.get(name.split(".")[0])
        if driver is not None and hasattr(cls, "cursor"):
            return _dbapi_opener(driver)
    raise EmitError(f"emit cannot use a {names[0]}: it takes {SUPPORTED}")


def _dbapi_opener(driver: Driver) -> Opener:
    def open_dbapi(connection: Any) -> tuple[Driver, Any]:
        check_driver(connection)
        return driver, connection

    return open_dbapi
