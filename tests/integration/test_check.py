"""`check` on every database: what is well, what is not installed, and what others have added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector.check import Finding, check
from outbox.database import DatabaseUrl, Session
from outbox.info import SCHEMA_VERSION
from outbox.names import OutTable
from outbox.schema import install
from tests.integration.test_schema_upgrade import run_migration

if TYPE_CHECKING:
    from pathlib import Path

TABLE = OutTable()


@pytest.fixture
def url(database_url: str) -> DatabaseUrl:
    return DatabaseUrl.parse(database_url)


@pytest.fixture
def session(url: DatabaseUrl) -> Session:
    install(url, TABLE)
    return Session(url, TABLE)


def look(session: Session, stream_url: str | None = None, **options: float) -> dict[str, Finding]:
    """The findings by name; of several with one name the worst."""
    worst: dict[str, Finding] = {}
    for finding in check(session.url, session.table, stream_url, **options):
        known = worst.get(finding.name)
        if known is None or ("ok", "warning", "error").index(finding.level) > ("ok", "warning", "error").index(
            known.level
        ):
            worst[finding.name] = finding
    return worst


def emit(session: Session, count: int = 1) -> None:
    for _ in range(count):
        session.run("INSERT INTO outbox (type) VALUES ('t')")


def assert_wrong(finding: Finding, *, level: str = "error", says: str = "", fix: str = "") -> None:
    assert finding.level == level, finding
    assert says in finding.message, finding
    assert finding.fix, finding
    assert fix in finding.fix, finding


def test_a_fresh_outbox_has_nothing_wrong(session: Session) -> None:
    if session.dialect == "sqlite":
        session.run("PRAGMA journal_mode = WAL")
    findings = check(session.url, TABLE, None)
    assert [finding for finding in findings if finding.level != "ok"] == []
    common = {
        "database",
        "server-version",
        "installed",
        "identity",
        "privileges",
        "late-rows",
        "explicit-ids",
        "sequence-reset",
        "relay",
        "relay-start",
        "server-identity",
        "long-holder",
        "triggers",
        "unique-indexes",
        "references",
    }
    assert common <= {finding.name for finding in findings}


def test_findings_have_stable_names_and_mend_what_is_wrong(session: Session) -> None:
    for finding in check(session.url, TABLE, "file:///proc/none"):
        assert finding.name == finding.name.lower().replace("_", "-").replace(" ", "-")
        assert (finding.fix is None) == (finding.level == "ok")


def test_a_database_that_cannot_be_reached_is_a_finding() -> None:
    for text in ("postgresql://nobody@127.0.0.1:1/none", "mysql://nobody@127.0.0.1:1/none", "sqlite:////nowhere/a.db"):
        (finding,) = check(DatabaseUrl.parse(text), TABLE, None)
        assert finding.name == "database"
        assert_wrong(finding, says="cannot be looked at")


def test_a_check_never_makes_a_sqlite_file(tmp_path: Path) -> None:
    check(DatabaseUrl.parse(f"sqlite:///{tmp_path}/none.db"), TABLE, None)
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_in_no_finding(mariadb_url: str) -> None:
    url = DatabaseUrl.parse(mariadb_url)
    findings = check(url, TABLE, None) + check(
        DatabaseUrl.parse(mariadb_url.replace("secret", "wrong-secret")), TABLE, None
    )
    assert "error" in {finding.level for finding in findings}
    assert all("secret" not in f"{finding}" for finding in findings)


def test_no_out_table_says_how_to_make_one(url: DatabaseUrl) -> None:
    with Session(url, TABLE) as session:
        session.run("CREATE TABLE something (x integer)")
        assert_wrong(look(session)["installed"], says="no out table outbox", fix="outbox init --database")


def test_an_odd_table_name_is_quoted_for_the_shell(url: DatabaseUrl) -> None:
    with Session(url, OutTable("it's odd")) as session:
        session.run("CREATE TABLE something (x integer)")
        assert_wrong(look(session)["installed"], fix="""--outbox 'it'"'"'s odd'""")


def test_an_older_schema_says_upgrade(url: DatabaseUrl) -> None:
    with Session(url, TABLE) as session:
        run_migration(session, 1)
        assert_wrong(look(session)["installed"], says="schema version 1", fix="outbox upgrade --database")


def test_a_newer_schema_says_so(session: Session) -> None:
    session.run(f"UPDATE outbox_info SET schema_version = {SCHEMA_VERSION + 1}")
    assert_wrong(look(session)["installed"], says="install a newer outbox-connector")


def test_a_table_that_is_no_out_table_is_named(session: Session) -> None:
    session.run("DROP TABLE outbox" + (" CASCADE" if session.dialect == "postgresql" else ""))
    session.run("CREATE TABLE outbox (id integer, payload text)")
    assert_wrong(look(session)["installed"], says="lacks data,")


def test_a_lost_view_is_a_warning(session: Session) -> None:
    session.run("DROP VIEW outbox_lag")
    assert_wrong(look(session)["installed"], level="warning", says="outbox_lag is gone", fix="outbox init")


def test_an_empty_info_table_is_an_error(session: Session) -> None:
    session.run("DELETE FROM outbox_info")
    assert_wrong(look(session)["installed"], says="is empty", fix="outbox init")


def test_rows_below_what_was_deleted_are_late(session: Session) -> None:
    emit(session, 3)
    session.run("UPDATE outbox_info SET deleted_through = 2")
    finding = look(session)["late-rows"]
    assert_wrong(finding, says="2 in all", fix="outbox rebase")
    assert "the lowest is 1" in finding.message


def test_a_reset_sequence_is_an_error(session: Session) -> None:
    emit(session, 3)
    session.run("UPDATE outbox_info SET deleted_through = 3, relayed_through = 3")
    if session.dialect == "sqlite":
        session.run("DELETE FROM outbox")
        session.run("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'outbox'")
    else:
        session.run("TRUNCATE TABLE outbox" + (" RESTART IDENTITY" if session.dialect == "postgresql" else ""))
    fix = {"postgresql": "SELECT setval(", "mysql": "AUTO_INCREMENT = 4", "sqlite": "SET seq = 3"}[session.dialect]
    assert_wrong(look(session)["sequence-reset"], says="stands at 0", fix=fix)


def test_rows_that_wait_without_a_relay_are_a_warning(session: Session) -> None:
    emit(session, 2)
    assert_wrong(look(session)["relay"], level="warning", says="rows wait: 2", fix="outbox relay")


def test_a_relay_that_leads_is_named(session: Session) -> None:
    emit(session)
    until = {
        "postgresql": "clock_timestamp() + interval '1 hour'",
        "mysql": "utc_timestamp(6) + INTERVAL 1 HOUR",
        "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '3600 seconds')",
    }[session.dialect]
    session.run(f"UPDATE outbox_info SET leader = 'relay-7', lease_until = {until}")
    assert look(session)["relay"] == Finding("ok", "relay", "relay-7 leads")


def test_another_server_than_before_is_an_error(session: Session) -> None:
    session.run("UPDATE outbox_info SET server_id = 'the-old-one'")
    assert_wrong(look(session)["server-identity"], says="the-old-one before", fix="outbox rebase")


def test_a_trigger_on_the_out_table_is_a_warning(session: Session) -> None:
    if session.dialect == "postgresql":
        session.run("CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        session.run("CREATE TRIGGER mine BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION gone()")
    elif session.dialect == "mysql":
        session.run("CREATE TRIGGER mine BEFORE INSERT ON outbox FOR EACH ROW SET NEW.type = 'x'")
    else:
        session.run("CREATE TRIGGER mine AFTER INSERT ON outbox BEGIN DELETE FROM outbox; END")
    assert_wrong(look(session)["triggers"], level="warning", says="mine", fix="DROP TRIGGER mine")


def test_an_extra_unique_index_is_a_warning(session: Session) -> None:
    column = "subject(100)" if session.dialect == "mysql" else "subject"
    session.run(f"CREATE UNIQUE INDEX only_once ON outbox ({column})")
    assert_wrong(look(session)["unique-indexes"], level="warning", says="only_once", fix="DROP INDEX only_once")


def test_a_foreign_key_to_the_out_table_is_an_error(session: Session) -> None:
    kind = "integer" if session.dialect == "sqlite" else "bigint"
    session.run(f"CREATE TABLE child (event {kind}, CONSTRAINT child_fk FOREIGN KEY (event) REFERENCES outbox (id))")
    assert_wrong(look(session)["references"], says="child", fix="child")
