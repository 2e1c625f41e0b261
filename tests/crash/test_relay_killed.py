"""SIGKILL of the relay before and after each of its steps, on every kind of database."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.outbox_case import LEASE_SECONDS, NEVER
from tests.crash.relay_process import At, running

if TYPE_CHECKING:
    from tests.crash.outbox_case import OutboxCase

KILLED = -9
# The next relay waits for as long as the dead one's lease.
SHORT_LEASE_SECONDS = 0.2

# The relay's way, in its order.
STEPS = [
    At("lease.take"),
    At("lock"),
    At("create_stream"),
    At("recover"),
    At("source.open"),
    At("bind"),
    At("sql.bind_stream"),
    At("sql.remember_server"),
    At("start"),
    At("source.look", "before"),
    At("source.look"),
    At("source.look", nth=2),
    At("list_holders"),
    At("source.read"),
    At("source.read", nth=2),
    At("source.standing", nth=3),
    At("source.make_durable"),
    At("appender", "before", nth=2),
    At("append/disk.sync", "before"),
    At("append/disk.sync"),
    At("append/disk.publish", "before"),
    At("append", nth=2),
    At("cleaner.take", "before"),
    At("clean/sql.clean_lock"),
    At("clean/sql.clean_delete", "before"),
    At("clean/sql.clean_delete"),
    At("clean/sql.clean_move"),
    At("clean/sql.commit", "before"),
    At("clean/sql.commit"),
    At("lease.release", "before"),
]
# Of the disk alone: the same for every database.
DISK_STEPS = [
    At("create_stream/disk.rename", nth=2),
    At("bind/disk.rename"),
    At("append/disk.write", "before"),
    At("append/disk.write"),
    At("append/disk.sync", nth=2),
    At("append/disk.publish"),
]
ROLL_STEPS = [
    At("roll", "before"),
    At("roll/disk.create"),
    At("roll/disk.write"),
    At("roll/disk.sync", "before"),
    At("roll/disk.rename", "before"),
    At("roll/disk.rename"),
    At("roll/disk.sync_folder"),
    At("roll/disk.publish", "before"),
    At("roll/disk.publish"),
    At("roll"),
    At("tidy/disk.write"),
    At("tidy/disk.rename", "before"),
    At("tidy/disk.rename"),
    At("tidy"),
]
# A second relay finds rows that the first one appended and did not delete.
TAKE_OVER_STEPS = [
    At("lease.take"),
    At("lock"),
    At("recover/disk.rename", "before"),
    At("recover/disk.rename"),
    At("recover"),
    At("start/source.late_id"),
    At("start/source.read"),
    At("start/append", "before"),
    At("start/append"),
    At("start/append", nth=2),
    At("start/cleaner.take"),
    At("start"),
    At("clean/sql.clean_delete"),
    At("clean/sql.commit"),
]


@pytest.mark.parametrize("at", STEPS, ids=str)
def test_relay_killed_at_any_step_loses_and_doubles_nothing(case: OutboxCase, at: At) -> None:
    kill_and_go_on(case, at)


@pytest.mark.parametrize("at", DISK_STEPS, ids=str)
def test_relay_killed_at_any_step_of_the_disk_loses_and_doubles_nothing(sqlite_case: OutboxCase, at: At) -> None:
    kill_and_go_on(sqlite_case, at)


@pytest.mark.parametrize("at", [At("source.make_durable"), At("append/disk.sync"), At("clean/sql.commit")], ids=str)
def test_relay_of_a_sqlite_wal_database_killed_loses_and_doubles_nothing(sqlite_case: OutboxCase, at: At) -> None:
    sqlite_case.execute("PRAGMA journal_mode = WAL")
    kill_and_go_on(sqlite_case, at)


@pytest.mark.parametrize("at", [At("sql.barrier_take"), At("sql.barrier_drop")], ids=str)
def test_relay_killed_while_it_holds_writers_off_leaves_them_free(mariadb_case: OutboxCase, at: At) -> None:
    """Where locks cannot be listed, LOCK TABLES settles the gaps; it goes with the session."""
    kill_and_go_on(mariadb_case, at, fence="barrier")


def kill_and_go_on(case: OutboxCase, at: At, **changes: Any) -> None:
    case.write(10)
    with running(case.orders(at, lease_seconds=SHORT_LEASE_SECONDS, **changes)) as relay:
        assert relay.wait() == KILLED, relay.said()
    case.write(2)
    assert case.relay_once(**changes) == 0
    case.assert_exactly_once()


def kill_while_rolling(case: OutboxCase, at: At) -> None:
    # Every append but the first begins a segment.
    case.stream += "?segment_bytes=1"
    kill_and_go_on(case, at)


@pytest.mark.parametrize("at", ROLL_STEPS, ids=str)
def test_relay_killed_while_it_rolls_a_segment_loses_and_doubles_nothing(sqlite_case: OutboxCase, at: At) -> None:
    kill_while_rolling(sqlite_case, at)


@pytest.mark.parametrize("at", [At("roll", "before"), At("roll/disk.rename"), At("roll")], ids=str)
def test_relay_of_a_server_killed_while_it_rolls_a_segment_loses_and_doubles_nothing(
    server_case: OutboxCase, at: At
) -> None:
    kill_while_rolling(server_case, at)


@pytest.mark.parametrize("at", TAKE_OVER_STEPS, ids=str)
def test_relay_killed_while_it_takes_over_loses_and_doubles_nothing(case: OutboxCase, at: At) -> None:
    case.write(10)
    # Killed when everything is appended and nothing deleted: the next one has several batches to offer again.
    first_orders = case.orders(At("lease.release", "before"), delete_after=NEVER, lease_seconds=SHORT_LEASE_SECONDS)
    with running(first_orders) as first:
        assert first.wait() == KILLED, first.said()
    assert case.tail() == max(case.committed) > case.deleted_through() == 0
    with running(case.orders(at, lease_seconds=SHORT_LEASE_SECONDS)) as second:
        assert second.wait() == KILLED, second.said()
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_relay_killed_again_and_again_while_events_come_loses_and_doubles_nothing(case: OutboxCase) -> None:
    """At no step in particular: wherever it is when the time has come."""
    chance = random.Random(7)
    case.stream += "?segment_bytes=4096"
    with case.writing():
        for _ in range(8):
            with running(case.orders(once=False)) as relay:
                time.sleep(LEASE_SECONDS + chance.random() / 2)
                relay.kill()
    assert len(case.committed) > 100
    assert case.relay_once() == 0
    case.assert_exactly_once()
