"""A crash of the database server takes back rows that were visible and not yet durable.

The stream must never have had them: their IDs are given out again, to other events.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox.database import DatabaseUrl
from outbox.grants import grant_relay
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import RelayProcess, do_nothing, running, until
from tests.servers import mariadb, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCES = ("connector.sources.postgresql:PostgresSource", "connector.sources.mysql:MysqlSource")
ROUNDS = 3
# Long: the renewal of a lease is a commit that flushes everything, which is not what is tested.
LEASE_SECONDS = 30.0


@pytest.fixture(scope="module")
def lazy_postgresql() -> Iterator[postgresql.PostgresServer]:
    """Commits are asynchronous, and the log is flushed as late as PostgreSQL allows."""
    settings = ("synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=1GB")
    server = postgresql.PostgresServer(settings=settings).start()
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def lazy_mariadb() -> Iterator[mariadb.MariaDbServer]:
    """A commit leaves its log in memory; the server writes and flushes it once a second."""
    server = mariadb.MariaDbServer(("--innodb-flush-log-at-trx-commit=0",)).start()
    yield server
    server.destroy()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> postgresql.PostgresServer | mariadb.MariaDbServer:
    return request.getfixturevalue(f"lazy_{request.param}")


def case_on(server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path) -> OutboxCase:
    """An outbox whose own tables survive a crash, even of a server that takes its time."""
    package = postgresql if isinstance(server, postgresql.PostgresServer) else mariadb
    case = OutboxCase(package.fresh_database(server.url()), folder)
    if case.dialect == "postgresql":
        case.execute("CHECKPOINT")
    else:
        written = redo_log(case)["Innodb_lsn_current"]
        until(lambda: redo_log(case)["Innodb_lsn_flushed"] >= written)
    return case


def redo_log(case: OutboxCase) -> dict[str, int]:
    with case.session() as session:
        return {name: int(value) for name, value in session.run("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_%'")}


def crash_under_load(
    case: OutboxCase, server: postgresql.PostgresServer | mariadb.MariaDbServer, relay: RelayProcess
) -> None:
    """Write until the relay has appended some of it, and crash the server that very moment."""
    # Its start path commits, which flushes everything written before.
    until(lambda: "leading" in relay.said(), relay.said)
    before, over = case.tail(), threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                case.write(1, dead_every=0)
        except Exception:
            assert over.wait(30), "the writer failed before the crash"

    writer = threading.Thread(target=work)
    writer.start()
    until(lambda: case.tail() > before, relay.said)
    over.set()
    server.crash()
    writer.join()
    relay.kill()
    server.start()


def gone(case: OutboxCase) -> list[int]:
    """Events of the stream whose rows the database does not have; none was ever deleted."""
    return sorted(set(case.streamed()) - set(case.rows_in_table()))


def test_crash_of_the_server_takes_back_nothing_that_is_in_the_stream(
    server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path
) -> None:
    case = case_on(server, folder)
    assert case.relay_once() == 0
    for _ in range(ROUNDS):
        with running(case.orders(once=False, delete_after=NEVER, lease_seconds=LEASE_SECONDS)) as relay:
            crash_under_load(case, server, relay)
        assert gone(case) == []
        case.execute("UPDATE outbox_info SET leader = NULL")
    assert case.relay_once() == 0
    # What a commit said is no proof here: the database knows what it has kept.
    kept = case.streamed()
    case.committed = {event_id: content for event_id, content in case.committed.items() if event_id in kept}
    case.assert_exactly_once()


def test_without_waiting_for_durability_the_stream_has_what_the_database_lost(
    server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path
) -> None:
    """The test above can see the failure that it is about."""
    case = case_on(server, folder)
    assert case.relay_once() == 0
    deadline = time.monotonic() + 60
    while not gone(case):
        assert time.monotonic() < deadline, "the server lost nothing in any crash"
        orders = case.orders(once=False, delete_after=NEVER, lease_seconds=LEASE_SECONDS)
        waits_not = tuple((source, "make_durable", do_nothing) for source in SOURCES)
        with running(replace(orders, replacements=waits_not)) as relay:
            crash_under_load(case, server, relay)
        case.execute("UPDATE outbox_info SET leader = NULL")


def test_relay_role_that_may_not_flush_logs_makes_rows_durable_by_a_commit(mariadb_url: str, folder: Path) -> None:
    case = OutboxCase(mariadb_url, folder)
    role = f"relay_{mariadb_url[-12:]}"
    case.execute(f"CREATE USER {role} IDENTIFIED BY 'secret'")
    grant_relay(case.database, case.table, role)
    case.write(5)
    in_flight = case.connect()
    in_flight.cursor().execute("CREATE TABLE other (n int)")
    case.relay_database = DatabaseUrl.parse(mariadb_url.replace("tester:", f"{role}:"))
    # Keeps the log ahead of what is flushed, and never ends.
    in_flight.cursor().execute("INSERT INTO other VALUES (1)")
    assert case.relay_once() == 0
    in_flight.close()
    case.assert_exactly_once()
