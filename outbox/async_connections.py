"""The asynchronous connections that `emit_async` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox.connections import ABORTED, AUTOCOMMIT, CLOSED, SUPPORTED, Parameters, check_psycopg, class_names
from outbox.errors import EmitError, NoTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, eq=False, slots=True)
class AsyncDriver:
    """How to run SQL on one kind of asynchronous connection."""

    dialect: str
    paramstyle: str
    execute: Callable[[Any, str, Parameters], Awaitable[object]]
    execute_many: Callable[[Any, str, list[Parameters]], Awaitable[object]]


def sync_runner(connection: Any) -> Callable[..., Awaitable[Any]] | None:
    """SQLAlchemy's `run_sync`, with which its asynchronous classes take the synchronous way."""
    names = class_names(connection.__class__)
    if "sqlalchemy.async_scoped_session" in names:
        connection = connection()
    elif "sqlalchemy.AsyncSession" not in names and "sqlalchemy.AsyncConnection" not in names:
        return None

    async def run_sync(write: Callable[..., Any], *arguments: Any) -> Any:
        from sqlalchemy import exc

        try:
            return await connection.run_sync(write, *arguments)
        except exc.InvalidRequestError as error:
            raise NoTransaction(f"the connection is not open: {error}") from error

    return run_sync


def open_async_connection(connection: Any) -> tuple[AsyncDriver, Any]:
    """The driver of a connection and what to run statements on; `NoTransaction` as for `emit`."""
    names = class_names(connection.__class__)
    for name in names:
        if name in _OPENERS:
            return _OPENERS[name](connection)
    if hasattr(connection, "cursor") or hasattr(connection, "connection"):
        raise EmitError(f"{names[0]} is not asynchronous: use outbox.emit(…) without await")
    raise EmitError(f"emit_async cannot use a {names[0]}: it takes {SUPPORTED}")


async def _asyncpg_execute(connection: Any, sql: str, parameters: Parameters) -> None:
    try:
        await connection.execute(sql, *parameters)
    except Exception as error:
        _refuse_aborted(error)
        raise


async def _asyncpg_execute_many(connection: Any, sql: str, rows: list[Parameters]) -> None:
    try:
        await connection.executemany(sql, rows)
    except Exception as error:
        _refuse_aborted(error)
        raise


def _refuse_aborted(error: Exception) -> None:
    # asyncpg tells only with the statement's error that the transaction had failed before.
    if getattr(error, "sqlstate", None) == "25P02":
        raise NoTransaction(ABORTED) from error


async def _psycopg_execute(connection: Any, sql: str, parameters: Parameters) -> None:
    import psycopg

    await psycopg.AsyncCursor(connection).execute(sql, parameters)


async def _psycopg_execute_many(connection: Any, sql: str, rows: list[Parameters]) -> None:
    import psycopg

    await psycopg.AsyncCursor(connection).executemany(sql, rows)


_ASYNCPG = AsyncDriver("postgresql", "numeric_dollar", _asyncpg_execute, _asyncpg_execute_many)
_PSYCOPG = AsyncDriver("postgresql", "format", _psycopg_execute, _psycopg_execute_many)


def _open_asyncpg(connection: Any) -> tuple[AsyncDriver, Any]:
    try:
        closed, begun = connection.is_closed(), connection.is_in_transaction()
    except Exception as error:  # it went back to its pool
        raise NoTransaction(CLOSED) from error
    if closed:
        raise NoTransaction(CLOSED)
    if not begun:
        raise NoTransaction(AUTOCOMMIT)
    return _ASYNCPG, connection


def _open_psycopg(connection: Any) -> tuple[AsyncDriver, Any]:
    check_psycopg(connection)
    return _PSYCOPG, connection


_OPENERS: dict[str, Callable[[Any], tuple[AsyncDriver, Any]]] = {
    "asyncpg.Connection": _open_asyncpg,
    "asyncpg.PoolConnectionProxy": _open_asyncpg,
    "psycopg.AsyncConnection": _open_psycopg,
    "psycopg.AsyncCursor": lambda cursor: _open_psycopg(cursor.connection),
}
