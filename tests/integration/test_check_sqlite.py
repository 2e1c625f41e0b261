"""`check` on SQLite files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connector.check import check
from connector.checks import sqlite
from connector.checks.finding import Subject
from outbox.database import DatabaseUrl, Session
from outbox.names import OutTable
from outbox.schema import install
from tests.integration.test_check import assert_wrong, look

TABLE = OutTable()


@pytest.fixture
def session(sqlite_url: str) -> Session:
    url = DatabaseUrl.parse(sqlite_url)
    install(url, TABLE)
    return Session(url, TABLE)


def test_a_rollback_journal_is_a_warning_and_wal_is_fine(session: Session) -> None:
    assert_wrong(look(session)["journal-mode"], level="warning", says="delete", fix="PRAGMA journal_mode = WAL")
    session.run("PRAGMA journal_mode = WAL")
    assert look(session)["journal-mode"].level == "ok"


@pytest.mark.parametrize("mode", ["MEMORY", "OFF"])
def test_a_journal_that_does_not_survive_is_refused(session: Session, mode: str) -> None:
    # These modes belong to the connection, so it is looked at through this one.
    session.run(f"PRAGMA journal_mode = {mode}")
    finding = next(iter(sqlite.durability(Subject(session, 60))))
    assert_wrong(finding, says=mode.lower(), fix="WAL")


def test_a_connection_that_does_not_sync_is_refused(session: Session) -> None:
    session.run("PRAGMA synchronous = OFF")
    findings = {finding.name: finding for finding in sqlite.durability(Subject(session, 60))}
    assert_wrong(findings["synchronous"], says="OFF", fix="PRAGMA synchronous = FULL")


def test_a_table_without_autoincrement_is_refused(session: Session) -> None:
    session.run("DROP TABLE outbox")
    session.run(
        "CREATE TABLE outbox (id integer PRIMARY KEY, type text, subject text, data text, data_bytes blob, "
        "datacontenttype text, headers text, time text)"
    )
    assert_wrong(look(session)["identity"], says="not AUTOINCREMENT", fix="outbox init --print")


def test_a_file_that_is_no_database_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is not a database, but it is long enough to be looked at" * 20)
    findings = check(DatabaseUrl.parse(f"sqlite:///{tmp_path}/text.db"), TABLE, None)
    assert any(finding.level == "error" and "is not a SQLite database" in finding.message for finding in findings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(session: Session) -> None:
    folder = Path(session.url.path).parent
    folder.chmod(0o555)
    try:
        assert_wrong(look(session)["privileges"], says="cannot be written", fix="chmod")
    finally:
        folder.chmod(0o755)
