"""The facts about real servers that the fence rests on, one by one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from connector.checks.finding import Subject
from connector.checks.postgresql import sequence
from connector.fence import Fence, Holders, observe
from connector.sources.mysql import MysqlSource
from connector.sources.postgresql import PostgresSource
from connector.sources.session import open_session
from connector.status import status
from outbox.database import Session
from outbox.errors import Unsupported
from tests.integration.relays import emit, insert, installed, relay_once, stream_ids, table_ids, transaction, until
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.options import RelayOptions
    from connector.source import Source


@pytest.fixture
def outbox(postgresql_url: str, stream_url: str) -> RelayOptions:
    return installed(postgresql_url, stream_url)


@pytest.fixture
def mariadb_outbox(mariadb_url: str, stream_url: str) -> RelayOptions:
    return installed(mariadb_url, stream_url)


@contextlib.contextmanager
def opened(source: Source) -> Iterator[Any]:
    source.open()
    try:
        yield source
    finally:
        source.close()


@contextlib.contextmanager
def client(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A client that starts its transactions by itself; leaving it rolls back."""
    connection = psycopg.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def drawn(source: Source) -> int:
    return source.standing().drawn


# PostgreSQL


def test_lock_is_listed_before_the_id_is_drawn(outbox: RelayOptions, postgresql_url: str):
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        writer.execute("BEGIN")
        # Fails, because this session has drawn nothing yet, but takes nextval's lock first.
        writer.execute("SAVEPOINT before")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            writer.execute("SELECT currval('outbox_id_seq')")
        writer.execute("ROLLBACK TO SAVEPOINT before")
        (holder,) = source.holders().sessions
        assert drawn(source) == 0
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        assert source.holders().sessions == {holder}
        writer.execute("COMMIT")
        assert source.holders().sessions == frozenset()
        assert [rows.events.column(0).to_pylist() for rows in source.read(0, 10)] == [[1]]


def test_no_id_can_be_drawn_without_a_lock_that_is_listed(outbox: RelayOptions, postgresql_url: str):
    """With the sequence locked against it, nextval waits and has drawn nothing."""
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as blocker, client(postgresql_url) as writer:
        writer.execute("SET lock_timeout = '200ms'")
        blocker.execute("BEGIN")
        # A sequence cannot be locked by LOCK TABLE; an ALTER takes a lock that excludes nextval's.
        blocker.execute("ALTER SEQUENCE outbox_id_seq RESTART")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        blocker.execute("ROLLBACK")
        assert drawn(source) == 0


def test_lock_stays_until_the_row_is_visible_whatever_the_statement(outbox: RelayOptions, postgresql_url: str):
    ways = [
        "INSERT INTO outbox (type) VALUES ('t'), ('u')",
        "INSERT INTO outbox (type) SELECT 't' FROM generate_series(1, 3)",
        "SELECT outbox_emit('t')",
        "SELECT nextval('outbox_id_seq')",
        "WITH new AS (INSERT INTO outbox (type) VALUES ('t') RETURNING id) SELECT id FROM new",
    ]
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        for way in ways:
            writer.execute("BEGIN")
            writer.execute(way)
            assert len(source.holders().sessions) == 1, way
            writer.execute("COMMIT")
            assert source.holders().sessions == frozenset(), way


def test_copy_holds_the_lock_from_its_first_row_on(outbox: RelayOptions, postgresql_url: str):
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        with writer.cursor() as cursor, cursor.copy("COPY outbox (type) FROM STDIN") as copy:
            for _ in range(20_000):
                copy.write_row(("t",))
            # The server has drawn IDs for what has reached it so far.
            until(lambda: drawn(source) > 0, "COPY draws IDs while it goes on")
            assert len(source.holders().sessions) == 1
            assert list(source.read(0, 10)) == []
        assert source.holders().sessions == frozenset()


