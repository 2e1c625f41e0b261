"""The writer role can emit and nothing else; the relay role can do what the relay does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import SchemaError, UsageError
from outbox.grants import grant_relay, grant_writer, quote_role, render_grant_relay, render_grant_writer
from outbox.names import OutTable
from outbox.schema import install
from tests.integration.test_schema import ODD_NAMES, emit_by_sql
from tests.integration.test_schema_script import run_client

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = OutTable()


@dataclass(frozen=True)
class Place:
    """A database with an outbox in it, and a role of its own."""

    url: DatabaseUrl
    role: str

    def as_role(self, table: OutTable = TABLE) -> Session:
        if self.url.dialect == "postgresql":
            return Session(DatabaseUrl.parse(self.url.url.replace("postgres@", f"{self.role}@")), table)
        # An account without a password on the same server.
        return Session(DatabaseUrl.parse(f"mysql://{self.role}@" + self.url.url.rpartition("@")[2]), table)


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    url = DatabaseUrl.parse(request.getfixturevalue(f"{request.param}_url"))
    role = f"r_{uuid.uuid4().hex[:10]}"
    install(url, TABLE)
    with Session(url, TABLE) as admin:
        admin.run(f"CREATE ROLE {role} LOGIN" if url.dialect == "postgresql" else f"CREATE USER {role}")
    yield Place(url, role)
    if url.dialect == "mysql":
        with Session(url, TABLE) as admin:
            admin.run(f"DROP USER {role}")


def refused(session: Session, *attempts: str) -> None:
    for attempt in attempts:
        with pytest.raises(
            (psycopg.Error, pymysql.Error), match=r"(?i)denied|cannot insert a non-DEFAULT|must be owner"
        ):
            session.run(attempt)


def test_without_a_grant_a_role_can_do_nothing(place: Place) -> None:
    if place.url.dialect == "mysql":
        with pytest.raises(UsageError, match="denied"):
            place.as_role()
        return
    with place.as_role() as session:
        refused(
            session, "INSERT INTO outbox (type) VALUES ('t')", "SELECT outbox_emit('t')", "SELECT 1 FROM outbox_lag"
        )


def test_the_writer_can_insert_by_table_and_by_function(place: Place) -> None:
    grant_writer(place.url, TABLE, place.role)
    with place.as_role() as session:
        session.run(
            "INSERT INTO outbox (type, subject, data, datacontenttype, headers) VALUES ('t', 's', '1', NULL, '{}')"
        )
        session.run("INSERT INTO outbox (type, data_bytes, time) VALUES ('t', 'x', '2024-01-01 00:00:00')")
        emit_by_sql(session)
        with session.transaction():
            emit_by_sql(session)
    with Session(place.url, TABLE) as admin:
        assert admin.run("SELECT id FROM outbox ORDER BY id") == [(1,), (2,), (3,), (4,)]


def test_the_writer_can_do_nothing_else(place: Place) -> None:
    grant_writer(place.url, TABLE, place.role)
    with place.as_role() as session:
        emit_by_sql(session)
        refused(
            session,
            "SELECT id FROM outbox",
            "SELECT count(*) FROM outbox",
            "UPDATE outbox SET type = 'x'",
            "DELETE FROM outbox",
            "DELETE FROM outbox WHERE id = 1",
            "DROP TABLE outbox",
            "ALTER TABLE outbox ADD COLUMN x integer",
            "SELECT * FROM outbox_info",
            "UPDATE outbox_info SET deleted_through = 9",
            "INSERT INTO outbox_info (schema_version, source, outbox_id) VALUES (1, 'x', 'x')",
            "SELECT * FROM outbox_lag",
            "INSERT INTO outbox (id, type) VALUES (99, 't')",
        )
    with Session(place.url, TABLE) as admin:
        assert admin.run("SELECT id, type FROM outbox") == [(1, "order.placed")]


def test_the_writer_cannot_give_an_id_in_postgresql(postgresql_url: str) -> None:
    url = DatabaseUrl.parse(postgresql_url)
    install(url, TABLE)
    role = f"r_{uuid.uuid4().hex[:10]}"
    with Session(url, TABLE) as admin:
        admin.run(f"CREATE ROLE {role} LOGIN")
    grant_writer(url, TABLE, role)
    with Place(url, role).as_role() as session:
        refused(
            session,
            "INSERT INTO outbox (id, type) OVERRIDING SYSTEM VALUE VALUES (99, 't')",
            "INSERT INTO outbox (type) VALUES ('t') RETURNING id",
            "INSERT INTO outbox (type) VALUES ('t') ON CONFLICT (id) DO UPDATE SET type = 'x'",
            "COPY outbox (id, type) FROM STDIN",
            "COPY outbox TO STDOUT",
            "TRUNCATE outbox",
            "TRUNCATE outbox RESTART IDENTITY",
            "DO $$ BEGIN LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE; END $$",
            "SELECT nextval('outbox_id_seq')",
            "SELECT setval('outbox_id_seq', 1)",
            "SELECT last_value FROM outbox_id_seq",
            "ALTER SEQUENCE outbox_id_seq CACHE 100",
        )
        # COPY without the ID is an INSERT like any other.
        with session.driver.cursor().copy("COPY outbox (type, data) FROM STDIN") as copy:
            copy.write_row(("copied", "{}"))
    with Session(url, TABLE) as admin:
        assert admin.run("SELECT id, type FROM outbox") == [(1, "copied")]


def test_the_writer_cannot_give_an_id_in_mysql(mariadb_url: str) -> None:
    url = DatabaseUrl.parse(mariadb_url)
    install(url, TABLE)
    role = f"r_{uuid.uuid4().hex[:10]}"
    with Session(url, TABLE) as admin:
        admin.run(f"CREATE USER {role}")
    grant_writer(url, TABLE, role)
    with Place(url, role).as_role() as session:
        refused(
            session,
            "REPLACE INTO outbox (id, type) VALUES (1, 't')",
            "INSERT INTO outbox (type) VALUES ('t') ON DUPLICATE KEY UPDATE type = 'x'",
            "INSERT INTO outbox VALUES (9, 't', NULL, NULL, NULL, NULL, NULL, now())",
            "INSERT INTO outbox (type) VALUES ('t') RETURNING id",
            "TRUNCATE TABLE outbox",
            "LOCK TABLES outbox WRITE",
            "ALTER TABLE outbox AUTO_INCREMENT = 1",
            "DROP PROCEDURE outbox_emit",
        )
    with Session(url, TABLE) as admin:
        admin.run(f"DROP USER {role}")


def test_the_relay_role_can_do_what_the_relay_does_and_cannot_emit(place: Place) -> None:
    assert grant_relay(place.url, TABLE, place.role) == []
    with Session(place.url, TABLE) as admin:
        emit_by_sql(admin)
    with place.as_role() as session:
        assert session.run("SELECT id FROM outbox") == [(1,)]
        session.run("UPDATE outbox_info SET relayed_through = 1, leader = 'r'")
        assert session.run("SELECT rows_waiting FROM outbox_lag") == [(0,)]
        session.run("DELETE FROM outbox WHERE id <= 1")
        if place.url.dialect == "postgresql":
            assert session.run("SELECT last_value FROM outbox_id_seq") == [(1,)]
            assert session.run("SELECT pg_has_role('pg_read_all_stats', 'USAGE')") == [(True,)]
        else:
            session.run("LOCK TABLES outbox WRITE")
            session.run("UNLOCK TABLES")
            session.run("XA RECOVER")
            session.run("SHOW REPLICA STATUS")
            session.query("blockers")
        refused(
            session,
            "INSERT INTO outbox (type) VALUES ('t')",
            "UPDATE outbox SET type = 'x'",
            "DELETE FROM outbox_info",
            "DROP TABLE outbox",
            "INSERT INTO outbox_info (schema_version, source, outbox_id) VALUES (1, 'x', 'x')",
        )


def test_what_only_an_administrator_may_grant_is_named_not_fatal(postgresql_url: str) -> None:
    owner, relay = (f"r_{uuid.uuid4().hex[:10]}" for _ in range(2))
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {owner} LOGIN")
        admin.execute(f"CREATE ROLE {relay} LOGIN")
        admin.execute(f"GRANT CREATE ON DATABASE {postgresql_url.rsplit('/', 1)[1]} TO {owner}")
    url = DatabaseUrl.parse(postgresql_url.replace("postgres@", f"{owner}@"))
    table = OutTable("outbox", "owned")
    install(url, table)
    (refusal,) = grant_relay(url, table, relay)
    assert f'GRANT pg_read_all_stats TO "{relay}"' in refusal
    with Session(DatabaseUrl.parse(postgresql_url.replace("postgres@", f"{relay}@")), table) as session:
        assert session.run("SELECT count(*) FROM owned.outbox") == [(0,)]


def test_a_schema_that_the_grantor_may_not_open_is_an_error_not_a_warning(postgresql_url: str) -> None:
    owner, writer = (f"r_{uuid.uuid4().hex[:10]}" for _ in range(2))
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {owner} LOGIN")
        admin.execute(f"CREATE ROLE {writer} LOGIN")
        admin.execute("CREATE SCHEMA shut")
        admin.execute(f"GRANT USAGE, CREATE ON SCHEMA shut TO {owner}")
    url = DatabaseUrl.parse(postgresql_url.replace("postgres@", f"{owner}@"))
    install(url, OutTable("outbox", "shut"))
    with pytest.raises(SchemaError, match=f'GRANT USAGE ON SCHEMA "shut" TO "{writer}"|permission denied for schema'):
        grant_writer(url, OutTable("outbox", "shut"), writer)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_role_names_are_quoted(place: Place, name: str) -> None:
    role = f"{name[:20]} {uuid.uuid4().hex[:6]}"
    if place.url.dialect == "mysql" and "`" not in role:
        role = f"{role}@localhost"
    quoted = quote_role(role, place.url.dialect)
    kind = "ROLE" if place.url.dialect == "postgresql" else "USER"
    table = OutTable(name)
    install(place.url, table)
    with Session(place.url, table) as admin:
        admin.run(f"CREATE {kind} {quoted}")
        grant_writer(place.url, table, role)
        grant_relay(place.url, table, role)
        if kind == "USER":
            admin.run(f"DROP USER {quoted}")


def test_a_schema_named_like_a_pattern_grants_nothing_next_door(mariadb_url: str) -> None:
    """In a GRANT MySQL reads _ in a database's name as any letter."""
    url = DatabaseUrl.parse(mariadb_url)
    role = f"r_{uuid.uuid4().hex[:10]}"
    neighbour = url.database.replace("_", "x")
    with Session(url, TABLE) as admin:
        admin.run(f"CREATE USER {role}")
        admin.run(f"CREATE DATABASE {neighbour}")
        install(url, TABLE)
        grant_relay(url, TABLE, role)
        grants = "\n".join(row[0] for row in admin.run(f"SHOW GRANTS FOR {role}"))
        assert f"GRANT LOCK TABLES ON `{url.database.replace('_', chr(92) + '_')}`.*" in grants
        with Place(url, role).as_role() as session, pytest.raises(pymysql.Error, match="denied"):
            session.run(f"USE {neighbour}")
        admin.run(f"DROP DATABASE {neighbour}")
        admin.run(f"DROP USER {role}")


