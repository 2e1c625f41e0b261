"""`outbox check`: what is wrong with a database, an out table and its stream, in plain words."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from connector.checks import additions, mysql, pooling, position, postgresql, sight, sqlite, stream
from connector.checks.finding import Finding, Subject, error, ok, run, warning
from outbox.database import Session, is_driver_error
from outbox.errors import OutboxError, SchemaError
from outbox.info import read_info
from outbox.schema import EVENT_COLUMNS, OBJECTS

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl
    from outbox.info import Info
    from outbox.names import OutTable

__all__ = ["Finding", "check"]

_DIALECTS = {"postgresql": postgresql, "mysql": mysql, "sqlite": sqlite}


def check(
    url: DatabaseUrl,
    table: OutTable,
    stream_url: str | None,
    *,
    patience_seconds: float = 60.0,
    delete_after: str = "durable",
) -> list[Finding]:
    """Look at everything; what is wrong is a finding, never an exception.

    A transaction that has held the stream back for less than `patience_seconds` is not
    worth a word.
    """
    findings: list[Finding] = []
    subject: Subject | None = None
    try:
        if url.dialect == "sqlite" and not Path(url.path).exists():
            raise OutboxError(f"there is no file {url.path}")
        with Session(url, table, application="outbox check") as session:
            subject = Subject(session, patience_seconds)
            findings.append(ok("database", f"{url} answers"))
            subject = _check_database(subject, findings)
            if stream_url is not None:
                findings += run([("stream", lambda seen: stream.look(stream_url, seen, delete_after))], subject)
            return findings
    except OutboxError as refusal:
        findings.append(
            error("database", f"the database cannot be looked at: {refusal}", "correct the URL, or start the server")
        )
    if stream_url is not None:
        findings += stream.look(stream_url, None, delete_after)
    return findings


def _check_database(subject: Subject, findings: list[Finding]) -> Subject:
    """Adds to `findings`; returns the subject with what the info row says."""
    dialect = _DIALECTS[subject.session.dialect]
    findings += run(dialect.SERVER, subject)
    if subject.session.dialect != "sqlite":
        findings += run([("transaction-pooling", pooling.look)], subject)
    installed, info = _check_installed(subject)
    findings += installed
    subject = replace(subject, info=info)
    if any(finding.name == "installed" and finding.level == "error" for finding in installed):
        return subject
    findings += run([*dialect.TABLE, *additions.TABLE], subject)
    wrong = {finding.name for finding in findings if finding.level == "error"}
    if info is None or "replica" in wrong:
        return subject
    findings += run([("position", position.look)], subject)
    if "transaction-pooling" in wrong:
        # A source holds a transaction open while it looks: in a small pool it would wait for itself.
        return subject
    known = any(finding.level == "error" for finding in findings)
    # When something else is wrong, that is why a relay would not start.
    findings += [
        seen for seen in run([("relay-start", sight.look)], subject) if not (known and seen.name == "relay-start")
    ]
    return subject


def _check_installed(subject: Subject) -> tuple[list[Finding], Info | None]:
    session = subject.session
    init = subject.command("init")
    try:
        objects = {str(row[0]) for row in session.query("layout")}
        if not {"table", "info"} <= objects:
            what = f"out table {session.table}" if "table" not in objects else f"info table {session.table}_info"
            # MySQL does not show what a role has no privilege on.
            unless = ", or this role may see nothing of it" if session.dialect == "mysql" else ""
            return [error("installed", f"there is no {what}{unless}", init)], None
        columns = {str(row[0]).lower() for row in session.query("columns")}
        if columns and not columns >= EVENT_COLUMNS:
            lacks = ", ".join(sorted(EVENT_COLUMNS - columns))
            return [error("installed", f"{session.table} lacks {lacks}: it is no out table", _rename())], None
        info = read_info(session)
    except SchemaError as refusal:
        fix = subject.command("upgrade") if "upgrade" in str(refusal) else init
        return [error("installed", str(refusal), fix)], None
    except Exception as refusal:
        if isinstance(refusal, OutboxError) or not is_driver_error(refusal):
            raise
        # Privileges are looked at next, and say it better.
        return [error("info", f"the info table cannot be read: {str(refusal).strip()}", _grant_relay(subject))], None
    # A MySQL role sees a procedure only when it may call it, which the relay's may not.
    expected = OBJECTS[session.dialect] - ({"emit"} if session.dialect == "mysql" else set())
    missing = sorted(expected - objects)
    if missing:
        names = ", ".join(f"{session.table}_{name}" for name in missing)
        return [warning("installed", f"{names} is gone", init)], info
    return [
        ok("installed", f"schema version {info.schema_version}, outbox {info.outbox_id}, source {info.source}")
    ], info


def _rename() -> str:
    return "choose another name with --outbox, or make the out table anew from `outbox init --print`"


def _grant_relay(subject: Subject) -> str:
    if subject.session.dialect == "sqlite":
        return "look at the file: it may be damaged, or no SQLite database"
    role = shlex.quote(str(subject.session.value("check_role")))
    return f"as the table's owner: outbox init --database URL --outbox {shlex.quote(str(subject.session.table))} --grant-relay {role}"
