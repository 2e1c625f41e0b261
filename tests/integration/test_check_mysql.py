"""`check` on real MariaDB servers, and the judgements that need a cluster as pure functions."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.check import check
from connector.checks.mysql import judge_cluster, judge_counter, judge_version
from outbox.database import DatabaseUrl, Session
from outbox.grants import grant_relay
from outbox.names import OutTable
from outbox.schema import install
from tests.integration.test_check import assert_wrong, look
from tests.servers import mariadb
from tests.servers.mariadb import MariaDbServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = OutTable()
GALERA = [
    Path(folder) / "libgalera_smm.so" for folder in ("/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera")
]


@pytest.fixture
def session(mariadb_url: str) -> Session:
    url = DatabaseUrl.parse(mariadb_url)
    install(url, TABLE)
    return Session(url, TABLE)


@pytest.fixture
def relay(session: Session) -> Iterator[Session]:
    """A session of an account that was granted what the relay needs."""
    role = f"r_{uuid.uuid4().hex[:10]}"
    session.run(f"CREATE USER {role}")
    grant_relay(session.url, TABLE, role)
    yield Session(DatabaseUrl.parse(f"mysql://{role}@" + session.url.url.rpartition("@")[2]), TABLE)
    session.run(f"DROP USER {role}")


@pytest.fixture(scope="module")
def careless() -> Iterator[MariaDbServer]:
    """A server with everything off that keeps data safe, without the plugin that lists locks."""
    server = MariaDbServer(
        settings=(
            "--innodb-flush-log-at-trx-commit=2",
            "--log-bin=bin",
            "--sync-binlog=0",
            "--server-id=7",
            "--innodb-doublewrite=OFF",
            "--auto-increment-increment=2",
            "--metadata-lock-info=OFF",
        )
    ).start()
    yield server
    server.destroy()


@pytest.fixture
def careless_session(careless: MariaDbServer) -> Session:
    url = DatabaseUrl.parse(mariadb.fresh_database(careless.url()))
    install(url, TABLE)
    return Session(url, TABLE)


def test_the_granted_relay_role_has_nothing_wrong(relay: Session) -> None:
    assert [finding for finding in check(relay.url, TABLE, None) if finding.level != "ok"] == []


def test_settings_that_lose_commits_or_order_are_named(careless_session: Session) -> None:
    findings = look(careless_session)
    assert_wrong(findings["flush-log"], says="is 2", fix="innodb_flush_log_at_trx_commit = 1")
    assert_wrong(findings["sync-binlog"], says="sync_binlog = 0", fix="sync_binlog = 1")
    assert_wrong(findings["doublewrite"], level="warning", fix="innodb_doublewrite = ON")
    assert_wrong(findings["auto-increment"], says="is 2", fix="auto_increment_increment = 1")


def test_locks_that_cannot_be_listed_mean_the_barrier(careless_session: Session) -> None:
    assert_wrong(
        look(careless_session)["lock-listing"],
        level="warning",
        says="the barrier",
        fix="INSTALL SONAME 'metadata_lock_info'",
    )


def test_a_read_only_server_is_refused(careless_session: Session) -> None:
    careless_session.run("SET GLOBAL read_only = ON")
    try:
        assert_wrong(look(careless_session)["replica"], says="read-only", fix="primary")
    finally:
        careless_session.run("SET GLOBAL read_only = OFF")


def test_a_server_that_replicates_from_another_is_refused(careless_session: Session) -> None:
    careless_session.run("CHANGE MASTER 'far' TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1")
    try:
        finding = look(careless_session)["replica"]
        assert_wrong(finding, level="warning", says="127.0.0.1 (connection 'far')", fix="RESET REPLICA 'far' ALL")
        careless_session.run("START REPLICA 'far'")
        assert_wrong(look(careless_session)["replica"], says="replicates from 127.0.0.1", fix="primary")
    finally:
        careless_session.run("STOP REPLICA 'far'")
        careless_session.run("RESET REPLICA 'far' ALL")
    assert look(careless_session)["replica"].level == "ok"


def test_a_real_galera_node_is_refused() -> None:
    provider = next((path for path in GALERA if path.exists()), None)
    if provider is None:
        pytest.skip("Galera's provider library is not installed: apt-get install galera-4")
    server = MariaDbServer(
        settings=(
            "--wsrep-on=ON",
            f"--wsrep-provider={provider}",
            "--wsrep-cluster-address=gcomm://",
            "--binlog-format=ROW",
            "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0",
        )
    )
    try:
        server.start()
        url = DatabaseUrl.parse(mariadb.fresh_database(server.url()))
        install(url, TABLE)
        assert_wrong(look(Session(url, TABLE))["multi-primary"], says="Galera", fix="single primary")
    finally:
        server.destroy()


def test_group_replication_with_several_primaries_is_refused() -> None:
    group = {"group_replication_group_name": "g", "group_replication_single_primary_mode": "OFF"}
    (finding,) = judge_cluster(group)
    assert_wrong(finding, says="several primaries", fix="group_replication_switch_to_single_primary_mode")
    (finding,) = judge_cluster(group | {"group_replication_single_primary_mode": "ON"})
    assert finding.level == "ok"
    # The variables are there, but no group was ever formed.
    (finding,) = judge_cluster(group | {"group_replication_group_name": ""})
    assert finding.level == "ok"


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("5.7.44-log", "error"),
        ("8.0.36", "ok"),
        ("9.1.0", "ok"),
        ("10.4.34-MariaDB", "error"),
        ("10.5.1-MariaDB", "ok"),
        ("11.4.2-MariaDB-log", "ok"),
    ],
)
def test_versions_that_reuse_ids_are_refused(version: str, level: str) -> None:
    (finding,) = judge_version(version)
    assert finding.level == level


def test_an_offset_alone_is_a_warning() -> None:
    (finding,) = judge_counter({"auto_increment_increment": "1", "auto_increment_offset": "2"})
    assert_wrong(finding, level="warning", fix="auto_increment_offset = 1")


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        ("ALTER TABLE outbox ENGINE = MyISAM", "storage-engine", "MyISAM"),
        ("ALTER TABLE outbox MODIFY id bigint NOT NULL", "identity", "AUTO_INCREMENT"),
        ("ALTER TABLE outbox CONVERT TO CHARACTER SET latin1", "encoding", "latin1"),
    ],
)
def test_a_table_that_was_altered_is_refused(session: Session, change: str, name: str, says: str) -> None:
    session.run(change)
    finding = look(session)[name]
    assert_wrong(finding, says=says, fix="ALTER TABLE `outbox`")
    session.run(finding.fix or "")
    assert name not in {finding.name for finding in check(session.url, TABLE, None) if finding.level != "ok"}


@pytest.mark.parametrize(
    ("privilege", "what"),
    [("SELECT", "outbox"), ("DELETE", "outbox"), ("SELECT", "outbox_info"), ("UPDATE", "outbox_info")],
)
def test_a_missing_privilege_comes_with_its_grant(session: Session, relay: Session, privilege: str, what: str) -> None:
    session.run(f"REVOKE {privilege} ON {what} FROM {relay.url.username}")
    finding = look(relay)["privileges"]
    grant = f"GRANT {privilege} ON `{what}` TO `{relay.url.username}`@`%`"
    assert_wrong(finding, says=f"lacks {privilege}", fix=grant)
    session.run(grant)
    assert look(relay)["privileges"].level == "ok", "the fix mends it"


def test_missing_help_for_the_relay_is_a_warning(session: Session, relay: Session) -> None:
    role = relay.url.username
    session.run(f"REVOKE PROCESS, REPLICA MONITOR ON *.* FROM {role}")
    database = session.url.database.replace("_", "\\_")
    session.run(f"REVOKE LOCK TABLES ON `{database}`.* FROM {role}")
    findings = look(Session(relay.url, TABLE))
    assert_wrong(findings["blocker-names"], level="warning", fix="GRANT PROCESS")
    assert_wrong(findings["lock-tables"], level="warning", fix="GRANT LOCK TABLES")
    assert_wrong(findings["replica"], level="warning", says="could not be looked at")
    assert_wrong(findings["purge-horizon"], level="warning", says="could not be looked at")


def test_how_the_redo_log_is_flushed_is_said(session: Session, relay: Session) -> None:
    finding = look(relay)["redo-log"]
    assert (finding.level, "lacks RELOAD" in finding.message) == ("ok", True), finding
    session.run(f"GRANT RELOAD ON *.* TO {relay.url.username}")
    finding = look(Session(relay.url, TABLE))["redo-log"]
    assert (finding.level, "has RELOAD" in finding.message) == ("ok", True), finding


def test_a_role_that_sees_nothing_is_told_so(session: Session) -> None:
    role = f"r_{uuid.uuid4().hex[:10]}"
    session.run(f"CREATE USER {role}")
    session.run(f"GRANT CREATE VIEW ON {session.url.database}.* TO {role}")
    stranger = Session(DatabaseUrl.parse(f"mysql://{role}@" + session.url.url.rpartition("@")[2]), TABLE)
    findings = check(stranger.url, TABLE, None)
    assert any("may see nothing" in finding.message or finding.name == "info" for finding in findings)
    assert "error" in {finding.level for finding in findings}
    session.run(f"DROP USER {role}")


def test_a_session_that_has_emitted_and_sits_idle_is_named(session: Session) -> None:
    with Session(session.url, TABLE) as writer:
        writer.run("BEGIN")
        writer.run("INSERT INTO outbox (type) VALUES ('t')")
        thread = writer.value("connection_id")
        assert look(session)["long-holder"].level == "ok", "not worth a word yet"
        findings = look(session, patience_seconds=0)
        assert_wrong(findings["long-holder"], level="warning", says=f"pid {thread}", fix=f"KILL {thread}")
        assert_wrong(findings["purge-horizon"], level="warning", says=f"thread {thread}", fix="KILL")


def test_a_prepared_transaction_whose_client_left_is_named(session: Session) -> None:
    gid = f"x{uuid.uuid4().hex[:8]}"
    with Session(session.url, TABLE) as writer:
        writer.run(f"XA START '{gid}'")
        writer.run("INSERT INTO outbox (type) VALUES ('t')")
        writer.run(f"XA END '{gid}'")
        writer.run(f"XA PREPARE '{gid}'")
    try:
        finding = look(session, patience_seconds=0)["long-holder"]
        assert_wrong(finding, level="warning", says="XA-prepared", fix="XA ROLLBACK")
    finally:
        session.run(f"XA ROLLBACK '{gid}'")


def test_odd_names_are_fine(session: Session) -> None:
    table = OutTable("select `x` 'y'", f"odd.schema {uuid.uuid4().hex[:6]}")
    install(session.url, table)
    assert [finding for finding in check(session.url, table, None) if finding.level != "ok"] == []
    session.run(f"DROP DATABASE `{table.schema}`")
