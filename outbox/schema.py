"""The installer: the out table and its companions, made, upgraded and removed.

What is installed is `sql/<dialect>/schema.sql`, statement by statement the same that
`render` prints for review. `sql/<dialect>/migrations` lead from any older version there.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.database import Session, is_driver_error, one_line
from outbox.errors import OutboxError, SchemaError, UsageError
from outbox.info import SCHEMA_VERSION, read_info
from outbox.names import DIALECTS, literal
from outbox.queries import block, fill, migrations, statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox.database import DatabaseUrl
    from outbox.names import OutTable
    from outbox.queries import Migration

EVENT_COLUMNS = frozenset({"id", "type", "subject", "data", "data_bytes", "datacontenttype", "headers", "time"})
INFO_COLUMNS = frozenset({"one_row", "schema_version", "source", "outbox_id", "stream_id", "deleted_through"})
SOURCE_CHARACTERS_MAX = 1024

# What a complete outbox consists of; SQLite has no stored procedures.
OBJECTS = {
    "postgresql": frozenset({"table", "info", "lag", "emit"}),
    "mysql": frozenset({"table", "info", "lag", "emit"}),
    "sqlite": frozenset({"table", "info", "lag", "immutable"}),
}

# MySQL's errors for a step that is already done: duplicate column, duplicate key, nothing
# to drop. It commits each DDL statement by itself, so a killed upgrade runs into them.
_MYSQL_ALREADY_DONE = (1060, 1061, 1091)


@dataclass(frozen=True, slots=True)
class Installed:
    """An outbox that is there now, and whether it was made just now."""

    created: bool
    version: int
    outbox_id: str
    source: str


def install(url: DatabaseUrl, table: OutTable, *, source: str | None = None) -> Installed:
    """Make the outbox unless it is there. Safe to run again, at once, and after a crash."""
    script = _script(url.dialect, table, source or table.source)
    with installer(url, table, "install") as session:
        objects = _objects(session)
        before = _identity(session, objects)
        if before is not None:
            _refuse_other(session, before, objects, source)
            if objects >= OBJECTS[session.dialect]:
                return before
        elif "table" in objects:
            _refuse_foreign(session, objects)
        if table.schema and session.value("schema_present") == 0:
            session.query("create_schema")
        for statement in script:
            session.run(statement)
        after = _identity(session, _objects(session))
        assert after is not None, "the last statement of the schema writes the info row"
        return Installed(before is None, after.version, after.outbox_id, after.source)


def render(dialect: str, table: OutTable, source: str | None = None) -> str:
    """The script that `install` runs, for psql, mysql or sqlite3 and for review."""
    if dialect not in DIALECTS:
        raise UsageError(f"{dialect!r} is not a dialect: use one of {', '.join(DIALECTS)}")
    script = _script(dialect, table, source or table.source)
    create = [block(dialect, "create_schema", table)] if table.schema else []
    return as_script(dialect, table, create + script)


def upgrade(url: DatabaseUrl, table: OutTable) -> list[str]:
    """Apply the migrations above the installed version; their names, oldest first."""
    with installer(url, table, "upgrade") as session:
        installed = _identity(session, _objects(session))
        if installed is None:
            raise SchemaError(f"there is no out table {table} in {url}: run `outbox init`")
        _refuse_newer(session, installed)
        done = []
        for migration in migrations(url.dialect):
            if migration.number <= installed.version:
                continue
            for statement in _step(migration, url.dialect, table, installed.source):
                _run_once(session, statement)
            done.append(migration.name)
        return done


def render_upgrade(dialect: str, table: OutTable, *, installed_version: int, source: str) -> str:
    """The script that leads from `installed_version` of an outbox with `source` to the current one."""
    if installed_version > SCHEMA_VERSION:
        raise SchemaError(
            f"{table} has schema version {installed_version}, this program knows {SCHEMA_VERSION}: "
            "install a newer outbox-connector"
        )
    if installed_version < 1:
        raise UsageError(f"there is no schema version {installed_version}: it goes from 1 to {SCHEMA_VERSION}")
    steps = [migration for migration in migrations(dialect) if migration.number > installed_version]
    return as_script(dialect, table, [part for step in steps for part in _step(step, dialect, table, source)])


def uninstall(url: DatabaseUrl, table: OutTable, *, force: bool = False) -> None:
    """Drop the outbox. Refused while rows are not in the stream yet, or a relay is at work."""
    with installer(url, table, "uninstall") as session:
        objects = _objects(session)
        if "info" not in objects:
            raise SchemaError(f"there is no outbox {table} in {url}: nothing is dropped")
        installed = _identity(session, objects)
        if "table" in objects:
            _hold_writers_off(session)
            try:
                if not force and installed is not None:
                    _refuse_unfinished(session, installed)
                _run_script(session, "uninstall")
            finally:
                if session.dialect == "mysql":
                    session.query("uninstall_release")
        else:
            # What a killed uninstall has left, or somebody's DROP TABLE.
            _run_script(session, "uninstall")


def as_script(dialect: str, table: OutTable, body: list[str]) -> str:
    """Statements as a file for the database's own client."""
    parts = [
        *statements(block(dialect, "script_begin", table)),
        *body,
        *statements(block(dialect, "script_end", table)),
    ]
    if dialect == "mysql":
        # A command of the mysql client: the procedure has semicolons inside.
        return "DELIMITER ;;\n\n" + "".join(f"{part}\n;;\n\n" for part in parts) + "DELIMITER ;\n"
    return "".join(f"{part};\n\n" for part in parts)


