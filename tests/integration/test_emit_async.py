"""`emit_async` on every kind of asynchronous connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from outbox import EmitError, NoTransaction, Outbox
from tests.integration.targets import install_outbox, sqlalchemy_url, stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

outbox = Outbox()
EVENTS = [
    {"type": "a", "subject": "s", "data": {"name": "Zoë 🦊"}, "headers": {"n": 1}},
    {"type": "b", "data_bytes": b"\x00\xff", "datacontenttype": "application/avro"},
    {"type": "c"},
]
ROWS = [
    ("a", "s", '{"name":"Zoë 🦊"}', None, None, '{"n":1}'),
    ("b", None, None, b"\x00\xff", "application/avro", None),
    ("c", None, None, None, None, None),
]


class Failure(Exception):
    """What rolls a transaction back."""


@contextlib.asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_with_json_codec(url: str) -> AsyncIterator[Any]:
    """As many applications set it up: our JSON text must not be encoded a second time."""
    connection = await asyncpg.connect(url)
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@contextlib.asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@contextlib.asynccontextmanager
async def psycopg_cursor(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection.cursor()


def async_connection(driver: str) -> Callable[[str], Any]:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(sqlalchemy_url(url, driver))
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    return opened


def async_session(driver: str) -> Callable[[str], Any]:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(sqlalchemy_url(url, driver))
        try:
            async with AsyncSession(engine) as session, session.begin():
                yield session
        finally:
            await engine.dispose()

    return opened


@contextlib.asynccontextmanager
async def scoped(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    try:
        async with session.begin():
            yield session
    finally:
        await session.remove()
        await engine.dispose()


DRIVERS_OWN = (asyncpg_connection, asyncpg_with_json_codec, asyncpg_pool, psycopg_connection, psycopg_cursor)
WAYS = {
    "postgresql": {
        "asyncpg": asyncpg_connection,
        "asyncpg_with_json_codec": asyncpg_with_json_codec,
        "asyncpg_pool": asyncpg_pool,
        "psycopg": psycopg_connection,
        "psycopg_cursor": psycopg_cursor,
        "connection_asyncpg": async_connection("asyncpg"),
        "connection_psycopg": async_connection("psycopg"),
        "session_asyncpg": async_session("asyncpg"),
        "session_psycopg": async_session("psycopg"),
        "scoped_session": scoped,
    },
    "mariadb": {"connection_aiomysql": async_connection("aiomysql"), "session_aiomysql": async_session("aiomysql")},
    "sqlite": {"connection_aiosqlite": async_connection("aiosqlite"), "session_aiosqlite": async_session("aiosqlite")},
}


@pytest.fixture(
    params=[(database, way) for database, ways in WAYS.items() for way in ways], ids=lambda pair: "-".join(pair)
)
def opened(request: pytest.FixtureRequest) -> tuple[str, Callable[[str], Any]]:
    database, way = request.param
    return install_outbox(str(request.getfixturevalue(f"{database}_url"))), WAYS[database][way]


def test_events_commit_with_the_transaction(opened):
    url, way = opened

    async def work() -> None:
        async with way(url) as connection:
            await outbox.emit_async(connection, **EVENTS[0])
            await outbox.emit_many_async(connection, [EVENTS[2], EVENTS[2]])
            await outbox.emit_many_async(connection, [])

    asyncio.run(work())
    assert [row[:6] for row in stored(url)] == [ROWS[0], ROWS[2], ROWS[2]]


def test_binary_data(opened):
    url, way = opened
    if url.startswith("mysql"):
        pytest.xfail("aiomysql 0.3.2 fails on any bytes with PyMySQL 1.2, which has no escape_bytes_prefixed")

    async def work() -> None:
        async with way(url) as connection:
            await outbox.emit_async(connection, **EVENTS[1])
            await outbox.emit_many_async(connection, EVENTS)

    asyncio.run(work())
    assert [row[:6] for row in stored(url)] == [ROWS[1], *ROWS]


def test_rollback_leaves_nothing(opened):
    url, way = opened

    async def work() -> None:
        async with way(url) as connection:
            await outbox.emit_async(connection, **EVENTS[0])
            await outbox.emit_many_async(connection, [EVENTS[2], EVENTS[0]])
            raise Failure

    with pytest.raises(Failure):
        asyncio.run(work())
    assert stored(url) == []


def savepoint_of(connection: Any) -> Callable[[], Any]:
    """How the connection's own API opens a savepoint."""
    if hasattr(connection, "begin_nested"):
        return connection.begin_nested
    return connection.connection.transaction if isinstance(connection, psycopg.AsyncCursor) else connection.transaction


