"""SQLAlchemy's sessions and connections. Loaded only when `emit` is given one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

from outbox.connections import ABORTED, AUTOCOMMIT, CLOSED, Driver, Parameters, check_driver
from outbox.errors import EmitError, NoTransaction

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, RootTransaction
    from sqlalchemy.orm import Session

_DIALECTS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
# Positional parameters throughout: every driver takes a tuple, whatever SQLAlchemy itself uses.
_POSITIONAL = {"pyformat": "format", "format": "format", "qmark": "qmark", "numeric_dollar": "numeric_dollar"}
_drivers: dict[tuple[str, str], Driver] = {}


def connection_of(session: Session) -> Connection:
    """The session's connection, in its transaction."""
    try:
        return session.connection()
    except exc.UnboundExecutionError as error:
        raise EmitError(
            "the Session has several databases and does not know which one is meant: pass the Connection of the one with "
            "the out table, session.connection(bind_arguments={'mapper': …})"
        ) from error
    except exc.InvalidRequestError as error:
        raise NoTransaction(f"the Session has no transaction to emit in: {error}") from error


def open_session(session: Session) -> tuple[Driver, Connection]:
    return open_connection(connection_of(session))


def open_connection(connection: Connection) -> tuple[Driver, Connection]:
    """The connection's driver; a transaction is begun as any statement would begin it."""
    driver = driver_of(connection)
    if connection.closed or connection.invalidated:
        raise NoTransaction(CLOSED)
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise NoTransaction(AUTOCOMMIT)
    transaction = connection.get_nested_transaction() or connection.get_transaction()
    if transaction is None:
        # Before the driver is looked at: for some (SQLite) an event handler sends the BEGIN.
        begun = _begin(connection)
        try:
            _check(connection)
        except EmitError:
            begun.rollback()
            raise
    elif not transaction.is_active:
        raise NoTransaction(ABORTED)
    elif getattr(transaction, "_is_prepared", False):
        raise NoTransaction(
            "the two-phase transaction is already prepared and can take no event: emit before prepare()"
        )
    else:
        _check(connection)
    return driver, connection


def driver_of(connection: Connection) -> Driver:
    dialect = connection.dialect
    key = (dialect.name, dialect.paramstyle)
    driver = _drivers.get(key)
    if driver is None:
        name = _DIALECTS.get(dialect.name)
        # sqlite3 always takes question marks, also where an engine was told to name parameters.
        style = "qmark" if name == "sqlite" else _POSITIONAL.get(dialect.paramstyle)
        if name is None or style is None:
            raise EmitError(
                f"SQLAlchemy's {dialect.name}+{dialect.driver} is not supported: use PostgreSQL, MySQL, MariaDB or SQLite"
            )
        driver = _drivers[key] = Driver(name, style, _execute, _execute)
    return driver


def _begin(connection: Connection) -> RootTransaction:
    try:
        return connection.begin()
    except exc.InvalidRequestError as error:
        raise NoTransaction(f"the connection has no transaction to emit in: {error}") from error


def _check(connection: Connection) -> None:
    pooled = connection.connection
    if getattr(pooled.dbapi_connection, "isolation_level", None) == "autocommit":
        # SQLAlchemy's adapter of asyncpg: it knows before asyncpg does, which begins late.
        raise NoTransaction(AUTOCOMMIT)
    driver_connection: Any = pooled.driver_connection
    if not driver_connection.__class__.__module__.startswith("asyncpg"):
        check_driver(driver_connection)


def _execute(connection: Connection, sql: str, parameters: Parameters | list[Parameters]) -> None:
    try:
        connection.exec_driver_sql(sql, parameters)
    except exc.InvalidRequestError as error:
        raise NoTransaction(f"the connection has no transaction to emit in: {error}") from error