def _script(dialect: str, table: OutTable, source: str) -> list[str]:
    if len(source) > SOURCE_CHARACTERS_MAX or re.search(r"[\x00-\x20\x7f\\]", source):
        raise UsageError(
            f"{source!r} cannot be the source of events: use a URI reference such as /shop/orders, "
            f"at most {SOURCE_CHARACTERS_MAX} characters without spaces, control characters and backslashes"
        )
    more = {"schema_version": str(SCHEMA_VERSION), "source_literal": literal(source)}
    return statements(block(dialect, "schema", table, **more))


def _step(migration: Migration, dialect: str, table: OutTable, source: str) -> list[str]:
    return statements(fill(migration.script, dialect, table, source_literal=literal(source)))


@contextlib.contextmanager
def installer(url: DatabaseUrl, table: OutTable, doing: str) -> Iterator[Session]:
    """A session that has this outbox's or inbox's schema to itself, in one transaction where there are any for DDL."""
    with Session(url, table, application=f"outbox {doing}") as session:
        try:
            if url.dialect == "mysql":
                if session.value("install_lock") != 1:
                    raise SchemaError(f"another session is busy with the schema of {table}: try again when it is done")
                try:
                    yield session
                finally:
                    with contextlib.suppress(Exception):
                        session.query("install_unlock")
            else:
                with session.transaction():
                    if url.dialect == "postgresql":
                        session.query("install_lock")
                    yield session
        except OutboxError:
            raise
        except Exception as error:
            if not is_driver_error(error):
                raise
            raise SchemaError(
                f"{url} refused to {doing} {table}: {one_line(error)}. A role with more privileges may do it, "
                "or a person by the script that --print shows"
            ) from error


def _objects(session: Session) -> frozenset[str]:
    return frozenset(str(name) for (name,) in session.query("layout"))


def _columns(session: Session, name: str) -> set[str]:
    return {str(column).lower() for (column,) in session.query(name)}


def _identity(session: Session, objects: frozenset[str]) -> Installed | None:
    """What the info row says, or None when there is no row yet."""
    if "info" not in objects:
        return None
    if not _columns(session, "info_columns") >= INFO_COLUMNS:
        raise SchemaError(
            f"there is a table {session.table}_info in {session.url} that is not ours: give the out table another name"
        )
    rows = session.query("identity")
    if not rows:
        return None
    version, outbox_id, source = rows[0]
    return Installed(False, int(version), str(outbox_id), str(source))


def _refuse_newer(session: Session, installed: Installed) -> None:
    if installed.version > SCHEMA_VERSION:
        raise SchemaError(
            f"out table {session.table} has schema version {installed.version}, this program knows {SCHEMA_VERSION}: "
            "install a newer outbox-connector"
        )


def _refuse_other(session: Session, installed: Installed, objects: frozenset[str], source: str | None) -> None:
    """An outbox is there: refuse what an install cannot make the current one of it."""
    table = session.table
    _refuse_newer(session, installed)
    if "table" not in objects:
        # A new out table would draw its IDs from 1 again, under the old outbox's name.
        raise SchemaError(
            f"the info table of {table} is there, the out table is gone: restore it, or uninstall what is left and "
            "begin a new outbox with a new stream"
        )
    if installed.version < SCHEMA_VERSION:
        raise SchemaError(
            f"out table {table} has schema version {installed.version}, this program needs {SCHEMA_VERSION}: "
            "run `outbox upgrade`"
        )
    if source is not None and source != installed.source:
        raise SchemaError(
            f"out table {table} is installed with source {installed.source!r}; the source is part of every event's "
            f"identity and does not change. Leave out {source!r}, or make another out table"
        )


def _refuse_foreign(session: Session, objects: frozenset[str]) -> None:
    """A table is there without an info row: ours only when an install was cut short."""
    if "info" in objects and _columns(session, "columns") == EVENT_COLUMNS:
        return
    raise SchemaError(
        f"there is a table {session.table} in {session.url} that is not an out table of ours: "
        "choose another name with --outbox"
    )


def _run_once(session: Session, statement: str) -> None:
    try:
        session.run(statement)
    except Exception as error:
        if session.dialect != "mysql" or not error.args or error.args[0] not in _MYSQL_ALREADY_DONE:
            raise


def _run_script(session: Session, name: str) -> None:
    for statement in statements(block(session.dialect, name, session.table)):
        session.run(statement)


def _hold_writers_off(session: Session) -> None:
    """Nobody emits between the count and the drop. SQLite's transaction has seen to it."""
    if session.dialect != "sqlite":
        session.query("uninstall_patience")
        session.query("uninstall_lock")


def _refuse_unfinished(session: Session, installed: Installed) -> None:
    table = session.table
    if installed.version != SCHEMA_VERSION:
        raise SchemaError(
            f"out table {table} has schema version {installed.version}, this program knows {SCHEMA_VERSION}: "
            "run `outbox upgrade` first, or force the uninstall"
        )
    info = read_info(session)
    if info.lease_seconds_left is not None and info.lease_seconds_left > 0:
        raise SchemaError(f"relay {info.leader} is at work on {table}: stop it first, or force the uninstall")
    waiting = int(session.value("unrelayed"))
    if waiting:
        raise SchemaError(
            f"rows are left in {table} ({waiting:,}), and what is not in the stream would be lost: run "
            "`outbox relay --once --delete-after durable` first, or `outbox verify` and then force the uninstall"
        )
