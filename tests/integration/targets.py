"""The ways in which an application may hold a connection, each opened as its users open it."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg2
import pymysql
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox import OutTable, install
from outbox.database import DatabaseUrl
from outbox.database import Session as DatabaseSession
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = OutTable()


class Model(DeclarativeBase):
    """The application's own tables."""


class Order(Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@dataclass
class Target:
    """What `emit` is given, and the rest of the application around it."""

    connection: Any
    run: Callable[[str], object]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    close: Callable[[], object] = field(default=lambda: None)


def install_outbox(url: str, table: OutTable = PLAIN) -> str:
    """The URL of a database with an outbox and a table of the application's own."""
    install(DatabaseUrl.parse(url), table)
    with DatabaseSession(DatabaseUrl.parse(url), table) as session:
        session.run("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY)")
    return url


def stored(url: str, table: OutTable = PLAIN) -> list[tuple[Any, ...]]:
    """type, subject, data, data_bytes, datacontenttype, headers, time of the committed rows, by ID."""
    parsed = DatabaseUrl.parse(url)
    json_text = "{}::text" if parsed.dialect == "postgresql" else "{}"
    columns = [
        "type",
        "subject",
        json_text.format("data"),
        "data_bytes",
        "datacontenttype",
        json_text.format("headers"),
        "time",
    ]
    with DatabaseSession(parsed, table) as session:
        return session.run(f"SELECT {', '.join(columns)} FROM {table.quoted(parsed.dialect)} ORDER BY id")


def orders(url: str) -> int:
    with DatabaseSession(DatabaseUrl.parse(url), PLAIN) as session:
        return int(session.run("SELECT count(*) FROM orders")[0][0])


def sqlalchemy_url(url: str, driver: str | None = None) -> str:
    scheme, rest = url.split("://", 1)
    if scheme == "sqlite":
        return f"sqlite{'+' + driver if driver else ''}://{rest}"
    default = {"postgresql": "psycopg", "mysql": "pymysql"}[scheme]
    return f"{scheme}+{driver or default}://{rest}" + ("?charset=utf8mb4" if scheme == "mysql" else "")


def connect(url: str, **options: Any) -> Any:
    """A plain connection of the database's usual driver."""
    parsed = DatabaseUrl.parse(url)
    if parsed.dialect == "postgresql":
        return psycopg.connect(url, **options)
    if parsed.dialect == "mysql":
        return mariadb.connect(url, **options)
    return sqlite3.connect(parsed.path, **options)


def _dbapi(connection: Any, given: Any = None) -> Target:
    def run(sql: str) -> None:
        cursor = connection.cursor()
        cursor.execute(sql)
        cursor.close()

    return Target(connection if given is None else given, run, connection.commit, connection.rollback, connection.close)


def _with_cursor(connection: Any) -> Target:
    return _dbapi(connection, connection.cursor())


def _sqlite_begun(url: str) -> Target:
    """sqlite3 with transactions by hand."""
    connection = connect(url, isolation_level=None)
    connection.execute("BEGIN")
    return _dbapi(connection)


def _psycopg_begun(url: str) -> Target:
    """psycopg in autocommit mode, inside a transaction block."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("BEGIN")
    return _dbapi(connection)


def _pymysql_begun(url: str) -> Target:
    connection = mariadb.connect(url, autocommit=True)
    connection.begin()
    return _dbapi(connection)


def _sqlalchemy_connection(url: str) -> Target:
    connection = create_engine(sqlalchemy_url(url)).connect()

    def close() -> None:
        connection.close()
        connection.engine.dispose()

    return Target(connection, connection.exec_driver_sql, connection.commit, connection.rollback, close)


def _sqlalchemy_session(url: str) -> Target:
    engine = create_engine(sqlalchemy_url(url))
    session = Session(engine)

    def close() -> None:
        session.close()
        engine.dispose()

    return Target(
        session, lambda sql: session.connection().exec_driver_sql(sql), session.commit, session.rollback, close
    )


def _scoped_session(url: str) -> Target:
    engine = create_engine(sqlalchemy_url(url))
    session = scoped_session(sessionmaker(engine))

    def close() -> None:
        session.remove()
        engine.dispose()

    return Target(
        session, lambda sql: session.connection().exec_driver_sql(sql), session.commit, session.rollback, close
    )


def _raw_connection(url: str) -> Target:
    """A driver's connection out of SQLAlchemy's pool."""
    return _dbapi(create_engine(sqlalchemy_url(url)).raw_connection())


_aliases = (f"database_{number}" for number in itertools.count())


def django_alias(url: str) -> str:
    """Make the database known to Django, under an alias of its own."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(
            USE_TZ=True, DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        )
        django.setup()
    parsed = DatabaseUrl.parse(url)
    engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[parsed.dialect]
    alias = next(_aliases)
    connections.databases[alias] = {
        **connections.databases["default"],
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parsed.path if parsed.dialect == "sqlite" else parsed.database,
        "HOST": parsed.parts.hostname or "",
        "PORT": parsed.parts.port or "",
        "USER": parsed.username,
        "PASSWORD": parsed.password,
    }
    return alias


