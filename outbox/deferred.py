"""Deferred emit: the INSERT waits until just before the outermost COMMIT.

Whoever has drawn an ID holds back every later one until its transaction ends. An event
that is inserted last holds them back for a moment only, however long the transaction was.

Works on the Connection, below any Session, because only there the last moment is known: the
Session has flushed, and nothing comes between the INSERT and the COMMIT (or the PREPARE).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import event

from outbox.connections import class_names
from outbox.errors import EmitError
from outbox.sqlalchemy_connections import connection_of, driver_of, open_connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection, RootTransaction

    from outbox.outbox import Outbox
    from outbox.row import Row


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A row that waits, and the savepoints that were open when it came."""

    outbox: Outbox
    row: Row
    savepoints: frozenset[str]


@dataclass(slots=True)
class _Pending:
    """What waits for one transaction's COMMIT."""

    transaction: RootTransaction | None
    rows: list[_Deferred] = field(default_factory=list)


_pending: WeakKeyDictionary[Connection, _Pending] = WeakKeyDictionary()


def defer(target: Any, outbox: Outbox, rows: Sequence[Row]) -> None:
    """Keep rows for the COMMIT of the target's transaction, or drop them with it."""
    _, connection = open_connection(_connection_of(target))
    transaction = connection.get_transaction()
    pending = _pending.get(connection)
    if pending is None or pending.transaction is not transaction:
        pending = _pending[connection] = _Pending(transaction)
        _listen(connection)
    savepoints = _open_savepoints(connection)
    pending.rows.extend(_Deferred(outbox, row, savepoints) for row in rows)


def _connection_of(target: Any) -> Connection:
    names = class_names(target.__class__)
    if "sqlalchemy.scoped_session" in names:
        return connection_of(target())
    if "sqlalchemy.Session" in names:
        return connection_of(target)
    if "sqlalchemy.Connection" in names:
        connection: Connection = target
        return connection
    raise EmitError(
        f"a deferred emit needs SQLAlchemy, which tells when the COMMIT comes; {names[0]} does not: "
        "emit as the last statement of the transaction instead"
    )


def _open_savepoints(connection: Connection) -> frozenset[str]:
    # The events of SQLAlchemy name a savepoint when it ends, not when it begins, so the open
    # ones are read off the chain of nested transactions; their names are never used twice.
    names = set()
    nested: Any = connection.get_nested_transaction()
    while nested is not None:
        names.add(nested._savepoint)
        nested = nested._previous_nested
    return frozenset(names)


def _listen(connection: Connection) -> None:
    """Once for each engine. Connections without deferred events pay a look-up each."""
    engine = connection.engine
    if event.contains(engine, "commit", _before_commit):
        return
    event.listen(engine, "rollback", _drop)
    event.listen(engine, "rollback_savepoint", _drop_since_savepoint)
    event.listen(engine, "rollback_twophase", _drop_twophase)
    event.listen(engine, "prepare_twophase", _before_prepare)
    event.listen(engine, "commit_twophase", _before_commit_twophase)
    event.listen(engine, "commit", _before_commit)


def _drop(connection: Connection) -> None:
    _pending.pop(connection, None)


def _drop_twophase(connection: Connection, _xid: Any, _is_prepared: bool) -> None:
    _drop(connection)


def _drop_since_savepoint(connection: Connection, name: str, _context: None) -> None:
    pending = _pending.get(connection)
    if pending is not None:
        pending.rows = [deferred for deferred in pending.rows if name not in deferred.savepoints]


def _before_commit(connection: Connection) -> None:
    try:
        _insert(connection)
    except BaseException:
        # SQLAlchemy takes the transaction for ended when a COMMIT fails, and would send no
        # ROLLBACK: the next COMMIT on this connection would commit the changes without their event.
        connection.dialect.do_rollback(connection.connection)
        raise


def _before_prepare(connection: Connection, _xid: Any) -> None:
    _insert(connection)


def _before_commit_twophase(connection: Connection, xid: Any, is_prepared: bool) -> None:
    if is_prepared:
        return
    try:
        _insert(connection)
    except BaseException:
        connection.dialect.do_rollback_twophase(connection, xid, is_prepared=False)
        raise


def _insert(connection: Connection) -> None:
    pending = _pending.pop(connection, None)
    if pending is None or pending.transaction is not connection.get_transaction():
        return
    driver = driver_of(connection)
    for outbox, group in groupby(pending.rows, key=lambda deferred: deferred.outbox):
        outbox.insert(driver, connection, [deferred.row for deferred in group])
