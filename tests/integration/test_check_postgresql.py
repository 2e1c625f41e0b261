"""`check` on real PostgreSQL servers: each thing that would make the fence blind, and each that costs."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest

from connector.check import check
from outbox.database import DatabaseUrl, Session
from outbox.grants import grant_relay
from outbox.names import OutTable
from outbox.schema import install
from tests.integration.test_check import assert_wrong, emit, look
from tests.servers.pooler import TransactionPooler
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = OutTable()


@pytest.fixture
def session(postgresql_url: str) -> Session:
    url = DatabaseUrl.parse(postgresql_url)
    install(url, TABLE)
    return Session(url, TABLE)


@pytest.fixture
def relay(session: Session) -> Session:
    """A session of a role that was granted what the relay needs."""
    role = f"r_{uuid.uuid4().hex[:10]}"
    session.run(f"CREATE ROLE {role} LOGIN")
    grant_relay(session.url, TABLE, role)
    return Session(DatabaseUrl.parse(session.url.url.replace("postgres@", f"{role}@")), TABLE)


@pytest.fixture(scope="module")
def careless() -> Iterator[PostgresServer]:
    """A server with everything off that keeps data safe."""
    server = PostgresServer(
        settings=("fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off", "wal_level=logical")
    ).start()
    yield server
    server.destroy()


def test_the_granted_relay_role_has_nothing_wrong(relay: Session) -> None:
    assert [finding for finding in check(relay.url, TABLE, None) if finding.level != "ok"] == []


def test_a_replica_is_refused_and_its_promotion_is_another_server() -> None:
    server = PostgresServer().start()
    try:
        primary = Session(DatabaseUrl.parse(server.url()), TABLE)
        install(primary.url, TABLE)
        primary.query("remember_server", server_id=primary.value("server_id"))
        assert look(primary)["server-identity"].level == "ok"
        standby = server.replica()
        try:
            replica = Session(DatabaseUrl.parse(standby.url()), TABLE)
            assert_wrong(look(replica)["replica"], says="is a replica", fix="primary")
            standby.promote()
            findings = look(replica)
            assert findings["replica"].level == "ok"
            assert_wrong(findings["server-identity"], says="not the one it was", fix="outbox verify")
        finally:
            standby.destroy()
    finally:
        server.destroy()


def test_a_read_only_role_is_refused(relay: Session, session: Session) -> None:
    session.run(f"ALTER ROLE {relay.url.username} SET default_transaction_read_only = on")
    assert_wrong(look(relay)["replica"], says="read-only", fix="SET default_transaction_read_only = off")


def test_settings_that_lose_commits_are_named(careless: PostgresServer) -> None:
    session = Session(DatabaseUrl.parse(careless.url()), TABLE)
    findings = look(session)
    assert_wrong(findings["fsync"], says="fsync is off", fix="ALTER SYSTEM SET fsync = on")
    assert_wrong(findings["full-page-writes"], level="warning", fix="ALTER SYSTEM SET full_page_writes = on")
    assert_wrong(
        findings["synchronous-commit"], level="warning", says="waits for the flush", fix="synchronous_commit = on"
    )
    assert_wrong(findings["autovacuum"], level="warning", fix="ALTER SYSTEM SET autovacuum = on")


def test_the_target_of_a_subscription_is_refused(careless: PostgresServer) -> None:
    with contextlib.closing(psycopg.connect(careless.url(), autocommit=True)) as admin:
        admin.execute("CREATE DATABASE publisher")
        admin.execute("CREATE DATABASE subscriber")
    for name in ("publisher", "subscriber"):
        install(DatabaseUrl.parse(careless.url(name)), TABLE)
    with contextlib.closing(psycopg.connect(careless.url("publisher"), autocommit=True)) as publisher:
        publisher.execute("CREATE PUBLICATION events FOR TABLE outbox")
        publisher.execute("SELECT pg_create_logical_replication_slot('events', 'pgoutput')")
    subscriber = Session(DatabaseUrl.parse(careless.url("subscriber")), TABLE)
    assert "subscription-target" not in look(subscriber)
    # The slot is made by hand: within one server, CREATE SUBSCRIPTION would wait for itself.
    subscriber.run(
        f"CREATE SUBSCRIPTION copied CONNECTION '{careless.url('publisher')}' PUBLICATION events "
        "WITH (create_slot = false, slot_name = 'events', enabled = false, copy_data = false)"
    )
    assert_wrong(look(subscriber)["subscription-target"], says="subscription copied", fix="publishing server")


def test_a_database_in_another_encoding_is_refused(postgresql_admin_url: str) -> None:
    name = f"ascii_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgresql_admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    url = DatabaseUrl.parse(postgresql_admin_url.rsplit("/", 1)[0] + "/" + name)
    assert_wrong(look(Session(url, TABLE))["encoding"], says="SQL_ASCII", fix="ENCODING 'UTF8'")


@pytest.mark.parametrize(
    ("change", "name", "fix"),
    [
        ("ALTER SEQUENCE outbox_id_seq CACHE 20", "sequence-cache", "CACHE 1"),
        ("ALTER SEQUENCE outbox_id_seq CYCLE", "sequence-cycle", "NO CYCLE"),
        ("ALTER SEQUENCE outbox_id_seq INCREMENT 2", "sequence-increment", "INCREMENT 1"),
        ("ALTER TABLE outbox ALTER COLUMN id SET GENERATED BY DEFAULT", "identity", "SET GENERATED ALWAYS"),
        ("ALTER TABLE outbox SET UNLOGGED", "unlogged", "SET LOGGED"),
        ("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox FORCE ROW LEVEL SECURITY", None, None),
    ],
)
def test_what_breaks_the_order_of_ids_is_refused(
    session: Session, change: str, name: str | None, fix: str | None
) -> None:
    session.run(change)
    findings = look(session)
    if name is None or fix is None:
        # A superuser is exempt from row-level security, forced or not.
        assert findings["row-security"].level == "ok"
        return
    assert_wrong(findings[name], fix=fix)
    mend = findings[name].fix or ""
    session.run(mend.split(", then")[0])
    again = look(session)
    assert again.get(name, again["identity"]).level == "ok", "the fix mends it"


def test_an_id_without_a_sequence_is_refused(session: Session) -> None:
    session.run("DROP VIEW outbox_lag")
    session.run("ALTER TABLE outbox ALTER COLUMN id DROP IDENTITY")
    assert_wrong(look(session)["identity"], says="no sequence of its own", fix="ADD GENERATED ALWAYS AS IDENTITY")


def test_an_explicit_id_above_the_sequence_is_an_error(session: Session) -> None:
    emit(session)
    session.run("INSERT INTO outbox (id, type) OVERRIDING SYSTEM VALUE VALUES (1000, 't')")
    finding = look(session)["explicit-ids"]
    assert_wrong(finding, says="row 1000", fix="SELECT setval('\"outbox_id_seq\"', 1000)")
    session.run("SELECT setval('\"outbox_id_seq\"', 1000)")
    assert look(session)["explicit-ids"].level == "ok", "the fix mends it"


@pytest.mark.parametrize("pool", [1, 2, 10])
def test_a_transaction_pooler_in_between_is_found(session: Session, pool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.checks.pooling.ANSWER_SECONDS", 1.0)
    pooler = TransactionPooler(session.url.url, pool)
    try:
        with contextlib.closing(psycopg.connect(pooler.url, autocommit=True)) as through:
            assert through.execute("SELECT 1").fetchone() == (1,)
        findings = look(Session(DatabaseUrl.parse(pooler.url), TABLE))
        assert_wrong(findings["transaction-pooling"], says="several clients", fix="pool_mode = session")
    finally:
        pooler.close()


def test_row_security_that_hides_rows_from_the_relay_is_refused(session: Session, relay: Session) -> None:
    session.run("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    session.run("CREATE POLICY a_few ON outbox USING (type <> 'secret')")
    assert_wrong(look(relay)["row-security"], says="hides rows", fix="BYPASSRLS")
    session.run(f"ALTER ROLE {relay.url.username} BYPASSRLS")
    assert look(relay)["row-security"].level == "ok", "the fix mends it"


@pytest.mark.parametrize(
    ("privilege", "what"),
    [
        ("SELECT", '"outbox"'),
        ("DELETE", '"outbox"'),
        ("SELECT", '"outbox_info"'),
        ("UPDATE", '"outbox_info"'),
        ("SELECT", 'SEQUENCE "outbox_id_seq"'),
        ("USAGE", 'SEQUENCE "outbox_id_seq"'),
    ],
)
def test_a_missing_privilege_comes_with_its_grant(session: Session, relay: Session, privilege: str, what: str) -> None:
    session.run(f"REVOKE {privilege} ON {what} FROM {relay.url.username}")
    finding = look(relay)["privileges"]
    grant = f'GRANT {privilege} ON {what} TO "{relay.url.username}"'
    assert_wrong(finding, says=f"lacks {privilege}", fix=grant)
    session.run(grant)
    assert look(relay)["privileges"].level == "ok", "the fix mends it"


def test_a_role_that_cannot_name_blockers_is_a_warning(session: Session, relay: Session) -> None:
    session.run(f"REVOKE pg_read_all_stats FROM {relay.url.username}")
    assert_wrong(look(relay)["blocker-names"], level="warning", fix="GRANT pg_read_all_stats")


def test_a_session_that_has_emitted_and_sits_idle_is_named(session: Session) -> None:
    with psycopg.connect(session.url.url, application_name="web-3") as writer:
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        assert look(session)["long-holder"].level == "ok", "not worth a word yet"
        finding = look(session, patience_seconds=0)["long-holder"]
        assert_wrong(
            finding, level="warning", says="application web-3", fix=f"pg_terminate_backend({writer.info.backend_pid})"
        )
        assert "idle in transaction" in finding.message


def test_a_holder_of_another_role_is_found_without_its_name(session: Session, relay: Session) -> None:
    session.run(f"REVOKE pg_read_all_stats FROM {relay.url.username}")
    with psycopg.connect(session.url.url) as writer:
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        finding = look(relay, patience_seconds=0)["long-holder"]
        assert_wrong(finding, level="warning", says=f"pid {writer.info.backend_pid}")


def test_a_forgotten_prepared_transaction_is_named(session: Session) -> None:
    gid = f"it's {uuid.uuid4().hex}"
    with psycopg.connect(session.url.url, autocommit=True) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        writer.execute(f"PREPARE TRANSACTION '{gid.replace(chr(39), chr(39) * 2)}'")
    assert look(session)["prepared-transaction"].level == "ok", "not worth a word yet"
    findings = look(session, patience_seconds=0)
    assert_wrong(findings["prepared-transaction"], level="warning", says=gid, fix="ROLLBACK PREPARED 'it''s")
    assert_wrong(findings["long-holder"], level="warning", says="prepared transaction", fix="PREPARED")
    session.run((findings["prepared-transaction"].fix or "").split(", or ")[1])
    assert look(session, patience_seconds=0)["prepared-transaction"].level == "ok", "the fix mends it"


def test_an_old_snapshot_that_holds_vacuum_up_is_a_warning(session: Session) -> None:
    with psycopg.connect(session.url.url, application_name="report") as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox")
        assert look(session)["vacuum-horizon"].level == "ok"
        assert_wrong(look(session, patience_seconds=0)["vacuum-horizon"], level="warning", says="application report")


def test_a_rule_on_the_out_table_is_a_warning(session: Session) -> None:
    session.run("CREATE RULE nothing AS ON INSERT TO outbox DO INSTEAD NOTHING")
    assert_wrong(look(session)["triggers"], level="warning", says="nothing")


def test_a_view_in_place_of_the_out_table_is_refused(session: Session) -> None:
    session.run("ALTER TABLE outbox RENAME TO hidden")
    session.run("CREATE VIEW outbox AS SELECT * FROM hidden")
    assert_wrong(look(session)["table-kind"], says="not a table")


def test_odd_names_are_fine(postgresql_url: str) -> None:
    table = OutTable("select \"x\" 'y'", "odd.schema")
    url = DatabaseUrl.parse(postgresql_url)
    install(url, table)
    assert [finding for finding in check(url, table, None) if finding.level != "ok"] == []