def test_savepoint_takes_its_events_with_it(opened):
    url, way = opened

    async def work() -> None:
        async with way(url) as connection:
            await outbox.emit_async(connection, type="before")
            nested = savepoint_of(connection)
            with contextlib.suppress(Failure):
                async with nested():
                    await outbox.emit_async(connection, type="rolled back")
                    raise Failure
            async with nested():
                await outbox.emit_async(connection, type="released")

    asyncio.run(work())
    assert [row[0] for row in stored(url)] == ["before", "released"]


def test_deferred_events_commit_with_sqlalchemy_only(opened):
    url, way = opened

    async def work() -> None:
        async with way(url) as connection:
            await outbox.emit_async(connection, type="deferred", deferred=True)
            await outbox.emit_many_async(connection, [{"type": "deferred too"}], deferred=True)
            await outbox.emit_async(connection, type="at once")

    if way in DRIVERS_OWN:
        with pytest.raises(EmitError, match="SQLAlchemy"):
            asyncio.run(work())
        assert stored(url) == []
    else:
        asyncio.run(work())
        assert [row[0] for row in stored(url)] == ["at once", "deferred", "deferred too"]


def test_deferred_events_go_with_their_savepoint(opened):
    url, way = opened
    if way in DRIVERS_OWN:
        return  # they defer nothing, see above

    async def work() -> None:
        async with way(url) as connection:
            with contextlib.suppress(Failure):
                async with connection.begin_nested():
                    await outbox.emit_async(connection, type="rolled back", deferred=True)
                    raise Failure
            async with connection.begin_nested():
                await outbox.emit_async(connection, type="released", deferred=True)

    asyncio.run(work())
    assert [row[0] for row in stored(url)] == ["released"]


def refuse(connection: Any, match: str | None = None) -> Any:
    async def attempt() -> None:
        with pytest.raises(NoTransaction, match=match):
            await outbox.emit_async(connection, type="t")
        with pytest.raises(NoTransaction, match=match):
            await outbox.emit_many_async(connection, [{"type": "t"}, {"type": "t"}])

    return attempt()


def test_asyncpg_without_a_transaction(postgresql_url):
    install_outbox(postgresql_url)

    async def work() -> None:
        connection = await asyncpg.connect(postgresql_url)
        await refuse(connection, "begin a transaction first")
        with contextlib.suppress(asyncpg.DivisionByZeroError):
            async with connection.transaction():
                with pytest.raises(asyncpg.DivisionByZeroError):
                    await connection.execute("SELECT 1 / 0")
                await refuse(connection, "rolled back")
        await connection.close()
        await refuse(connection, "closed")
        async with asyncpg.create_pool(postgresql_url, min_size=1) as pool:
            connection = await pool.acquire()
            await pool.release(connection)
            await refuse(connection, "closed")

    asyncio.run(work())
    assert stored(postgresql_url) == []


def test_psycopg_without_a_transaction(postgresql_url):
    install_outbox(postgresql_url)

    async def work() -> None:
        connection = await psycopg.AsyncConnection.connect(postgresql_url, autocommit=True)
        await refuse(connection, "begin a transaction first")
        async with connection.transaction():
            await outbox.emit_async(connection, type="t")
        await connection.close()
        await refuse(connection, "closed")

    asyncio.run(work())
    assert len(stored(postgresql_url)) == 1


@pytest.mark.parametrize(
    ("database", "driver"),
    [("postgresql", "asyncpg"), ("postgresql", "psycopg"), ("mariadb", "aiomysql"), ("sqlite", "aiosqlite")],
)
def test_sqlalchemy_without_a_transaction(request, database, driver):
    url = install_outbox(request.getfixturevalue(f"{database}_url"))

    async def work() -> None:
        engine = create_async_engine(sqlalchemy_url(url, driver))
        await refuse(engine.connect())
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await refuse(connection, "autocommit")
        await refuse(connection)
        await engine.dispose()
        engine = create_async_engine(sqlalchemy_url(url, driver), isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session:
            await refuse(session, "autocommit")
        await engine.dispose()

    asyncio.run(work())
    assert stored(url) == []


def test_emit_inside_run_sync(postgresql_url):
    install_outbox(postgresql_url)

    async def work() -> None:
        engine = create_async_engine(sqlalchemy_url(postgresql_url, "asyncpg"))
        async with engine.begin() as connection:
            await connection.run_sync(lambda plain: outbox.emit(plain, type="t"))
        await engine.dispose()

    asyncio.run(work())
    assert len(stored(postgresql_url)) == 1
