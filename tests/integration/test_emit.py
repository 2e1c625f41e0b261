"""`emit` on every kind of connection: in the caller's transaction, and only there."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from outbox import Event, InvalidEvent, Outbox, OutTable
from outbox.database import DatabaseUrl
from outbox.grants import grant_writer
from tests.integration.targets import (
    EVERY_WAY,
    WAYS,
    Order,
    Target,
    connect,
    install_outbox,
    orders,
    sqlalchemy_url,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

outbox = Outbox()
ORDER = {"type": "order.paid", "subject": "o-17", "data": {"total": 12.5, "name": "Zoë 🦊"}}
ORDER_ROW = ("order.paid", "o-17", '{"total":12.5,"name":"Zoë 🦊"}', None, None, None)


@pytest.fixture(params=EVERY_WAY, ids=lambda pair: "-".join(pair))
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[str, Target]]:
    """A database with an outbox, and a connection of an application to it."""
    database, way = request.param
    url = install_outbox(str(request.getfixturevalue(f"{database}_url")))
    target = WAYS[way](url)
    yield url, target
    target.close()


@pytest.fixture
def installed_url(database_url: str) -> str:
    return install_outbox(database_url)


def test_event_commits_with_the_transaction_and_not_before(opened):
    url, target = opened
    target.run("INSERT INTO orders (id) VALUES (17)")
    outbox.emit(target.connection, **ORDER)
    if not url.startswith("sqlite"):
        # (A reader of SQLite's rollback journal would wait here.)
        assert stored(url) == []
    target.commit()
    assert [row[:6] for row in stored(url)] == [ORDER_ROW]
    assert orders(url) == 1


def test_rollback_leaves_nothing(opened):
    url, target = opened
    target.run("INSERT INTO orders (id) VALUES (17)")
    outbox.emit(target.connection, **ORDER)
    outbox.emit_many(target.connection, [ORDER, ORDER])
    target.rollback()
    assert stored(url) == []
    assert orders(url) == 0


def test_savepoint_takes_its_events_with_it(opened):
    url, target = opened
    outbox.emit(target.connection, type="before")
    target.run("SAVEPOINT one")
    outbox.emit(target.connection, type="rolled back")
    outbox.emit_many(target.connection, [{"type": "rolled back"}, {"type": "rolled back"}])
    target.run("ROLLBACK TO SAVEPOINT one")
    target.run("SAVEPOINT two")
    outbox.emit(target.connection, type="released")
    target.run("RELEASE SAVEPOINT two")
    target.commit()
    assert [row[0] for row in stored(url)] == ["before", "released"]


def test_many_events_keep_their_order_and_content(opened):
    url, target = opened
    time = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=2)))
    outbox.emit_many(
        target.connection,
        [
            ORDER,
            {"type": "binary", "data_bytes": b"\x00\xff'\\%s", "datacontenttype": "application/avro"},
            {"type": "tombstone", "subject": "o-17"},
            {"type": "at a time", "data_json": ' {"a" : 1.10 }', "time": time},
            Event(99, "event", "", data_json="null", headers={"traceparent": "00-1-2-01", "n": 3}),
            *({"type": "bulk", "subject": str(number), "data": number} for number in range(250)),
        ],
    )
    target.commit()
    rows = stored(url)
    assert [row[:6] for row in rows[:5]] == [
        ORDER_ROW,
        ("binary", None, None, b"\x00\xff'\\%s", "application/avro", None),
        ("tombstone", "o-17", None, None, None, None),
        ("at a time", None, ' {"a" : 1.10 }', None, None, None),
        ("event", "", "null", None, None, '{"traceparent":"00-1-2-01","n":3}'),
    ]
    assert [row[:3] for row in rows[5:]] == [("bulk", str(number), str(number)) for number in range(250)]
    assert as_utc(rows[3][6]) == time
    assert all(abs(as_utc(row[6]) - datetime.now(UTC)) < timedelta(hours=1) for row in (rows[0], rows[-1]))


def test_single_event_at_a_time_of_its_own(opened):
    url, target = opened
    time = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    outbox.emit(target.connection, type="old", time=time)
    target.commit()
    assert as_utc(stored(url)[0][6]) == time


def test_refused_event_writes_nothing_and_leaves_the_transaction_usable(opened):
    url, target = opened
    target.run("INSERT INTO orders (id) VALUES (17)")
    for bad in (
        {"type": ""},
        {"type": "t", "data": float("nan")},
        {"type": "t", "data": "x" * 2_000_000},
        {"type": "t", "data": {1}},
    ):
        with pytest.raises(InvalidEvent):
            outbox.emit(target.connection, **bad)
    with pytest.raises(InvalidEvent, match="event 2 "):
        outbox.emit_many(target.connection, [ORDER, ORDER, {"type": "t", "subject": "a\0b"}])
    target.commit()
    assert stored(url) == []
    assert orders(url) == 1


def test_no_events_is_no_statement(opened):
    url, target = opened
    outbox.emit_many(target.connection, [])
    target.commit()
    assert stored(url) == []


@pytest.mark.parametrize("name", ['odd "name" `x`', "per%cent %s", "colon :type", "Größe"])
def test_odd_table_names_are_quoted(database_url, name):
    table = OutTable(name)
    install_outbox(database_url, table)
    engine = create_engine(sqlalchemy_url(database_url))
    with connect(database_url) as connection:
        Outbox(name).emit(connection, **ORDER)
        Outbox(name).emit_many(connection, [ORDER, ORDER])
        connection.commit()
    with Session(engine) as session, session.begin():
        Outbox(name).emit(session, **ORDER)
        Outbox(name).emit_many(session, [ORDER, ORDER])
    engine.dispose()
    assert [row[:6] for row in stored(database_url, table)] == [ORDER_ROW] * 6


def test_table_in_another_schema(postgresql_url):
    table = OutTable("outbox", "app")
    install_outbox(postgresql_url, table)
    with connect(postgresql_url) as connection:
        Outbox(schema="app").emit(connection, **ORDER)
    assert len(stored(postgresql_url, table)) == 1


def test_emit_inside_a_flush_of_the_session(installed_url):
    """The pattern of applications that make events of what the unit of work did."""
    engine = create_engine(sqlalchemy_url(installed_url))
    with Session(engine) as session, session.begin():

        @event.listens_for(session, "after_flush")
        def emit_after_flush(flushed: Session, _context: object) -> None:
            outbox.emit(flushed, **ORDER)

        session.add(Order(id=1))
    engine.dispose()
    assert len(stored(installed_url)) == 1
    assert orders(installed_url) == 1


def test_one_statement_an_event_and_no_other(installed_url):
    """No commit, no read, no extra round trip: what SQLAlchemy sends is one INSERT."""
    engine = create_engine(sqlalchemy_url(installed_url))
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    event.listen(engine, "commit", lambda _: sent.append("COMMIT"))
    with Session(engine) as session:
        outbox.emit(session, **ORDER)
        outbox.emit_many(session, [ORDER] * 50)
        assert [statement.split()[:2] for statement in sent] == [["INSERT", "INTO"], ["INSERT", "INTO"]]
    engine.dispose()
    assert stored(installed_url) == []


def test_bulk_goes_to_mariadb_in_one_statement(mariadb_url):
    install_outbox(mariadb_url)
    with connect(mariadb_url) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW SESSION STATUS LIKE 'Com_insert'")
        before = int(cursor.fetchone()[1])
        outbox.emit_many(connection, [ORDER] * 500)
        cursor.execute("SHOW SESSION STATUS LIKE 'Com_insert'")
        assert int(cursor.fetchone()[1]) == before + 1


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_role_that_may_only_insert_can_emit(request, database):
    """Nothing is read back, so INSERT on the event columns is all that a writer needs."""
    url = install_outbox(request.getfixturevalue(f"{database}_url"))
    role = f"w_{uuid.uuid4().hex[:10]}"
    with connect(url) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE ROLE {role} LOGIN" if database == "postgresql" else f"CREATE USER {role}")
        connection.commit()
    grant_writer(DatabaseUrl.parse(url), OutTable(), role)
    engine = create_engine(sqlalchemy_url(re.sub("//[^@]*@", f"//{role}@", url)))
    with Session(engine) as session, session.begin():
        outbox.emit(session, **ORDER)
        outbox.emit(session, type="at a time", time=datetime(2026, 3, 1, tzinfo=UTC))
        outbox.emit_many(session, [ORDER, ORDER])
        outbox.emit(session, type="deferred", deferred=True)
    engine.dispose()
    assert [row[0] for row in stored(url)] == ["order.paid", "at a time", "order.paid", "order.paid", "deferred"]


def test_cursor_keeps_its_own_result(installed_url):
    with connect(installed_url) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 1 UNION ALL SELECT 2")
        outbox.emit(cursor, **ORDER)
        assert len(cursor.fetchall()) == 2


def as_utc(time: datetime | str) -> datetime:
    if isinstance(time, str):
        return datetime.fromisoformat(time)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
