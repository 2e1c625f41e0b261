"""Where there is no transaction to be part of, `emit` refuses before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pymysql
import pytest
from sqlalchemy import create_engine, event, exc, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from outbox import EmitError, NoTransaction, Outbox
from tests.integration.targets import connect, django_alias, install_outbox, sqlalchemy_url, stored

outbox = Outbox()


@pytest.fixture
def installed_url(database_url: str) -> str:
    return install_outbox(database_url)


def refuse(connection: Any, match: str | None = None) -> None:
    with pytest.raises(NoTransaction, match=match):
        outbox.emit(connection, type="t")
    with pytest.raises(NoTransaction, match=match):
        outbox.emit_many(connection, [{"type": "t"}, {"type": "t"}])


def test_closed_connection(installed_url):
    connection = connect(installed_url)
    cursor = connection.cursor()
    connection.close()
    refuse(connection, "closed")
    refuse(cursor)


def test_autocommit_without_a_transaction(installed_url):
    autocommit = {"isolation_level": None} if installed_url.startswith("sqlite") else {"autocommit": True}
    with connect(installed_url, **autocommit) as connection:
        refuse(connection, "begin a transaction first")
    assert stored(installed_url) == []


def test_autocommit_again_after_its_transaction(installed_url):
    autocommit = {"isolation_level": None} if installed_url.startswith("sqlite") else {"autocommit": True}
    with connect(installed_url, **autocommit) as connection:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        outbox.emit(connection, type="t")
        cursor.execute("COMMIT")
        refuse(connection, "begin a transaction first")
    assert len(stored(installed_url)) == 1


def test_mysql_autocommit_switched_by_sql(mariadb_url):
    install_outbox(mariadb_url)
    with connect(mariadb_url) as connection:
        connection.cursor().execute("SET autocommit = 1")
        refuse(connection, "begin a transaction first")
        connection.cursor().execute("SET autocommit = 0")
        outbox.emit(connection, type="t")


def test_psycopg2_closed_and_autocommit(postgresql_url):
    install_outbox(postgresql_url)
    connection = psycopg2.connect(postgresql_url)
    connection.autocommit = True
    refuse(connection, "begin a transaction first")
    connection.cursor().execute("BEGIN")
    outbox.emit(connection, type="t")
    connection.cursor().execute("COMMIT")
    connection.close()
    refuse(connection, "closed")
    assert len(stored(postgresql_url)) == 1


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_failed_transaction(postgresql_url, driver):
    install_outbox(postgresql_url)
    connection = driver.connect(postgresql_url)
    with pytest.raises(driver.Error):
        connection.cursor().execute("SELECT 1 / 0")
    refuse(connection, "rolled back")
    connection.rollback()
    outbox.emit(connection, type="t")
    connection.close()


def test_connection_that_the_server_ended(postgresql_url):
    install_outbox(postgresql_url)
    connection = psycopg.connect(postgresql_url)
    with psycopg.connect(postgresql_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    refuse(connection, "closed")


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_mysql_session_that_cannot_carry_every_text(mariadb_url, charset):
    install_outbox(mariadb_url)
    parts = pymysql.connections.Connection
    with connect(mariadb_url) as probe:
        connection = parts(
            host=probe.host,
            port=probe.port,
            user=probe.user,
            password="secret",
            database=probe.db.decode(),
            charset=charset,
        )
    with pytest.raises(EmitError, match="charset=utf8mb4"):
        outbox.emit(connection, type="t")
    connection.close()


def test_sqlalchemy_connection_closed_or_invalidated(installed_url):
    engine = create_engine(sqlalchemy_url(installed_url))
    connection = engine.connect()
    connection.close()
    refuse(connection, "closed")
    with engine.connect() as connection:
        connection.invalidate()
        refuse(connection, "closed")
    engine.dispose()


def test_sqlalchemy_autocommit_of_the_connection_or_the_engine(installed_url):
    engine = create_engine(sqlalchemy_url(installed_url))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        refuse(connection, "autocommit")
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        refuse(session, "autocommit")
    engine.dispose()
    engine = create_engine(sqlalchemy_url(installed_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        refuse(connection, "autocommit")
        with connection.begin():  # nothing is left of the refused transaction
            refuse(connection, "autocommit")
    engine.dispose()
    assert stored(installed_url) == []


def test_sqlite_with_begin_sent_by_an_event_handler(sqlite_url):
    """SQLAlchemy's recipe for real transactions on SQLite."""
    install_outbox(sqlite_url)
    engine = create_engine(sqlite_url)
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        outbox.emit(connection, type="t")
        connection.commit()
    engine.dispose()
    assert len(stored(sqlite_url)) == 1


