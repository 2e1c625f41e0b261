"""An asynchronous replica is promoted: transactions are gone, and their IDs are given out again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from connector.rebase import plan
from outbox.database import DatabaseUrl
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import running, until
from tests.servers.postgresql import PostgresServer, fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture
def replica(primary: PostgresServer) -> Iterator[PostgresServer]:
    server = primary.replica()
    yield server
    server.destroy()


def write_again(case: OutboxCase, count: int) -> dict[int, object]:
    connection = case.connect()
    contents = [replace(case.new_row(), subject="after the failover") for _ in range(count)]
    found = {case.insert(connection, content): content for content in contents}
    connection.commit()
    connection.close()
    return found


def stop_replication(replica: PostgresServer) -> None:
    """The replica gets nothing more from here on."""
    with psycopg.connect(replica.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        connection.execute("SELECT pg_reload_conf()")
        until(lambda: connection.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() == (0,))


def wait_for_replica(primary: PostgresServer, replica: PostgresServer) -> None:
    with (
        psycopg.connect(primary.url(), autocommit=True) as one,
        psycopg.connect(replica.url(), autocommit=True) as other,
    ):
        (written,) = one.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        until(lambda: other.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)).fetchone()[0])


def fail_over(case: OutboxCase, primary: PostgresServer, replica: PostgresServer) -> None:
    """The primary dies, the replica takes its place under another address."""
    primary.crash()
    replica.promote()
    case.url = case.url.replace(f":{primary.port}/", f":{replica.port}/")
    case.database = case.relay_database = DatabaseUrl.parse(case.url)


def test_promoted_replica_stops_the_relay_until_a_rebase(
    primary: PostgresServer, replica: PostgresServer, folder: Path
) -> None:
    case = OutboxCase(fresh_database(primary.url()), folder)
    case.write(10, dead_every=0)
    assert case.relay_once() == 0
    wait_for_replica(primary, replica)
    stop_replication(replica)
    # In the stream, and then gone from the database for ever. PostgreSQL logs a sequence 32
    # values ahead: with more than that the new primary gives out IDs again.
    case.write(20, dead_every=0)
    assert case.relay_once() == 0
    tail = case.tail()
    fail_over(case, primary, replica)
    assert case.drawn() < tail
    assert case.relay_once() == 4
    again = write_again(case, 10)
    assert min(again) < tail
    assert case.relay_once() == 4
    found = case.verify()
    assert not found.ok
    assert any("server changed" in problem for problem in found.problems), found
    kinds = [step.kind for step in plan(case.database, case.table, case.stream)]
    assert kinds == ["accept-server", "move-sequence", "renumber-rows"]
    assert case.rebase() == kinds
    case.write(2)
    assert case.relay_once() == 0
    case.move_committed(tail, {**again, **{key: case.committed.pop(key) for key in list(case.committed) if key > tail}})
    case.assert_exactly_once()


def test_relay_whose_address_leads_to_the_promoted_replica_stops(
    primary: PostgresServer, replica: PostgresServer, folder: Path
) -> None:
    """The usual way: the address stays, the server behind it changes under the running relay."""
    case = OutboxCase(fresh_database(primary.url()), folder)
    case.write(4)
    # libpq takes the first of them that answers and can be written.
    case.relay_database = DatabaseUrl.parse(
        f"postgresql://postgres@/{case.database.database}?host=127.0.0.1,127.0.0.1&port={primary.port},{replica.port}"
        "&target_session_attrs=read-write"
    )
    with running(case.orders(once=False, delete_after=NEVER)) as relay:
        until(lambda: case.streamed() == case.committed, relay.said)
        wait_for_replica(primary, replica)
        fail_over(case, primary, replica)
        assert relay.wait() == 4, relay.said()
        assert "not the server it was" in relay.said()
    assert case.rebase() == ["accept-server"]
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_replica_itself_is_refused(primary: PostgresServer, replica: PostgresServer, folder: Path) -> None:
    case = OutboxCase(fresh_database(primary.url()), folder)
    case.write(4)
    wait_for_replica(primary, replica)
    case.relay_database = DatabaseUrl.parse(case.url.replace(f":{primary.port}/", f":{replica.port}/"))
    assert case.relay_once() == 4
    case.relay_database = case.database
    assert case.relay_once() == 0
    case.assert_exactly_once()
