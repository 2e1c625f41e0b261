"""A database by its URL: one thin session over psycopg, PyMySQL and sqlite3.

The relay, the installer and the commands use this. Applications never do: `emit` works on
the connection that the application already has.
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox.errors import DatabaseUnavailable, OutboxError, UsageError
from outbox.mysql_options import MysqlOptions
from outbox.queries import block, with_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox.names import OutTable

_DIALECT_OF_SCHEME = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}


@dataclass(frozen=True)
class DatabaseUrl:
    """A SQLAlchemy-style URL, taken apart. Its `str` never shows the password."""

    dialect: str
    url: str = field(repr=False)
    parts: urllib.parse.SplitResult = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> DatabaseUrl:
        try:
            # Without fragments: `#` may stand in a file's name.
            parts = urllib.parse.urlsplit(url, allow_fragments=False)
            parts.port  # noqa: B018 - raises on a port that is no number
        except ValueError:
            # The parser's own words would show a part of the password.
            raise UsageError(
                f"{_shown(url)!r} is not a URL: the port is no number, a bracket is missing, or the password has one of "
                "/ ? # @ : in it, which must be percent-encoded"
            ) from None
        dialect = _DIALECT_OF_SCHEME.get(parts.scheme.split("+")[0])
        if dialect is None or not url.lower().startswith(f"{parts.scheme}://"):
            raise UsageError(
                f"{_shown(url)!r} is not a database URL: "
                "use postgresql://user@host/db, mysql://…, mariadb://… or sqlite:///path"
            )
        if dialect == "sqlite" and (parts.netloc or parts.path in ("", "/")):
            raise UsageError(f"{redact(url)!r} names no file: use sqlite:///relative/path or sqlite:////absolute/path")
        if dialect == "sqlite" and parts.path.startswith("/:memory:"):
            raise UsageError(f"{redact(url)!r}: an in-memory database cannot be shared with the relay, name a file")
        if dialect != "sqlite" and _has_raw_password(parts):
            raise UsageError(
                f"{redact(url)!r} can be read in more than one way: a / ? # @ or : in the user's name or the password "
                "must be percent-encoded (@ is %40)"
            )
        if dialect == "mysql":
            MysqlOptions.parse(parts.query)
        return cls(dialect, url, parts)

    def __str__(self) -> str:
        return redact(self.url)

    @property
    def path(self) -> str:
        """SQLite's file: `sqlite:///a` is relative, `sqlite:////a` absolute."""
        return urllib.parse.unquote(self.parts.path[1:])

    @property
    def libpq(self) -> str:
        """The URL as libpq and ADBC take it."""
        # By hand: urlunsplit drops the slashes of a URL without a host (a Unix socket).
        query = f"?{self.parts.query}" if self.parts.query else ""
        return f"postgresql://{self.parts.netloc}{self.parts.path}{query}"

    @property
    def database(self) -> str:
        return urllib.parse.unquote(self.parts.path[1:])

    @property
    def options(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.parts.query))

    @property
    def username(self) -> str:
        return urllib.parse.unquote(self.parts.username or "")

    @property
    def password(self) -> str:
        return urllib.parse.unquote(self.parts.password or "")


def redact(url: str) -> str:
    """A URL without its password, fit for a log."""
    # To the last `@`, wherever it is: rather too much is hidden than a part of a password shown.
    shown = re.sub(r"(?s)(?<!sqlite)(://[^:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)((?:password|passwd|sslpassword|token)=)[^&]*", r"\1***", shown)


def _shown(url: str) -> str:
    """What should have been a URL, without what may be a password in it."""
    return redact(url) if "://" in url else redact(re.sub(r"(?s):.*@", ":***@", url))


def _has_raw_password(parts: urllib.parse.SplitResult) -> bool:
    """Whether a character that ends a part of the URL seems to belong to the user or the password."""
    user, at, _ = parts.netloc.rpartition("@")
    if at:
        # Drivers differ in which `@` ends the password: libpq takes the first.
        spilled = "@" in parts.path or ("@" in parts.query and not re.fullmatch(r"([a-z_]+=[^=&]*&?)+", parts.query))
        return "@" in user or (":" in user and spilled)
    # user:12/34@host: the rest of the password has become the path, or the query.
    return ":" in parts.netloc and "@" in (parts.path or parts.query)