def test_a_mariadb_role_can_be_granted_too(mariadb_url: str) -> None:
    url = DatabaseUrl.parse(mariadb_url)
    install(url, TABLE)
    role = f"role_{uuid.uuid4().hex[:8]}"
    with Session(url, TABLE) as admin:
        admin.run(f"CREATE ROLE {role}")
        grant_writer(url, TABLE, role)
        assert any("INSERT" in row[0] for row in admin.run(f"SHOW GRANTS FOR {role}"))
        admin.run(f"DROP ROLE {role}")


def test_a_role_that_does_not_exist_is_an_error(place: Place) -> None:
    with pytest.raises(SchemaError, match="create the role first"):
        grant_writer(place.url, TABLE, "no such role")


def test_an_injected_role_name_stays_a_name(place: Place) -> None:
    hostile = 'x"; DROP TABLE outbox; --`; DROP TABLE outbox; --'
    with pytest.raises(SchemaError):
        grant_writer(place.url, TABLE, hostile)
    with pytest.raises(SchemaError):
        grant_relay(place.url, TABLE, hostile)
    assert not install(place.url, TABLE).created


def test_printed_grants_do_the_same(place: Place) -> None:
    run_client(place.url, render_grant_writer(place.url.dialect, TABLE, place.role))
    with place.as_role() as session:
        emit_by_sql(session)
        refused(session, "SELECT id FROM outbox", "INSERT INTO outbox (id, type) VALUES (99, 't')")
    run_client(place.url, render_grant_relay(place.url.dialect, TABLE, place.role))
    with place.as_role() as session:
        assert session.run("SELECT id FROM outbox") == [(1,)]


def test_printed_grants_name_what_is_for_an_administrator() -> None:
    assert '-- GRANT pg_read_all_stats TO "relay"' in render_grant_relay("postgresql", TABLE, "relay")
    assert "-- GRANT PROCESS, REPLICA MONITOR ON *.* TO `relay`@`%`" in render_grant_relay("mysql", TABLE, "relay@'%'")
    assert 'GRANT USAGE ON SCHEMA "app"' in render_grant_writer("postgresql", OutTable("outbox", "app"), "writer")


def test_sqlite_says_that_file_permissions_do_it(sqlite_url: str) -> None:
    url = DatabaseUrl.parse(sqlite_url)
    install(url, TABLE)
    for grant in (grant_writer, grant_relay):
        with pytest.raises(UsageError, match="SQLite has no roles"):
            grant(url, TABLE, "writer")


def test_a_role_name_with_a_control_character_is_refused() -> None:
    for role in ("", "a\nb", "a\x00b", "a\\b"):
        with pytest.raises(UsageError, match="cannot name a role"):
            quote_role(role, "postgresql")