def _django(url: str) -> Target:
    """Inside atomic(), left by commit or by an exception."""
    from django.db import connections, transaction
    from django.utils.connection import ConnectionProxy

    alias = django_alias(url)
    atomic = transaction.atomic(using=alias)
    atomic.__enter__()

    def run(sql: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql)

    return Target(
        ConnectionProxy(connections, alias),
        run,
        lambda: atomic.__exit__(None, None, None),
        lambda: atomic.__exit__(RuntimeError, RuntimeError(), None),
        lambda: connections[alias].close(),
    )


WAYS: dict[str, Callable[[str], Target]] = {
    "psycopg": lambda url: _dbapi(psycopg.connect(url)),
    "psycopg_cursor": lambda url: _with_cursor(psycopg.connect(url)),
    "psycopg_raw_cursors": lambda url: _dbapi(psycopg.connect(url, cursor_factory=psycopg.RawCursor)),
    "psycopg_begun": _psycopg_begun,
    "psycopg2": lambda url: _dbapi(psycopg2.connect(url)),
    "psycopg2_cursor": lambda url: _with_cursor(psycopg2.connect(url)),
    "pymysql": lambda url: _dbapi(mariadb.connect(url)),
    "pymysql_cursor": lambda url: _with_cursor(mariadb.connect(url, cursorclass=pymysql.cursors.DictCursor)),
    "pymysql_begun": _pymysql_begun,
    "sqlite3": lambda url: _dbapi(connect(url)),
    "sqlite3_cursor": lambda url: _with_cursor(connect(url)),
    "sqlite3_begun": _sqlite_begun,
    "sqlalchemy_connection": _sqlalchemy_connection,
    "sqlalchemy_session": _sqlalchemy_session,
    "sqlalchemy_scoped_session": _scoped_session,
    "sqlalchemy_raw_connection": _raw_connection,
    "django": _django,
}
_SQLALCHEMY = ["sqlalchemy_connection", "sqlalchemy_session", "sqlalchemy_scoped_session", "sqlalchemy_raw_connection"]
WAYS_OF_DATABASE = {
    "postgresql": [*(way for way in WAYS if way.startswith("psycopg")), *_SQLALCHEMY, "django"],
    "mariadb": [*(way for way in WAYS if way.startswith("pymysql")), *_SQLALCHEMY],
    "mysql": ["pymysql", "sqlalchemy_session"],
    "sqlite": [*(way for way in WAYS if way.startswith("sqlite3")), *_SQLALCHEMY, "django"],
}
EVERY_WAY = [(database, way) for database, ways in WAYS_OF_DATABASE.items() for way in ways]