def test_rollback_to_a_savepoint_keeps_the_lock(outbox: RelayOptions, postgresql_url: str):
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        writer.execute("BEGIN")
        writer.execute("SAVEPOINT inner_part")
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        before = source.holders().sessions
        writer.execute("ROLLBACK TO SAVEPOINT inner_part")
        assert source.holders().sessions == before != frozenset()
        # Drawn again without a new lock: the old one has to be still there.
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        assert source.holders().sessions == before
        writer.execute("ROLLBACK")


def test_prepare_keeps_the_virtual_transaction_and_loses_the_pid(outbox: RelayOptions, postgresql_url: str):
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        before = source.holders().sessions
        writer.execute("PREPARE TRANSACTION 'two-phase'")
        assert source.holders().sessions == before
        writer.execute("BEGIN")
        writer.execute("INSERT INTO outbox (type) VALUES ('u')")
        assert len(source.holders().sessions) == 2, "the session's next transaction is another holder"
        writer.execute("ROLLBACK")
        (blocker,) = source.blockers(before)
        assert (blocker.pid, blocker.state, blocker.user) == (None, "prepared transaction two-phase", "postgres")
        assert not source.terminate(blocker)
        writer.execute("COMMIT PREPARED 'two-phase'")
        assert source.holders().sessions == frozenset()


def test_next_transaction_of_a_session_is_another_holder(outbox: RelayOptions, postgresql_url: str):
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        seen = []
        for _ in range(3):
            writer.execute("BEGIN")
            writer.execute("INSERT INTO outbox (type) VALUES ('t')")
            seen.append(source.holders().sessions)
            writer.execute("COMMIT")
        assert len(set(seen)) == 3


def test_reading_and_deleting_do_not_take_the_lock(outbox: RelayOptions, postgresql_url: str):
    """Neither the lag view in a dashboard's long transaction nor the relay itself poses as a writer."""
    emit(outbox, 3)
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as other:
        for statement in (
            "SELECT * FROM outbox_lag",
            "SELECT last_value FROM outbox_id_seq",
            "SELECT * FROM outbox",
            "DELETE FROM outbox WHERE id = 2",
            "UPDATE outbox_info SET lease_until = NULL",
        ):
            other.execute("BEGIN")
            other.execute(statement)
            assert source.holders().sessions == frozenset(), statement
            other.execute("ROLLBACK")
        source.standing()
        status(outbox.database, outbox.table, None)
        assert source.holders().sessions == frozenset()


def test_lag_view_in_a_long_transaction_does_not_hold_the_stream_back(outbox: RelayOptions, postgresql_url: str):
    with client(postgresql_url) as dashboard, client(postgresql_url) as writer:
        dashboard.execute("BEGIN")
        dashboard.execute("SELECT * FROM outbox_lag")
        emit(outbox)
        writer.execute("BEGIN")
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        writer.execute("ROLLBACK")
        emit(outbox)
        relay_once(outbox)
    assert stream_ids(outbox.stream) == [1, 3]


def test_another_database_with_the_same_names_is_not_listed(
    outbox: RelayOptions, postgresql_admin_url: str, stream_url: str
):
    """A copy made by CREATE DATABASE … TEMPLATE has the same OIDs: only the database tells them apart."""
    name = outbox.database.database
    with client(postgresql_admin_url) as admin:
        admin.execute(f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"')
    copy_url = outbox.database.url + "_copy"
    with client(copy_url) as writer, opened(PostgresSource(outbox)) as source:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        assert source.holders().sessions == frozenset()
        other = installed(copy_url, stream_url)
        with opened(PostgresSource(other)) as seeing:
            assert len(seeing.holders().sessions) == 1


def test_canary_refuses_a_fence_that_is_blind(
    outbox: RelayOptions, mariadb_outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PostgresSource, "holders", lambda _: Holders())
    monkeypatch.setattr(MysqlSource, "_listed", lambda _: set())
    for kind, options in ((PostgresSource, outbox), (MysqlSource, mariadb_outbox)):
        source = kind(options)
        with pytest.raises(Unsupported, match="the fence is blind"):
            source.open()


def test_canary_draws_no_id(outbox: RelayOptions):
    for _ in range(3):
        with opened(PostgresSource(outbox)) as source:
            assert drawn(source) == 0


def test_xmin_rule_would_lose_what_the_lock_keeps(outbox: RelayOptions, postgresql_url: str):
    """Why not pg_snapshot_xmin: a writer may have drawn its ID and have no transaction ID yet."""
    emit(outbox)  # the WAL is written for the next 32 values now: only that would need a transaction ID
    with opened(PostgresSource(outbox)) as source, client(postgresql_url) as writer:
        writer.execute("BEGIN")
        writer.execute("SELECT nextval('outbox_id_seq')")
        with client(postgresql_url) as other:
            (assigned,) = other.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = %s", [writer.info.backend_pid]
            ).fetchone()
        assert assigned == 0
        assert len(source.holders().sessions) == 1