class Session:
    """One autocommitting connection that runs blocks of `sql/`.

    Inside `transaction()` statements belong together. Errors of the connection become
    `DatabaseUnavailable`, all others pass through as the driver raises them.
    """

    def __init__(self, url: DatabaseUrl, table: OutTable, *, application: str = "outbox") -> None:
        self.url = url
        self.table = table
        self.dialect = url.dialect
        self._prepared: dict[str, str] = {}
        with self._translated():
            try:
                self.driver: Any = connect(url, application)
            except Exception as error:
                if isinstance(error, OutboxError) or not is_driver_error(error):
                    raise
                if is_connection_error(error) and not is_refused_login(error):
                    raise
                advice = "look at the user, the password and the database's name"
                if url.dialect == "sqlite":
                    advice = "look at the path, and whether this user may read and write the file and its folder"
                raise UsageError(f"{url} refuses the connection: {one_line(error)}; {advice}") from error

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a block and return its rows (none for a statement without a result)."""
        return self.run(self._block(name), parameters)

    def row(self, name: str, /, **parameters: Any) -> tuple[Any, ...]:
        """Run a block that returns exactly one row."""
        (row,) = self.query(name, **parameters)
        return row

    def records(self, name: str, /) -> list[dict[str, Any]]:
        """Run a block whose columns the server chooses, and return its rows by their names."""
        with self._translated(), contextlib.closing(self.driver.cursor()) as cursor:
            cursor.execute(self._block(name))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def value(self, name: str, /, **parameters: Any) -> Any:
        """Run a block that returns exactly one value."""
        (value,) = self.row(name, **parameters)
        return value

    def change(self, name: str, /, **parameters: Any) -> int:
        """Run a block that changes rows and return how many."""
        with self._translated():
            cursor = self.driver.cursor()
            try:
                # Without parameters the drivers do not look at percent signs at all.
                sql = self._block(name)
                cursor.execute(sql, parameters) if parameters else cursor.execute(sql)
                return int(cursor.rowcount)
            finally:
                cursor.close()

    def run(self, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run SQL that is already in the driver's parameter style."""
        with self._translated():
            cursor = self.driver.cursor()
            try:
                cursor.execute(sql, parameters) if parameters else cursor.execute(sql)
                return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            finally:
                cursor.close()

    def run_each(self, sql: str) -> list[list[tuple[Any, ...]]]:
        """Run several statements without parameters in one trip, and return the rows of each (PostgreSQL)."""
        with self._translated(), self.driver.cursor() as cursor:
            cursor.execute(sql)
            found = [cursor.fetchall()]
            while cursor.nextset():
                found.append(cursor.fetchall())
            return found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. SQLite takes its write lock at once, so it cannot deadlock."""
        self.run("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")
        try:
            yield
            # SQLite keeps the transaction open when a reader is in the way of its COMMIT.
            self.run("COMMIT")
        except BaseException:
            with contextlib.suppress(Exception):
                self.run("ROLLBACK")
            raise

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.driver.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _block(self, name: str) -> str:
        sql = self._prepared.get(name)
        if sql is None:
            style = "named" if self.dialect == "sqlite" else "pyformat"
            sql, names = with_parameters(block(self.dialect, name, self.table), style)
            if style == "pyformat" and not names:
                # Without parameters the drivers do not look at percent signs at all.
                sql = sql.replace("%%", "%")
            self._prepared[name] = sql
        return sql

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OutboxError:
            raise
        except Exception as error:
            if getattr(error, "sqlite_errorcode", 0) == 26:  # SQLite looks into the file at the first statement only
                raise UsageError(f"{self.url} is not a SQLite database: look at the path") from error
            if is_connection_error(error):
                raise DatabaseUnavailable(f"{self.url} does not answer: {one_line(error)}") from error
            raise


def connect(url: DatabaseUrl, application: str) -> Any:
    """An autocommitting connection of the database's own driver."""
    return _CONNECT[url.dialect](url, application)


def one_line(error: BaseException) -> str:
    """An error's text without the line breaks and tabs that libpq writes for every address it tried."""
    return " ".join(str(error).split())


# libpq has no SQLSTATE for a login that failed (28000, 28P01, 3D000, 42501), only the server's text.
_REFUSED_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects connection"
    r"|(?:role|database|user) \".*\" (?:does not exist|is not permitted to log in)|permission denied for database"
)


def is_refused_login(error: BaseException) -> bool:
    """Whether PostgreSQL answered, and does not want this user, password or database."""
    if type(error).__module__.split(".")[0] != "psycopg":
        return False
    state = getattr(error, "sqlstate", None)
    return state[:2] == "28" or state == "3D000" if state else bool(_REFUSED_LOGIN.search(str(error)))


