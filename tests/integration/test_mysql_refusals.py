"""What a relay on MySQL or MariaDB refuses at its start, and what it says then."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from connector.sources import open_source
from outbox.database import DatabaseUrl, Session, is_refusal
from outbox.errors import Unsupported
from outbox.grants import grant_relay
from outbox.queries import blocks
from tests.integration.relays import RelayThread, emit, installed, relay_once
from tests.integration.test_check import assert_wrong, look
from tests.servers import mariadb
from tests.servers.mariadb import MariaDbServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.options import RelayOptions

DEADLINE_SECONDS = 60.0


@pytest.fixture
def outbox(mariadb_url: str, stream_url: str) -> RelayOptions:
    return installed(mariadb_url, stream_url)


def test_prepared_transactions_that_may_not_be_listed_are_a_refusal(
    outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch
):
    """MariaDB lists them to everybody; here it is made to answer as MySQL does."""
    answer = "SIGNAL SQLSTATE 'XAE03' SET MYSQL_ERRNO = 1401, MESSAGE_TEXT = 'XAER_RMERR: Fatal error occurred'"
    with Session(outbox.database, outbox.table) as session, pytest.raises(Exception, match="XAER_RMERR") as caught:
        session.run(answer)
    assert is_refusal(caught.value)
    monkeypatch.setitem(blocks("mysql"), "prepared", answer)
    with pytest.raises(Unsupported, match=r"GRANT XA_RECOVER_ADMIN ON \*\.\* TO `tester`@`%`"):
        relay_once(outbox)
    with RelayThread(outbox) as relay:
        assert relay.wait() == 4


def test_a_role_of_mysql_without_xa_recover_admin_is_refused(mysql_url: str, stream_url: str):
    owner = installed(mysql_url, stream_url)
    emit(owner, 3)
    role = f"r_{uuid.uuid4().hex[:10]}"
    with Session(owner.database, owner.table) as session:
        session.run(f"CREATE USER {role}")
        grant_relay(owner.database, owner.table, role)
        address = owner.database.url.rpartition("@")[2]
        relay = replace(owner, database=DatabaseUrl.parse(f"mysql://{role}@{address}"))
        relay_once(relay)
        session.run(f"REVOKE XA_RECOVER_ADMIN ON *.* FROM {role}")
        with pytest.raises(Unsupported, match=f"GRANT XA_RECOVER_ADMIN .* TO `{role}`"):
            relay_once(relay)
        session.run(f"DROP USER {role}")


@pytest.fixture(scope="module")
def primary() -> Iterator[MariaDbServer]:
    server = MariaDbServer(settings=("--server-id=1", "--log-bin=bin")).start()
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def replica(primary: MariaDbServer) -> Iterator[MariaDbServer]:
    """As it comes: MariaDB lets everybody write on it."""
    server = MariaDbServer(settings=("--server-id=2",)).start()
    with mariadb.connect(primary.url()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos")
        ((position,),) = cursor.fetchall()
    run(
        server,
        f"SET GLOBAL gtid_slave_pos = '{position}'",
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'tester', "
        "MASTER_PASSWORD = 'secret', MASTER_USE_GTID = slave_pos",
        "START REPLICA",
    )
    yield server
    server.destroy()


@pytest.fixture
def replicated(primary: MariaDbServer, replica: MariaDbServer, stream_url: str) -> Iterator[RelayOptions]:
    """The options of a relay that was pointed at the replica by mistake."""
    owner = installed(mariadb.fresh_database(primary.url()), stream_url)
    emit(owner, 3)
    relay_once(owner)
    emit(owner, 2)
    database = DatabaseUrl.parse(replica.url(owner.database.database))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception), Session(database, owner.table) as session:
            if session.run("SELECT max(id) FROM outbox") == [(5,)]:
                break
        time.sleep(0.05)
    else:
        raise AssertionError("the rows do not come through")
    yield replace(owner, database=database)
    run(replica, "STOP REPLICA", "SET GLOBAL replicate_do_db = ''", "START REPLICA")


def run(server: MariaDbServer, *statements: str) -> None:
    with mariadb.connect(server.url(), autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def open_and_close(options: RelayOptions) -> None:
    """What a relay does before it reads anything."""
    with contextlib.closing(open_source(options)) as source:
        source.open()


def test_a_writable_replica_is_refused(replicated: RelayOptions, primary: MariaDbServer):
    with pytest.raises(Unsupported, match=r"replicates from 127\.0\.0\.1: .*Point the relay at the primary"):
        relay_once(replicated)
    with Session(replicated.database, replicated.table) as session:
        finding = look(session)["replica"]
    assert_wrong(finding, says="replicates from 127.0.0.1", fix="point --database at the primary")
    open_and_close(replace(replicated, database=DatabaseUrl.parse(primary.url(replicated.database.database))))


@pytest.mark.parametrize("thread", ["IO_THREAD", "SQL_THREAD"])
def test_one_running_thread_makes_a_replica(replicated: RelayOptions, replica: MariaDbServer, thread: str):
    run(replica, f"STOP REPLICA {thread}")
    with pytest.raises(Unsupported, match="replicates from"):
        open_and_close(replicated)


def test_replication_that_was_stopped_is_a_warning_and_no_refusal(replicated: RelayOptions, replica: MariaDbServer):
    run(replica, "STOP REPLICA")
    open_and_close(replicated)
    with Session(replicated.database, replicated.table) as session:
        assert_wrong(
            look(session)["replica"],
            level="warning",
            says="still set up to replicate from 127.0.0.1",
            fix="RESET REPLICA '' ALL",
        )


def test_replication_that_leaves_our_database_out_is_fine(replicated: RelayOptions, replica: MariaDbServer):
    run(replica, "STOP REPLICA", "SET GLOBAL replicate_do_db = 'crm'", "START REPLICA")
    open_and_close(replicated)
    with Session(replicated.database, replicated.table) as session:
        assert look(session)["replica"].level == "ok"


def test_a_role_that_may_not_see_the_replication_is_not_kept_out(replicated: RelayOptions):
    role = f"r_{uuid.uuid4().hex[:10]}"
    with Session(replicated.database, replicated.table) as session:
        session.run(f"CREATE USER {role}")
        grant_relay(replicated.database, replicated.table, role)
        address = replicated.database.url.rpartition("@")[2]
        relay = replace(replicated, database=DatabaseUrl.parse(f"mysql://{role}@{address}"))
        with pytest.raises(Unsupported, match="replicates from"):
            open_and_close(relay)
        session.run(f"REVOKE REPLICA MONITOR ON *.* FROM {role}")
        open_and_close(relay)
        session.run(f"DROP USER {role}")
