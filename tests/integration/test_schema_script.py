"""What `--print` shows, run by each database's own client, is an outbox like an installed one."""

from __future__ import annotations

import subprocess
import uuid
from urllib.parse import urlsplit

import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import UsageError
from outbox.info import read_info
from outbox.names import OutTable
from outbox.schema import install, render, render_upgrade, upgrade
from tests.integration.test_schema import ODD_NAMES, emit_by_sql, lag
from tests.integration.test_schema_upgrade import NEW, OLD, catalog, run_migration


def run_client(url: DatabaseUrl, script: str) -> None:
    parts = urlsplit(url.url)
    command = {
        "postgresql": ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url.libpq],
        "mysql": [
            "mysql",
            "--no-defaults",
            f"--host={parts.hostname}",
            f"--port={parts.port}",
            f"--user={parts.username}",
            f"--password={parts.password}",
            parts.path[1:],
        ],
        "sqlite": ["sqlite3", "-batch", "-bail", url.path],
    }[url.dialect]
    done = subprocess.run(command, input=script.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def url(database_url: str) -> DatabaseUrl:
    return DatabaseUrl.parse(database_url)


@pytest.mark.parametrize("name", ["outbox", *ODD_NAMES])
def test_the_printed_script_makes_a_working_outbox(url: DatabaseUrl, name: str) -> None:
    table = OutTable(name)
    run_client(url, render(url.dialect, table, "/printed?it's=1"))
    made = install(url, table)
    assert (made.created, made.source) == (False, "/printed?it's=1")
    with Session(url, table) as session:
        emit_by_sql(session)
        assert lag(session)["rows_waiting"] == 1
        assert read_info(session).outbox_id == made.outbox_id


def test_the_printed_script_makes_what_is_installed(url: DatabaseUrl) -> None:
    install(url, NEW)
    run_client(url, render(url.dialect, OLD))
    with Session(url, NEW) as new, Session(url, OLD) as printed:
        assert catalog(printed) == catalog(new)


def test_the_printed_script_may_run_twice(url: DatabaseUrl) -> None:
    run_client(url, render(url.dialect, OutTable()))
    with Session(url, OutTable()) as session:
        before = read_info(session)
        emit_by_sql(session)
        run_client(url, render(url.dialect, OutTable()))
        assert read_info(session) == before
        assert lag(session)["rows_waiting"] == 1


def test_the_printed_script_makes_the_schema(database_url: str) -> None:
    url = DatabaseUrl.parse(database_url)
    table = OutTable("outbox", f"new schema {uuid.uuid4().hex[:8]}")
    if url.dialect == "sqlite":
        with pytest.raises(UsageError, match="no schemas"):
            render("sqlite", table)
        return
    run_client(url, render(url.dialect, table))
    assert not install(url, table).created
    with Session(url, table) as session:
        name = f'"{table.schema}" CASCADE' if url.dialect == "postgresql" else f"`{table.schema}`"
        session.run(f"DROP SCHEMA {name}")


def test_one_script_on_two_databases_makes_two_outboxes(database_url: str, request: pytest.FixtureRequest) -> None:
    url = DatabaseUrl.parse(database_url)
    script = render(url.dialect, OutTable("first")) + render(url.dialect, OutTable("second"))
    run_client(url, script)
    assert install(url, OutTable("first")).outbox_id != install(url, OutTable("second")).outbox_id


def test_the_printed_upgrade_leads_to_the_schema(url: DatabaseUrl) -> None:
    install(url, NEW)
    with Session(url, OLD) as old, Session(url, NEW) as new:
        run_migration(old, 1)
        run_client(url, render_upgrade(url.dialect, OLD, installed_version=1, source="/old"))
        assert catalog(old) == catalog(new)
    assert upgrade(url, OLD) == []


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(UsageError, match="oracle"):
        render("oracle", OutTable())