def test_sqlalchemy_transaction_that_has_failed(postgresql_url):
    install_outbox(postgresql_url)
    engine = create_engine(sqlalchemy_url(postgresql_url))
    with engine.connect() as connection:
        with pytest.raises(exc.DBAPIError):
            connection.execute(text("SELECT 1 / 0"))
        refuse(connection, "rolled back")
    engine.dispose()


def test_sqlalchemy_transaction_that_was_ended_inside_its_block(installed_url):
    engine = create_engine(sqlalchemy_url(installed_url))
    with engine.connect() as connection, connection.begin() as transaction:
        transaction.rollback()
        refuse(connection)
    with Session(engine) as session, session.begin() as transaction:
        transaction.rollback()
        refuse(session)
    engine.dispose()
    assert stored(installed_url) == []


def test_session_after_a_failed_flush(installed_url):
    engine = create_engine(sqlalchemy_url(installed_url))
    session = Session(engine)
    with pytest.raises(exc.DBAPIError), session.begin_nested():
        session.execute(text("INSERT INTO no_such_table VALUES (1)"))
    session.rollback()
    with session.begin():
        session.get_transaction().rollback()  # as a failed flush does
        refuse(session)
    session.close()
    engine.dispose()


def test_session_closed_for_good_and_without_autobegin(installed_url):
    engine = create_engine(sqlalchemy_url(installed_url))
    closed = Session(engine, close_resets_only=False)
    closed.close()
    refuse(closed)
    with Session(engine, autobegin=False) as session:
        refuse(session)
        with session.begin():
            outbox.emit(session, type="t")
    engine.dispose()
    assert len(stored(installed_url)) == 1


def test_session_of_several_databases_is_told_to_choose(installed_url):
    with pytest.raises(EmitError, match="which one"):
        outbox.emit(Session(), type="t")


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_django_outside_atomic_and_after_an_error_inside(request, database):
    from django.db import connections, transaction

    url = install_outbox(request.getfixturevalue(f"{database}_url"))
    alias = django_alias(url)
    connection = connections[alias]
    refuse(connection, "atomic")
    with transaction.atomic(using=alias):
        transaction.set_rollback(True, using=alias)  # as an error in an inner atomic(savepoint=False) does
        refuse(connection, "rolled back")
    connection.set_autocommit(False)
    outbox.emit(connection.cursor(), type="t")
    connection.commit()
    connection.set_autocommit(True)
    connection.close()
    assert len(stored(url)) == 1


def test_things_that_are_no_connection_are_named(sqlite_url):
    engine = create_engine(sqlite_url)
    with pytest.raises(EmitError, match="Engine hands out connections"):
        outbox.emit(engine, type="t")
    with pytest.raises(EmitError, match="sessionmaker hands out connections"):
        outbox.emit(sessionmaker(engine), type="t")
    for thing in (None, "outbox", object()):
        with pytest.raises(EmitError, match=r"cannot use .*psycopg"):
            outbox.emit(thing, type="t")
        with pytest.raises(EmitError, match=r"cannot use .*psycopg"):
            asyncio.run(outbox.emit_async(thing, type="t"))
    with pytest.raises(EmitError, match="not asynchronous"):
        asyncio.run(outbox.emit_async(sqlite3.connect(":memory:"), type="t"))


def test_asynchronous_connections_need_emit_async(postgresql_url):
    async def work() -> None:
        for connection in (
            await asyncpg.connect(postgresql_url),
            await psycopg.AsyncConnection.connect(postgresql_url),
        ):
            with pytest.raises(EmitError, match="emit_async"):
                outbox.emit(connection, type="t")
            await connection.close()
        engine = create_async_engine(sqlalchemy_url(postgresql_url, "asyncpg"))
        async with engine.connect() as connection:
            with pytest.raises(EmitError, match="emit_async"):
                outbox.emit(connection, type="t")
        await engine.dispose()

    asyncio.run(work())


def test_deferred_emit_needs_sqlalchemy(installed_url):
    with connect(installed_url) as connection, pytest.raises(EmitError, match="last statement"):
        outbox.emit(connection, type="t", deferred=True)


def test_missing_out_table_is_the_databases_error(database_url):
    """Not ours to translate: the application's error handling knows its driver."""
    with connect(database_url) as connection, pytest.raises(Exception, match="outbox") as caught:
        outbox.emit(connection, type="t")
    assert not isinstance(caught.value, EmitError)