PARTITIONED = """
DROP VIEW outbox_lag; DROP FUNCTION outbox_emit; DROP TABLE outbox;
CREATE TABLE outbox (
    id bigint NOT NULL, type text NOT NULL, subject text, data json, data_bytes bytea, datacontenttype text,
    headers json, time timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE SEQUENCE outbox_id_seq OWNED BY outbox.id;
ALTER TABLE outbox ALTER id SET DEFAULT nextval('outbox_id_seq');
CREATE TABLE outbox_low PARTITION OF outbox FOR VALUES FROM (0) TO (10);
CREATE TABLE outbox_high PARTITION OF outbox FOR VALUES FROM (10) TO (1000);
"""


def test_partitioned_out_table_is_fenced_and_relayed(outbox: RelayOptions, postgresql_url: str):
    with client(postgresql_url) as writer:
        writer.execute(PARTITIONED)
        with opened(PostgresSource(outbox)) as source:
            for table in ("outbox", "outbox_low"):
                writer.execute("BEGIN")
                writer.execute(f"INSERT INTO {table} (type) VALUES ('t')")
                assert len(source.holders().sessions) == 1, table
                writer.execute("ROLLBACK")
    emit(outbox, 20)
    relay_once(outbox)
    assert stream_ids(outbox.stream) == list(range(3, 23))
    assert table_ids(outbox) == []
    with Session(outbox.database, outbox.table) as session:
        (finding,) = [found for found in sequence(Subject(session, 60.0)) if found.name == "identity"]
    assert finding.level == "warning"


def test_table_whose_ids_can_be_given_is_refused(outbox: RelayOptions, postgresql_url: str):
    with client(postgresql_url) as admin:
        admin.execute("ALTER TABLE outbox ALTER COLUMN id SET GENERATED BY DEFAULT")
        with pytest.raises(Unsupported, match="GENERATED ALWAYS"):
            PostgresSource(outbox).open()
        admin.execute("ALTER TABLE outbox ALTER COLUMN id SET GENERATED ALWAYS SET CACHE 10")
        with pytest.raises(Unsupported, match="CACHE 10"):
            PostgresSource(outbox).open()


# MariaDB


def test_mariadb_writers_are_listed_in_every_mode(mariadb_outbox: RelayOptions, mariadb_url: str):
    ways = {
        "INSERT INTO outbox (type) VALUES ('t')": 1,
        "INSERT LOW_PRIORITY INTO outbox (type) VALUES ('t')": 1,
        "INSERT INTO outbox (type) SELECT 't'": 1,
        "REPLACE INTO outbox (type) VALUES ('t')": 1,
        "CALL outbox_emit('t', NULL, NULL, NULL)": 1,
        "LOCK TABLES outbox WRITE": 1,
        "SELECT * FROM outbox": 0,
        "SELECT * FROM outbox_lag": 0,
    }
    with opened(MysqlSource(mariadb_outbox)) as source, mariadb.connect(mariadb_url) as writer:
        cursor = writer.cursor()
        for way, count in ways.items():
            cursor.execute(way)
            assert len(source.holders().sessions) == count, way
            cursor.execute("UNLOCK TABLES" if way.startswith("LOCK") else "COMMIT")
            assert source.holders().sessions == frozenset(), way


