"""A transaction in flight holds the stream back: it is named, waited for, and ended where that is wished."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from structlog.testing import capture_logs

from connector.status import status
from outbox.database import DatabaseUrl
from tests.integration.relays import (
    RelayThread,
    emit,
    insert,
    installed,
    stream_ids,
    stream_tail,
    transaction,
    until,
)
from tests.servers import mariadb

if TYPE_CHECKING:
    from connector.options import RelayOptions

SERVERS = ["postgresql", "mariadb", "mysql"]


@pytest.fixture(params=SERVERS)
def outbox(request: pytest.FixtureRequest, stream_url: str) -> RelayOptions:
    """An outbox where several can write at the same time: not SQLite."""
    return installed(str(request.getfixturevalue(f"{request.param}_url")), stream_url)


def said(logs: list[Any], *words: str) -> bool:
    return any(all(word in entry["event"] for word in words) for entry in logs)


def session_id(session: Any) -> int:
    sql = "SELECT pg_backend_pid()" if session.dialect == "postgresql" else "SELECT connection_id()"
    return int(session.run(sql)[0][0])


def test_blocker_is_named_in_the_log_and_by_status(outbox: RelayOptions):
    emit(outbox, 1)
    with capture_logs() as logs, RelayThread(outbox), transaction(outbox, "web-3") as blocker:
        until(lambda: stream_tail(outbox.stream) == 1, "what comes before is in the stream")
        insert(blocker)
        pid = session_id(blocker)
        emit(outbox, 2)
        until(lambda: said(logs, f"held at 2 by pid {pid}", "idle in transaction"), "the log names the blocker")
        if outbox.database.dialect == "postgresql":
            assert said(logs, "application web-3", "user postgres")
        seen = status(outbox.database, outbox.table, outbox.stream)
        assert (seen.held_at, seen.rows_waiting, seen.stream_tail) == (2, 2, 1)
        assert len(seen.blockers) == 1
        assert f"pid {pid}" in seen.blockers[0]
        assert stream_ids(outbox.stream) == [1]
        blocker.run("COMMIT")
        until(lambda: stream_tail(outbox.stream) == 4, "what was held is in the stream")
        seen = status(outbox.database, outbox.table, outbox.stream)
        assert (seen.held_at, seen.blockers, seen.rows_waiting) == (None, [], 0)
    assert stream_ids(outbox.stream) == [1, 2, 3, 4]


def test_blocker_that_rolls_back_leaves_a_dead_id(outbox: RelayOptions):
    with RelayThread(outbox), transaction(outbox) as blocker:
        insert(blocker)
        emit(outbox, 2)
        blocker.run("ROLLBACK")
        until(lambda: stream_tail(outbox.stream) == 3, "what was held is in the stream")
    assert stream_ids(outbox.stream) == [2, 3]


def test_newcomers_are_not_waited_for(outbox: RelayOptions):
    """A gap below an open transaction that began after it was seen settles all the same."""
    with (
        capture_logs() as logs,
        RelayThread(outbox),
        transaction(outbox) as first,
        transaction(outbox) as newcomer,
    ):
        insert(first)
        emit(outbox, 1)
        until(lambda: said(logs, "held at 1"), "the relay waits for the first")
        insert(newcomer)
        first.run("ROLLBACK")
        until(lambda: stream_tail(outbox.stream) == 2, "the row between the two transactions is in the stream")
        assert stream_ids(outbox.stream) == [2]
        newcomer.run("COMMIT")
        until(lambda: stream_tail(outbox.stream) == 3, "the newcomer's too")


def test_blocker_is_terminated_when_that_is_wished(outbox: RelayOptions):
    ending = replace(outbox, terminate_blocker_after_seconds=1.0)
    with capture_logs() as logs, RelayThread(ending) as relay, transaction(outbox, "web-3") as blocker:
        insert(blocker)
        pid = session_id(blocker)
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 2, "the stream goes on without the blocker")
        assert said(logs, f"terminated pid {pid}", "held the stream at 1")
        with pytest.raises(Exception, match=r"terminat|gone away|Lost connection|killed|does not answer"):
            blocker.run("SELECT 1")
        relay.stop.set()
        assert relay.wait() == 0
    assert stream_ids(outbox.stream) == [2]


def test_long_transaction_that_emits_last_is_not_terminated_for_its_length(postgresql_url: str, stream_url: str):
    """What counts is for how long it holds the stream back, which is what emitting last is for."""
    outbox = installed(postgresql_url, stream_url)
    with transaction(outbox, "batch-job") as worker:
        began = time.monotonic()
        ending = replace(outbox, terminate_blocker_after_seconds=3.0)
        with capture_logs() as logs, RelayThread(ending):
            until(lambda: time.monotonic() - began > 4.0, "the transaction is older than the limit")
            insert(worker)
            emit(outbox, 1)
            until(lambda: said(logs, "held at 1 by"), "the relay has looked at the blocker")
            worker.run("COMMIT")
            until(lambda: stream_tail(outbox.stream) == 2, "both are in the stream")
    assert not said(logs, "terminated")


def test_writers_that_begin_again_at_once_do_not_starve_the_stream(mariadb_url: str, stream_url: str):
    """MariaDB lists sessions, not transactions: one that emits, works and begins anew is hardly ever seen absent."""
    outbox = installed(mariadb_url, stream_url)
    over = threading.Event()

    def write(number: int) -> None:
        chance = random.Random(number)
        with transaction(outbox) as session:
            while not over.is_set():
                insert(session)
                time.sleep(0.2)
                session.run("ROLLBACK" if chance.random() < 0.05 else "COMMIT")
                session.run("BEGIN")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    with RelayThread(outbox):
        for writer in writers:
            writer.start()
        try:
            for _ in range(4):
                target = stream_tail(outbox.stream) + 200
                until(
                    lambda target=target: stream_tail(outbox.stream) >= target, "the stream goes on beside the writers"
                )
        finally:
            over.set()
            for writer in writers:
                writer.join()


def test_relay_that_may_not_terminate_the_blocker_says_so_and_waits_on(outbox: RelayOptions):
    url = relay_role(outbox)
    limited = replace(outbox, database=DatabaseUrl.parse(url), terminate_blocker_after_seconds=1.0)
    with capture_logs() as logs, RelayThread(limited) as relay, transaction(outbox) as blocker:
        insert(blocker)
        emit(outbox, 1)
        until(lambda: said(logs, "could not terminate"), "the log says that it cannot")
        assert stream_tail(outbox.stream) == 0
        blocker.run("COMMIT")
        until(lambda: stream_tail(outbox.stream) == 2, "the stream goes on when the blocker is done")
        relay.stop.set()
        assert relay.wait() == 0


def relay_role(outbox: RelayOptions) -> str:
    """A role with what a relay needs and no more; its URL."""
    from outbox.grants import grant_relay

    database = outbox.database.database
    name = f"r{database}"
    if outbox.database.dialect == "postgresql":
        with psycopg.connect(outbox.database.url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {name} LOGIN")
        grant_relay(outbox.database, outbox.table, name)
        return outbox.database.url.replace("://postgres@", f"://{name}@")
    with mariadb.connect(outbox.database.url, autocommit=True) as admin:
        admin.cursor().execute(f"CREATE USER {name}@'%' IDENTIFIED BY 'secret'")
    grant_relay(outbox.database, outbox.table, name)
    return outbox.database.url.replace("://tester:", f"://{name}:").replace("://root:", f"://{name}:")


def test_prepared_transaction_is_named_and_cannot_be_terminated(outbox: RelayOptions):
    gid = outbox.database.database
    is_postgresql = outbox.database.dialect == "postgresql"
    with transaction(outbox) as writer:
        if is_postgresql:
            insert(writer)
            writer.run(f"PREPARE TRANSACTION '{gid}'")
        else:
            writer.run("ROLLBACK")
            writer.run(f"XA START '{gid}'")
            insert(writer)
            writer.run(f"XA END '{gid}'")
            writer.run(f"XA PREPARE '{gid}'")
    ending = replace(outbox, terminate_blocker_after_seconds=1.0)
    emit(outbox, 1)
    with capture_logs() as logs, RelayThread(ending):
        until(lambda: said(logs, "held at 1", gid), "the log names the prepared transaction")
        assert stream_tail(outbox.stream) == 0
        seen = status(outbox.database, outbox.table, outbox.stream)
        assert seen.held_at == 1
        assert any(gid in blocker for blocker in seen.blockers)
        with transaction(outbox) as other:
            other.run("ROLLBACK")
            other.run(f"COMMIT PREPARED '{gid}'" if is_postgresql else f"XA COMMIT '{gid}'")
        until(lambda: stream_tail(outbox.stream) == 2, "the stream goes on")
    assert stream_ids(outbox.stream) == [1, 2]


def test_behind_the_barrier_the_log_says_that_something_holds(mariadb_url: str, stream_url: str):
    outbox = installed(mariadb_url, stream_url, fence="barrier")
    with capture_logs() as logs, RelayThread(outbox), transaction(outbox) as blocker:
        insert(blocker)
        emit(outbox, 1)
        until(lambda: said(logs, "held at 1 by a transaction in flight"), "the log says so")
        blocker.run("ROLLBACK")
        until(lambda: stream_tail(stream_url) == 2, "the barrier settles the gap")
    assert stream_ids(stream_url) == [2]


def test_mariadb_writer_that_is_never_seen_absent_is_settled_by_the_barrier(mariadb_url: str, stream_url: str):
    """A thread in a tight loop holds the lock at every look: LOCK TABLES comes in between."""
    import threading

    outbox = installed(mariadb_url, stream_url)
    over = threading.Event()

    def write() -> None:
        with contextlib.closing(mariadb.connect(mariadb_url)) as connection:
            cursor = connection.cursor()
            while not over.is_set():
                # The next transaction begins before anybody has looked.
                cursor.execute("INSERT INTO outbox (type) VALUES ('t')")
                connection.rollback()
                cursor.execute("INSERT INTO outbox (type) VALUES ('t')")
                connection.commit()

    threads = [threading.Thread(target=write) for _ in range(4)]
    with RelayThread(outbox):
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(stream_ids(stream_url)) > 200 if stream_tail(stream_url) else False, "the stream goes on")
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_a_lock_on_relayed_rows_delays_the_clean_up_and_nothing_else(outbox: RelayOptions):
    """Somebody's SELECT … FOR UPDATE: the lease is renewed, the stream goes on, and the relay ends when told to."""
    outbox = replace(outbox, lease_seconds=1.5)
    with capture_logs() as logs:
        with RelayThread(outbox), transaction(outbox, "inspector") as inspector:
            emit(outbox, 1)
            inspector.run("SELECT id FROM outbox WHERE id = 1 FOR UPDATE")
            until(lambda: said(logs, "clean-up waits"), "the cleaner gives the lock up and says so")
            emit(outbox, 1)
            until(lambda: stream_tail(outbox.stream) == 2, "the stream goes on")
            assert status(outbox.database, outbox.table, outbox.stream).leader_alive
        assert not said(logs, "trying again")
