"""The inbox's tables: made, and looked for. What is made is the block `inbox_schema` of `sql/<dialect>/inbox.sql`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.errors import SchemaError, UsageError
from outbox.names import DIALECTS, OutTable
from outbox.queries import block, statements
from outbox.schema import as_script, installer

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl, Session
    from outbox.inbox.ledger import Statements

INBOX_SCHEMA_VERSION = 1
INBOX_OBJECTS = frozenset({"table", "info", "parked"})
COLUMNS = frozenset({"consumer", "outbox_id", "reached", "began_after", "version"})
INFO_COLUMNS = frozenset({"one_row", "schema_version", "inbox_id"})
INBOX = OutTable("inbox")


@dataclass(frozen=True, slots=True)
class InstalledInbox:
    """An inbox that is there now, and whether it was made just now."""

    created: bool
    version: int
    inbox_id: str


def install(url: DatabaseUrl, table: OutTable = INBOX) -> InstalledInbox:
    """Make the inbox unless it is there. Safe to run again, at once, and after a crash."""
    script = _script(url.dialect, table)
    with installer(url, table, "install") as session:
        before = _objects(session)
        _refuse_foreign(session, before)
        complete = before >= INBOX_OBJECTS and bool(session.query("inbox_identity"))
        if not complete:
            if table.schema and session.value("schema_present") == 0:
                session.query("create_schema")
            for statement in script:
                session.run(statement)
        inbox_id = read_identity(session, table)
        return InstalledInbox(not complete, INBOX_SCHEMA_VERSION, inbox_id)


def render(dialect: str, table: OutTable = INBOX) -> str:
    """The script that `install` runs, for psql, mysql or sqlite3 and for review."""
    if dialect not in DIALECTS:
        raise UsageError(f"{dialect!r} is not a dialect: use one of {', '.join(DIALECTS)}")
    create = [block(dialect, "create_schema", table)] if table.schema else []
    return as_script(dialect, table, create + _script(dialect, table))


def read_identity(work: Statements, table: OutTable) -> str:
    """The inbox's own ID; `SchemaError` with the command to run when it is not there, or of another version."""
    rows = work.query("inbox_identity") if _objects(work) >= INBOX_OBJECTS else []
    if not rows:
        raise SchemaError(
            f"there is no inbox {table} in this database: run `outbox inbox init --database URL --inbox {table}`"
        )
    version, inbox_id = rows[0]
    if int(version) != INBOX_SCHEMA_VERSION:
        raise SchemaError(
            f"inbox {table} has schema version {version}, this program knows {INBOX_SCHEMA_VERSION}: "
            "use the release of outbox-connector that made it, or a newer one"
        )
    return str(inbox_id)


def _script(dialect: str, table: OutTable) -> list[str]:
    return statements(block(dialect, "inbox_schema", table, schema_version=str(INBOX_SCHEMA_VERSION)))


def _objects(work: Statements) -> frozenset[str]:
    return frozenset(str(name) for (name,) in work.query("inbox_layout"))


def _refuse_foreign(session: Session, objects: frozenset[str]) -> None:
    """Tables of these names which are not ours: an outbox has an info table too."""
    for present, block_name, ours in (("table", "columns", COLUMNS), ("info", "inbox_info_columns", INFO_COLUMNS)):
        if present in objects and not {str(name).lower() for (name,) in session.query(block_name)} >= ours:
            raise SchemaError(
                f"there is a table {session.table} or {session.table}_info in {session.url} that is not an inbox of ours: "
                "choose another name with --inbox"
            )
