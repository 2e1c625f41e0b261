"""Lost connections, restarts and crashes of the database server, in each step of the relay."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest

from connector.sources import open_source
from connector.sources.mysql import SMALL_ROWS_MAX
from outbox.errors import DatabaseUnavailable
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import At, running, until
from tests.servers import mariadb, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = [
    At("lease.take"),
    At("source.open"),
    At("bind"),
    At("start/source.standing"),
    At("start"),
    At("source.look", "before"),
    At("source.look"),
    At("list_holders"),
    At("source.read", "before", nth=2),
    At("source.read", nth=2),
    At("source.make_durable", "before"),
    At("appender", "before"),
    At("clean/sql.clean_lock"),
    At("clean/sql.clean_delete"),
    At("clean/sql.commit", "before"),
    At("clean/sql.commit"),
]
RESTART_STEPS = [
    At("source.look", nth=2),
    At("list_holders"),
    At("source.read", nth=2),
    At("append/disk.sync"),
    At("clean/sql.clean_delete"),
    At("clean/sql.commit", "before"),
]


def end_sessions(case: OutboxCase, *, of_writers: bool = True) -> None:
    """End every other session of the database, or the relay's only, as an administrator does."""
    if case.dialect == "postgresql":
        with psycopg.connect(case.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND (application_name LIKE 'outbox%%' OR %s)",
                (of_writers,),
            )
        return
    with mariadb.connect(case.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        for pid in {pid for (pid,) in cursor.fetchall()} - (set() if of_writers else case.writers):
            with contextlib.suppress(pymysql.err.OperationalError):  # it ended by itself
                cursor.execute(f"KILL CONNECTION {pid}")


@pytest.mark.parametrize("at", STEPS, ids=str)
def test_relay_goes_on_by_itself_after_all_its_connections_are_lost(server_case: OutboxCase, at: At) -> None:
    case = server_case
    case.write(10)
    with running(case.orders(at, act="stop")) as relay:
        relay.wait_until_stopped()
        end_sessions(case)
        case.write(2)
        relay.go_on()
        assert relay.wait() == 0, relay.said()
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_connections_lost_again_and_again_under_load_lose_and_double_nothing(server_case: OutboxCase) -> None:
    case = server_case
    with running(case.orders(once=False)) as relay:
        with case.writing():
            for _ in range(4):
                before = case.deleted_through()
                until(lambda before=before: case.deleted_through() > before, relay.said)
                end_sessions(case, of_writers=False)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_relay_waits_for_a_database_that_is_away_under_its_name(postgresql_case: OutboxCase) -> None:
    """As during a restore. A relay that never got in is told at once that the name is wrong."""
    case, name = postgresql_case, postgresql_case.database.database
    admin = case.url.rsplit("/", 1)[0] + "/postgres"
    case.write(4)
    with running(case.orders(once=False)) as relay, psycopg.connect(admin, autocommit=True) as administrator:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        administrator.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        administrator.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_away"')
        until(lambda: relay.said().count("does not exist") > 1, relay.said)
        assert relay.exit_code is None
        assert case.relay_once() == 2
        administrator.execute(f'ALTER DATABASE "{name}_away" RENAME TO "{name}"')
        administrator.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        case.write(4)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_read_whose_connection_is_lost_midway_is_an_error_not_a_short_read(server_case: OutboxCase) -> None:
    """A driver that took the end of a connection for the end of the rows would make events of none."""
    case, rows = server_case, 16_000
    padding = {"postgresql": "to_json(repeat('x', 500))", "mysql": "json_quote(repeat('x', 500))"}[case.dialect]
    numbers = {"postgresql": f"generate_series(1, {rows})", "mysql": f"seq_1_to_{rows}"}[case.dialect]
    case.execute(f"INSERT INTO outbox (type, data) SELECT 'big', {padding} FROM {numbers}")
    outcomes: list[int | None] = []
    while None not in outcomes or len(outcomes) < 4:
        assert len(outcomes) < 100, "no read was ever interrupted"
        with contextlib.closing(open_source(case.options())) as source:
            source.open()
            source.standing()
            while sum(part.events.num_rows for part in source.read(0, rows)) < rows:
                pass  # MySQL's begin small and grow until they go over a connection of their own
            over = threading.Event()
            killer = threading.Thread(target=end_reads, args=(case, over))
            killer.start()
            try:
                outcomes.append(sum(part.events.num_rows for part in source.read(0, rows)))
            except DatabaseUnavailable:
                outcomes.append(None)
            finally:
                over.set()
                killer.join()
    # MySQL's reader may say the same again on its own session: a whole page, only smaller.
    assert set(outcomes) <= ({None, rows} if case.dialect == "postgresql" else {None, rows, SMALL_ROWS_MAX})


def end_reads(case: OutboxCase, over: threading.Event) -> None:
    """End whichever session is reading rows, as soon as it does."""
    find, end = {
        "postgresql": (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
            "AND query LIKE '%data_bytes%' AND pid <> pg_backend_pid()",
            "SELECT pg_terminate_backend({})",
        ),
        "mysql": (
            "SELECT id FROM information_schema.processlist WHERE db = database() "
            "AND info LIKE '%data_bytes%' AND id <> connection_id()",
            "KILL CONNECTION {}",
        ),
    }[case.dialect]
    with case.session() as session:
        while not over.is_set():
            for (pid,) in session.run(find):
                with contextlib.suppress(Exception):  # it ended by itself
                    session.run(end.format(pid))


@pytest.fixture(scope="module")
def own_postgresql() -> Iterator[postgresql.PostgresServer]:
    server = postgresql.PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[mariadb.MariaDbServer]:
    server = mariadb.MariaDbServer().start()
    yield server
    server.destroy()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> postgresql.PostgresServer | mariadb.MariaDbServer:
    return request.getfixturevalue(f"own_{request.param}")


def case_on(server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path) -> OutboxCase:
    package = postgresql if isinstance(server, postgresql.PostgresServer) else mariadb
    return OutboxCase(package.fresh_database(server.url()), folder)


@pytest.mark.parametrize("at", RESTART_STEPS, ids=str)
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_relay_goes_on_by_itself_after_the_server_came_back(
    server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path, at: At, how: str
) -> None:
    case = case_on(server, folder)
    case.write(10)
    with running(case.orders(at, act="stop")) as relay:
        relay.wait_until_stopped()
        server.stop() if how == "restart" else server.crash()
        server.start()
        case.write(2)
        relay.go_on()
        assert relay.wait() == 0, relay.said()
        assert "trying again" in relay.said()
    case.assert_exactly_once()


def test_relay_waits_for_a_server_that_is_away(
    server: postgresql.PostgresServer | mariadb.MariaDbServer, folder: Path
) -> None:
    case = case_on(server, folder)
    case.write(4)
    with running(case.orders(once=False, delete_after=NEVER)) as relay:
        until(lambda: case.streamed().keys() == case.committed.keys(), relay.said)
        server.stop()
        until(lambda: relay.said().count("trying again") > 3, relay.said)
        assert relay.exit_code is None
        server.start()
        case.write(4)
        until(lambda: case.streamed().keys() == case.committed.keys(), relay.said)
        assert relay.stop() == 0, relay.said()
    assert case.relay_once() == 0
    case.assert_exactly_once()
