"""All migrations applied from nothing = the schema, object by object, as the catalog has them."""

from __future__ import annotations

import re

import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import SchemaError
from outbox.info import SCHEMA_VERSION, read_info
from outbox.names import OutTable
from outbox.queries import fill, migrations, statements
from outbox.schema import install, render_upgrade, uninstall, upgrade
from tests.servers import mariadb, postgresql

NEW, OLD = OutTable("new_outbox"), OutTable("old_outbox")


def run_migration(session: Session, number: int, statements_limit: int | None = None) -> None:
    migration = migrations(session.dialect)[number - 1]
    script = fill(migration.script, session.dialect, session.table, source_literal="'/old'")
    for statement in statements(script)[:statements_limit]:
        session.run(statement)


@pytest.fixture
def url(database_url: str) -> DatabaseUrl:
    return DatabaseUrl.parse(database_url)


@pytest.fixture
def old(url: DatabaseUrl) -> Session:
    """An outbox in the first layout, with two rows, of which one is in the stream."""
    session = Session(url, OLD)
    run_migration(session, 1)
    for _ in range(2):
        session.run("INSERT INTO old_outbox (type) VALUES ('t')")
    session.run("UPDATE old_outbox_info SET deleted_through = 1, stream_id = 'the-stream'")
    return session


def catalog(session: Session) -> dict[str, object]:
    """Everything the database knows of an outbox, under names that do not tell which one."""
    look = {"postgresql": postgresql_catalog, "mysql": mysql_catalog, "sqlite": sqlite_catalog}[session.dialect]
    return {what: anonymous(rows) for what, rows in look(session, session.table.name).items()}


def anonymous(value: object) -> object:
    if isinstance(value, list | tuple):
        return [anonymous(part) for part in value]
    if isinstance(value, str):
        return re.sub(r"\s+", " ", re.sub(r"new_outbox|old_outbox", "OUTBOX", value)).replace("IFNOTEXISTS", "")
    return value


def postgresql_catalog(session: Session, name: str) -> dict[str, object]:
    ours = f"('{name}'::regclass, '{name}_info'::regclass, '{name}_lag'::regclass)"
    return {
        "columns": session.run(f"""
            SELECT attrelid::regclass::text, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                   attstorage, attcompression, pg_get_expr(adbin, adrelid)
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid IN {ours} AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2"""),
        "constraints": session.run(f"""
            SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid IN {ours} ORDER BY 1, 2"""),
        "indexes": session.run(f"SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid IN {ours} ORDER BY 1"),
        "view": session.run(f"SELECT pg_get_viewdef('{name}_lag'::regclass)"),
        "function": session.run(
            f"SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc WHERE proname = '{name}_emit'"
        ),
        "triggers": session.run(f"SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid IN {ours}"),
        "storage": session.run(f"""
            SELECT c.oid::regclass::text, c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, c.relacl::text,
                   (SELECT array_agg(o ORDER BY o) FROM unnest(c.reloptions) AS o),
                   (SELECT array_agg(o ORDER BY o) FROM unnest(t.reloptions) AS o)
            FROM pg_class AS c LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid WHERE c.oid IN {ours} ORDER BY 1"""),
        "sequence": session.run(f"""
            SELECT seqtypid::regtype::text, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle FROM pg_sequence
            WHERE seqrelid = pg_get_serial_sequence('{name}', 'id')::regclass AND seqrelid = '{name}_id_seq'::regclass"""),
    }


def mysql_catalog(session: Session, name: str) -> dict[str, object]:
    shown = {
        what: [
            re.sub(r"AUTO_INCREMENT=\d+ ", "", str(part))
            for part in session.run(f"SHOW CREATE {kind} {name}{suffix}")[0][:3]
        ]
        for what, kind, suffix in [
            ("table", "TABLE", ""),
            ("info", "TABLE", "_info"),
            ("view", "VIEW", "_lag"),
            ("procedure", "PROCEDURE", "_emit"),
        ]
    }
    triggers = session.run(
        f"SELECT action_statement FROM information_schema.triggers WHERE event_object_table = '{name}'"
    )
    return {**shown, "triggers": triggers}