def test_mariadb_lock_outlives_a_savepoint_that_wrote(mariadb_outbox: RelayOptions, mariadb_url: str):
    """Only rows that are rolled back, and so dead, may lose the lock with their savepoint."""
    with opened(MysqlSource(mariadb_outbox)) as source, mariadb.connect(mariadb_url) as writer:
        cursor = writer.cursor()
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO outbox (type) VALUES ('t')")
        cursor.execute("SAVEPOINT inner_part")
        cursor.execute("INSERT INTO outbox (type) VALUES ('u')")
        cursor.execute("ROLLBACK TO SAVEPOINT inner_part")
        assert len(source.holders().sessions) == 1
        cursor.execute("RELEASE SAVEPOINT inner_part")
        assert len(source.holders().sessions) == 1
        writer.rollback()


def test_mariadb_prepared_transaction_whose_client_left_is_only_in_xa_recover(
    mariadb_outbox: RelayOptions, mariadb_url: str
):
    gid = mariadb_outbox.database.database
    with opened(MysqlSource(mariadb_outbox)) as source:
        with mariadb.connect(mariadb_url) as writer:
            cursor = writer.cursor()
            cursor.execute(f"XA START '{gid}'")
            cursor.execute("INSERT INTO outbox (type) VALUES ('t')")
            cursor.execute(f"XA END '{gid}'")
            fence = observe(Fence(), drawn(source), source.holders())
            cursor.execute(f"XA PREPARE '{gid}'")
            before = source.holders()
        until(lambda: not source.holders().sessions, "the client's lock goes with it")
        after = source.holders()
        assert len(before.sessions) == 1
        (key,) = after.prepared
        assert gid in key
        # The session that the fence waited for is gone, and yet nothing is settled.
        fence = observe(fence, drawn(source), after)
        assert fence.settled_through == 0
        (blocker,) = source.blockers(fence.round.waiting_for)
        assert gid in str(blocker)
        with mariadb.connect(mariadb_url, autocommit=True) as other:
            other.cursor().execute(f"XA COMMIT '{gid}'")
        assert observe(fence, drawn(source), source.holders()).settled_through == 1


def test_mariadb_leaves_out_the_cleaner_and_nobody_else(mariadb_outbox: RelayOptions, mariadb_url: str):
    emit(mariadb_outbox, 3)
    with (
        opened(MysqlSource(mariadb_outbox)) as source,
        open_session(mariadb_outbox, "cleaner") as cleaner,
        mariadb.connect(mariadb_url) as other,
    ):
        cleaner.run("BEGIN")
        cleaner.change("clean_delete", after=0, through=2)
        assert len(source.holders().sessions) == 1
        source.ignore(cleaner)
        assert source.holders().sessions == frozenset()
        other.cursor().execute("DELETE FROM outbox WHERE id = 3")
        assert len(source.holders().sessions) == 1
        cleaner.run("ROLLBACK")


def test_mariadb_cleaner_does_not_hold_up_writers(mariadb_outbox: RelayOptions, mariadb_url: str):
    """READ COMMITTED: a range DELETE locks its rows, not the gap in which new rows come."""
    emit(mariadb_outbox, 3)
    with open_session(mariadb_outbox, "cleaner") as cleaner, mariadb.connect(mariadb_url) as writer:
        cleaner.run("BEGIN")
        cleaner.query("clean_digest", after=0, through=3)
        cleaner.change("clean_delete", after=0, through=3)
        cursor = writer.cursor()
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        cursor.execute("INSERT INTO outbox (type) VALUES ('t')")
        writer.commit()
        cleaner.run("ROLLBACK")


def test_mariadb_writer_does_not_hold_up_the_cleaner(mariadb_outbox: RelayOptions, mariadb_url: str):
    """The row behind the range is in flight, and the range goes all the same."""
    emit(mariadb_outbox, 3)
    with open_session(mariadb_outbox, "cleaner") as cleaner, mariadb.connect(mariadb_url) as writer:
        writer.cursor().execute("INSERT INTO outbox (type) VALUES ('t')")
        cleaner.run("SET SESSION innodb_lock_wait_timeout = 1")
        cleaner.run("BEGIN")
        assert cleaner.row("clean_digest", after=0, through=3)[0] == 3
        assert cleaner.change("clean_delete", after=0, through=3) == 3
        cleaner.run("COMMIT")
        writer.commit()


