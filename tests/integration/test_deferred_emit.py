"""Deferred emit: checked at once, inserted just before the outermost COMMIT."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import create_engine, event, exc, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import InvalidEvent, NoTransaction, Outbox
from tests.integration.targets import Order, install_outbox, orders, sqlalchemy_url, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.engine import Connection

outbox = Outbox()


class Failure(Exception):
    """What rolls a transaction back."""


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    install_outbox(database_url)
    engine = create_engine(sqlalchemy_url(database_url))
    if engine.dialect.name == "sqlite":
        # SQLAlchemy's recipe: pysqlite by itself begins too late for savepoints.
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    yield engine
    engine.dispose()


@pytest.fixture
def sent(engine: Engine) -> list[str]:
    """The statements as they go out, shortened, with the ends of transactions."""
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(" ".join(arguments[2].split()[:3])))
    for name in ("commit", "rollback"):
        event.listen(engine, name, lambda _, name=name: sent.append(name.upper()))
    return sent


def types(url: str) -> list[str]:
    return [row[0] for row in stored(url)]


def defer(target: Session | Connection, *names: str) -> None:
    for name in names:
        outbox.emit(target, type=name, deferred=True)


def test_insert_comes_after_the_flush_and_right_before_the_commit(engine, database_url, sent):
    with Session(engine) as session, session.begin():
        defer(session, "first")
        session.add(Order(id=1))
        session.execute(text("SELECT 1"))
        assert not any("outbox" in statement for statement in sent)
        session.add(Order(id=2))
    last_order = max(index for index, statement in enumerate(sent) if "orders" in statement)
    insert = next(index for index, statement in enumerate(sent) if "outbox" in statement)
    assert last_order < insert
    # (The COMMIT's own event comes first when it was listened to first; nothing else follows.)
    assert [statement for statement in sent[insert + 1 :] if statement != "COMMIT"] == []
    assert types(database_url) == ["first"]
    assert orders(database_url) == 2


def test_transaction_holds_no_id_before_its_commit(postgresql_url):
    """What it is for: no lock on the sequence, so the relay need not wait."""
    install_outbox(postgresql_url)
    engine = create_engine(sqlalchemy_url(postgresql_url))
    holders = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_id_seq'::regclass AND mode = 'RowExclusiveLock'"
    with psycopg.connect(postgresql_url, autocommit=True) as relay, Session(engine) as session, session.begin():
        defer(session, "deferred")
        session.add(Order(id=1))
        session.flush()
        assert relay.execute(holders).fetchone() == (0,)
        outbox.emit(session, type="at once")
        assert relay.execute(holders).fetchone() == (1,)
    engine.dispose()
    assert types(postgresql_url) == ["at once", "deferred"]


@pytest.mark.parametrize("kind", ["connection", "session", "scoped_session"])
def test_order_is_kept_among_deferred_events(engine, database_url, kind):
    opened = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
    }[kind]()
    defer(opened, "first", "second")
    outbox.emit_many(opened, [{"type": "third", "data": 3}, {"type": "fourth"}], deferred=True)
    outbox.emit(opened, type="at once")
    Outbox().emit(opened, type="fifth", deferred=True)
    assert types(database_url) == [] or engine.dialect.name == "sqlite"
    opened.commit()
    opened.close()
    assert types(database_url) == ["at once", "first", "second", "third", "fourth", "fifth"]


def test_each_transaction_of_a_connection_has_its_own(engine, database_url):
    with engine.connect() as connection:
        defer(connection, "first")
        connection.commit()
        connection.commit()
        defer(connection, "dropped")
        connection.rollback()
        connection.commit()
        connection.execute(text("SELECT 1"))
        connection.commit()
        with connection.begin():
            defer(connection, "second")
    assert types(database_url) == ["first", "second"]


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_rollback_drops_all(engine, database_url, kind):
    with engine.connect() if kind == "connection" else Session(engine) as opened:
        with contextlib.suppress(Failure), opened.begin():
            defer(opened, "dropped")
            raise Failure
        with opened.begin():
            opened.execute(text("SELECT 1"))
    assert types(database_url) == []


def test_close_without_commit_drops_all(engine, database_url):
    connection = engine.connect()
    defer(connection, "dropped")
    connection.close()
    session = Session(engine)
    defer(session, "dropped")
    session.close()
    with engine.begin() as connection:  # very likely the same driver's connection
        connection.execute(text("SELECT 1"))
    assert types(database_url) == []


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_savepoints(engine, database_url, kind):
    opened = engine.connect() if kind == "connection" else Session(engine)
    with opened, opened.begin():
        defer(opened, "before")
        with contextlib.suppress(Failure), opened.begin_nested():
            defer(opened, "rolled back")
            with opened.begin_nested():
                defer(opened, "released inside what is rolled back")
            raise Failure
        with opened.begin_nested():
            defer(opened, "released")
            with contextlib.suppress(Failure), opened.begin_nested():
                defer(opened, "rolled back inside what is released")
                raise Failure
            defer(opened, "released too")
        defer(opened, "after")
    assert types(database_url) == ["before", "released", "released too", "after"]


def test_savepoint_that_was_open_before_the_first_deferred_event(engine, database_url):
    with engine.connect() as connection, connection.begin():
        outer = connection.begin_nested()
        inner = connection.begin_nested()
        defer(connection, "rolled back with the outer one")
        inner.commit()
        outer.rollback()
        defer(connection, "kept")
    assert types(database_url) == ["kept"]


def test_root_commit_with_a_savepoint_still_open_keeps_its_events(engine, database_url):
    with engine.connect() as connection:
        connection.begin()
        connection.begin_nested()
        defer(connection, "kept")
        connection.commit()
    assert types(database_url) == ["kept"]


def test_session_inside_a_connections_transaction_waits_for_the_outermost_commit(engine, database_url):
    with engine.connect() as connection:
        with connection.begin():
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                defer(session, "kept")
                session.commit()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                defer(session, "dropped")
                session.rollback()
        with connection.begin() as transaction:
            with Session(connection) as session:
                defer(session, "dropped")
                session.commit()
            transaction.rollback()
    assert types(database_url) == ["kept"]


def test_bad_event_is_refused_at_once(engine, database_url):
    with Session(engine) as session, session.begin():
        with pytest.raises(InvalidEvent):
            outbox.emit(session, type="t", data=float("nan"), deferred=True)
        defer(session, "good")
    assert types(database_url) == ["good"]


def test_no_transaction_is_refused_at_once(engine):
    connection = engine.connect()
    connection.close()
    with pytest.raises(NoTransaction):
        defer(connection, "t")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, pytest.raises(NoTransaction):
        defer(connection, "t")


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_failing_insert_fails_the_commit_and_takes_the_changes_with_it(engine, database_url, kind):
    opened = engine.connect() if kind == "connection" else Session(engine)
    with opened:
        opened.execute(text("INSERT INTO orders (id) VALUES (1)"))
        Outbox("no_such_outbox").emit(opened, type="t", deferred=True)
        with pytest.raises(exc.DBAPIError):
            opened.commit()
        opened.rollback()
        # The connection is good for the next transaction, and the order of the last is gone.
        opened.execute(text("INSERT INTO orders (id) VALUES (2)"))
        defer(opened, "good")
        opened.commit()
    assert types(database_url) == ["good"]
    assert orders(database_url) == 1


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("prepared", [True, False])
def test_two_phase_commit(request, database, prepared):
    url = install_outbox(request.getfixturevalue(f"{database}_url"))
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        defer(connection, "kept")
        if prepared:
            transaction.prepare()
        transaction.commit()
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        defer(connection, "dropped")
        if prepared:
            transaction.prepare()
        transaction.rollback()
    with Session(engine, twophase=True) as session:
        session.add(Order(id=2))
        defer(session, "session")
        if prepared:
            session.prepare()
        session.commit()
    engine.dispose()
    assert types(url) == ["kept", "session"]
    assert orders(url) == 2


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("prepared", [True, False])
def test_failing_insert_fails_the_two_phase_commit(request, database, prepared):
    url = install_outbox(request.getfixturevalue(f"{database}_url"))
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        Outbox("no_such_outbox").emit(connection, type="t", deferred=True)
        with pytest.raises(exc.DBAPIError):
            transaction.prepare() if prepared else transaction.commit()
        transaction.rollback()
        connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
        connection.commit()
    engine.dispose()
    assert orders(url) == 1


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_prepared_transaction_takes_no_more_events(request, database):
    """Its COMMIT could not bring them along, and nothing is dropped silently."""
    url = install_outbox(request.getfixturevalue(f"{database}_url"))
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        defer(connection, "in time")
        transaction.prepare()
        with pytest.raises(NoTransaction, match="before prepare"):
            defer(connection, "late")
        with pytest.raises(NoTransaction, match="before prepare"):
            outbox.emit(connection, type="late")
        transaction.commit()
    engine.dispose()
    assert types(url) == ["in time"]


def test_optioned_engine_inserts_once(engine, database_url):
    """Engine and its copy with options share events: the row must not come twice."""
    with engine.begin() as connection:
        defer(connection, "plain")
    with engine.execution_options(logging_token="copy").begin() as connection:
        defer(connection, "copy")
        with contextlib.suppress(Failure), connection.begin_nested():
            defer(connection, "rolled back")
            raise Failure
    with engine.begin() as connection:
        defer(connection, "plain")
    assert types(database_url) == ["plain", "copy", "plain"]


def test_several_outboxes_in_one_transaction(engine, database_url):
    from outbox import OutTable

    install_outbox(database_url, OutTable("audit"))
    audit = Outbox("audit")
    with Session(engine) as session, session.begin():
        defer(session, "first")
        audit.emit(session, type="seen", deferred=True)
        defer(session, "second")
    assert types(database_url) == ["first", "second"]
    assert [row[0] for row in stored(database_url, OutTable("audit"))] == ["seen"]