def sqlite_catalog(session: Session, name: str) -> dict[str, object]:
    columns = {
        what: session.run(f"PRAGMA table_xinfo('{name}{suffix}')")
        for what, suffix in [("table", ""), ("info", "_info")]
    }
    objects = session.run(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema "
        f"WHERE tbl_name IN ('{name}', '{name}_info', '{name}_lag') ORDER BY 1, 2"
    )
    # The text is the truth (checks, triggers), but for comments and the spaces ALTER TABLE leaves.
    texts = [(*who, re.sub(r"--[^\n]*|\s", "", sql)) for *who, sql in objects]
    return {**columns, "texts": texts}


def test_all_migrations_from_nothing_make_the_schema(url: DatabaseUrl) -> None:
    install(url, NEW)
    with Session(url, NEW) as new, Session(url, OLD) as old:
        for migration in migrations(url.dialect):
            run_migration(old, migration.number)
        assert catalog(old) == catalog(new)
        assert read_info(old).schema_version == SCHEMA_VERSION == migrations(url.dialect)[-1].number


def test_upgrade_applies_what_is_missing_and_nothing_twice(url: DatabaseUrl, old: Session) -> None:
    assert upgrade(url, OLD) == [migration.name for migration in migrations(url.dialect)[1:]]
    assert upgrade(url, OLD) == []
    install(url, NEW)
    with Session(url, NEW) as new:
        assert catalog(old) == catalog(new)


def test_upgrade_keeps_rows_and_who_the_outbox_is(url: DatabaseUrl, old: Session) -> None:
    (before,) = old.query("identity")
    upgrade(url, OLD)
    info = read_info(old)
    assert (info.outbox_id, info.source, info.stream_id) == (before[1], "/old", "the-stream")
    assert (info.deleted_through, info.relayed_through) == (1, 1)
    assert old.run("SELECT id FROM old_outbox ORDER BY id") == [(1,), (2,)]
    old.run("INSERT INTO old_outbox (type) VALUES ('t')")
    assert old.run("SELECT rows_waiting, last_id_drawn FROM old_outbox_lag") == [(2, 3)]


def test_an_old_outbox_is_named_as_such_by_everyone(url: DatabaseUrl, old: Session) -> None:
    for look in (lambda: read_info(old), lambda: install(url, OLD), lambda: uninstall(url, OLD)):
        with pytest.raises(SchemaError, match=r"schema version 1.*run `outbox upgrade`"):
            look()


def test_an_outbox_of_a_later_program_is_left_alone(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        session.run(f"UPDATE outbox_info SET schema_version = {SCHEMA_VERSION + 1}")
        for look in (lambda: read_info(session), lambda: install(url, OutTable()), lambda: upgrade(url, OutTable())):
            with pytest.raises(SchemaError, match="install a newer outbox-connector"):
                look()


def test_upgrade_without_an_outbox_says_what_to_run(url: DatabaseUrl) -> None:
    with pytest.raises(SchemaError, match="outbox init"):
        upgrade(url, OutTable())


def test_an_upgrade_killed_after_any_statement_is_completed_by_the_next(mariadb_admin_url: str) -> None:
    """MySQL commits each statement of a migration by itself, and has no ADD COLUMN IF NOT EXISTS."""
    count = len(statements(migrations("mysql")[1].script))
    for done in range(count + 1):
        url = DatabaseUrl.parse(mariadb.fresh_database(mariadb_admin_url))
        with Session(url, OLD) as session:
            run_migration(session, 1)
            run_migration(session, 2, done)
            assert upgrade(url, OLD) == (["0002_lag_and_emit"] if done < count else [])
            install(url, NEW)
            with Session(url, NEW) as new:
                assert catalog(session) == catalog(new), f"killed after {done} statements"


def test_a_failed_upgrade_changes_nothing_where_ddl_is_transactional(postgresql_admin_url: str) -> None:
    url = DatabaseUrl.parse(postgresql.fresh_database(postgresql_admin_url))
    with Session(url, OLD) as session:
        run_migration(session, 1)
        session.run("CREATE TABLE old_outbox_lag (x integer)")
        with pytest.raises(SchemaError, match="old_outbox_lag"):
            upgrade(url, OLD)
        assert session.run("SELECT schema_version FROM old_outbox_info") == [(1,)]
        session.run("DROP TABLE old_outbox_lag")
    assert upgrade(url, OLD) == ["0002_lag_and_emit"]


def test_the_upgrade_can_be_printed() -> None:
    assert "ADD COLUMN relayed_through" in render_upgrade("postgresql", OLD, installed_version=1, source="/old")
    assert "ADD COLUMN" not in render_upgrade("postgresql", OLD, installed_version=SCHEMA_VERSION, source="/old")