def test_mariadb_isolation_of_the_application_does_not_matter(mariadb_outbox: RelayOptions, mariadb_url: str):
    """A reader at REPEATABLE READ keeps its old view; the relay does not, and is not held back by it."""
    with mariadb.connect(mariadb_url) as reader, mariadb.connect(mariadb_url) as writer:
        for isolation in ("REPEATABLE READ", "SERIALIZABLE"):
            reader.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            writer.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            reader.cursor().execute("SELECT count(*) FROM outbox")
            reader.commit() if isolation == "SERIALIZABLE" else None
            writer.cursor().execute("INSERT INTO outbox (type) VALUES ('t')")
            writer.rollback()
            writer.cursor().execute("INSERT INTO outbox (type) VALUES ('t')")
            writer.commit()
            relay_once(mariadb_outbox)
    assert stream_ids(mariadb_outbox.stream) == [2, 4]


def test_mariadb_another_database_with_the_same_names_is_not_listed(
    mariadb_outbox: RelayOptions, mariadb_admin_url: str, stream_url: str
):
    other = installed(mariadb.fresh_database(mariadb_admin_url), stream_url)
    with opened(MysqlSource(mariadb_outbox)) as source, transaction(other) as session:
        insert(session)
        assert source.holders().sessions == frozenset()


def test_mariadb_barrier_waits_for_the_writer_in_flight(mariadb_outbox: RelayOptions, mariadb_url: str):
    gid = mariadb_outbox.database.database
    with opened(MysqlSource(mariadb_outbox)) as source:
        with mariadb.connect(mariadb_url) as writer:
            writer.cursor().execute("INSERT INTO outbox (type) VALUES ('t')")
            assert source.barrier() is None
            writer.rollback()
            assert source.barrier() == (1, frozenset())
            for statement in ("XA START", "INSERT INTO outbox (type) VALUES", "XA END", "XA PREPARE"):
                writer.cursor().execute(f"{statement} ('t')" if "INSERT" in statement else f"{statement} '{gid}'")
        until(lambda: not source.holders().sessions, "the client's lock goes with it")
        # LOCK TABLES is granted: the prepared transaction holds no lock that it sees.
        held = source.barrier()
        assert held is not None
        assert held[0] == 2
        assert any(gid in key for key in held[1])
        with mariadb.connect(mariadb_url, autocommit=True) as other:
            other.cursor().execute(f"XA ROLLBACK '{gid}'")
        assert source.barrier() == (2, frozenset())


def test_mariadb_auto_increment_is_never_behind_a_visible_row(mariadb_outbox: RelayOptions, mariadb_url: str):
    """The bound of a round: every ID through it has been drawn, also inside open transactions."""
    with opened(MysqlSource(mariadb_outbox)) as source, mariadb.connect(mariadb_url) as writer:
        assert drawn(source) == 0
        for count in range(1, 4):
            writer.cursor().execute("INSERT INTO outbox (type) VALUES ('t')")
            assert drawn(source) == count
        writer.rollback()
        assert drawn(source) == 3


# SQLite


def test_sqlite_lets_nobody_draw_beside_a_writer(sqlite_url: str, stream_url: str):
    """One writer: who sees row n sees every committed row below it, so each gap is dead at once."""
    import sqlite3

    outbox = installed(sqlite_url, stream_url)
    path = Path(outbox.database.path)
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as one:
        one.execute("BEGIN IMMEDIATE")
        one.execute("INSERT INTO outbox (type) VALUES ('t')")
        two = sqlite3.connect(path, timeout=0, isolation_level=None)
        with contextlib.closing(two), pytest.raises(sqlite3.OperationalError, match="locked"):
            two.execute("INSERT INTO outbox (type) VALUES ('t')")
        one.execute("COMMIT")
        one.execute("INSERT INTO outbox (id, type) VALUES (5, 't')")
    relay_once(outbox)
    assert stream_ids(stream_url) == [1, 5]