_PASSING_STATES = ("57P01", "57P02", "57P03", "57P05", "55P03", "57014", "25P03")
_PASSING_CODES = (
    0, 1021, 1040, 1053, 1077, 1079, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1206, 1213, 1226, 1317,
    1927, 1969, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 4031,
)  # fmt: skip


def is_connection_error(error: BaseException) -> bool:
    """Whether the connection, not the statement, is at fault: trying again can help."""
    module = type(error).__module__.split(".")[0]
    if module == "psycopg":
        import psycopg

        state = getattr(error, "sqlstate", None) or ""
        # 08 connection, 57P01..05 shutdown/crash/idle timeout, 53 out of resources,
        # 40 serialization and deadlock, 55P03 lock not available, 57014 statement timeout,
        # 25P03 a transaction of a relay that was stopped in it.
        if state:
            return state[:2] in ("08", "53", "40") or state in _PASSING_STATES
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if module == "pymysql":
        import pymysql

        code = error.args[0] if error.args else None
        # 1021 and 1114 disk full, 1040, 1129, 1203 and 1226 too many connections, 1053 shutdown,
        # 1205 lock wait, 1206 too many locks, 1213 deadlock, 1969 and 3024 statement timeout, 1317 statement killed (MySQL says so of a connection too), 1927
        # connection killed, 4031 idle for too long, 2xxx the client's own errors, 0 closed.
        return isinstance(error, pymysql.err.InterfaceError) or (
            isinstance(error, pymysql.err.OperationalError | pymysql.err.InternalError) and code in _PASSING_CODES
        )
    if module == "sqlite3":
        # 5 busy, 6 locked, 10 I/O error, 13 disk full; the higher bits say where.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6, 10, 13)
    return isinstance(error, ConnectionError | TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Whether the statement lost against another transaction, and would do well by itself."""
    return (
        (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")[:2] == "40"
        or (type(error).__module__.startswith("pymysql") and error.args[:1] == (1213,))
        or is_lock_timeout(error)
    )


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether a statement gave up waiting for somebody's lock."""
    if error is None:
        return False
    return (
        getattr(error, "sqlstate", None) == "55P03"
        or (type(error).__module__.startswith("pymysql") and error.args[:1] == (1205,))
        or getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6)
    )


def is_refusal(error: BaseException) -> bool:
    """Whether the database understood the statement and will not have it: a privilege, a policy, a replica."""
    module = type(error).__module__.split(".")[0]
    if module == "psycopg":
        state = getattr(error, "sqlstate", None) or ""
        return state.startswith("42") or state == "25006"
    if module == "sqlite3":
        # 3 no permission, 8 read-only, 14 cannot open, as when the journal cannot be made.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (3, 8, 14)
    # Access denied to a database, table, column or global privilege; no such column or table; read-only;
    # and 1401, what MySQL answers to XA RECOVER without XA_RECOVER_ADMIN.
    codes = (1044, 1054, 1142, 1143, 1146, 1227, 1290, 1401, 1792, 1836)
    return module == "pymysql" and bool(error.args) and error.args[0] in codes


def is_driver_error(error: BaseException) -> bool:
    """Whether the database or its driver raised this, and not a mistake of ours."""
    return type(error).__module__.split(".")[0] in ("psycopg", "pymysql", "sqlite3")


def _postgresql(url: DatabaseUrl, application: str) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError("PostgreSQL needs its drivers: pip install 'outbox-connector[postgresql]'") from error
    # Unnamed statements only, so that a transaction pooler in between cannot mix them up
    # before `check` has found it.
    defaults = connection_defaults(url, application)
    return psycopg.connect(url.libpq, autocommit=True, prepare_threshold=None, **defaults)


def connection_defaults(url: DatabaseUrl, application: str) -> dict[str, Any]:
    """What libpq is told unless the URL says otherwise: TCP keepalives end a session whose server vanished."""
    defaults = {
        "application_name": application,
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        # Keepalives do not run while something that was sent is unanswered.
        "tcp_user_timeout": "30000",
        "connect_timeout": "10",
    }
    # Whatever the URL, the environment, the role or the database say: text is handed over as Unicode.
    return {key: value for key, value in defaults.items() if key not in url.options} | {"client_encoding": "UTF8"}


def _mysql(url: DatabaseUrl, application: str) -> Any:
    from outbox import mysql_connection

    return mysql_connection.connect(url, application)


def _sqlite(url: DatabaseUrl, application: str) -> Any:  # noqa: ARG001 - SQLite knows no names
    import sqlite3

    # Five seconds of patience with another writer, the driver's own default said aloud.
    return sqlite3.connect(url.path, timeout=5.0, isolation_level=None, check_same_thread=False)


_CONNECT = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}
