"""Two relays of one outbox: one leads, one stands by; and both at once when leases are of no use."""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import connector.relay
from connector import supervisor
from connector.lease import Lease
from stream_store.memory import MemoryStream
from tests.crash.relay_process import At, RelayProcess, do_nothing, running, say_yes, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.outbox_case import OutboxCase

NO_LEASE = (("connector.lease:Lease", "take", say_yes), ("connector.lease:Lease", "check", do_nothing))


def leads(case: OutboxCase, relay: RelayProcess) -> bool:
    leader = case.value("SELECT coalesce(leader, '') FROM outbox_info")
    return f":{relay.pid}:" in str(leader)


@contextlib.contextmanager
def leader_and_standby(
    case: OutboxCase, at: At | None = None, act: str = "stop"
) -> Iterator[tuple[RelayProcess, RelayProcess]]:
    with running(case.orders(at, act=act, once=False)) as leader:
        until(lambda: leads(case, leader), leader.said)
        with running(case.orders(once=False)) as standby:
            yield leader, standby


def finish(case: OutboxCase, *relays: RelayProcess) -> None:
    """Wait until everything is relayed and deleted, and end the relays gently."""
    said = lambda: "\n\n".join(relay.said() for relay in relays)  # noqa: E731
    until(lambda: case.deleted_through() == max(case.committed), said)
    for relay in relays:
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_standby_waits_while_the_leader_lives_and_takes_over_when_it_is_killed(case: OutboxCase) -> None:
    with leader_and_standby(case) as (leader, standby):
        with case.writing():
            until(lambda: "standing by" in standby.said(), standby.said)
            until(lambda: case.deleted_through() > 20, leader.said)
            leader.kill()
            until(lambda: leads(case, standby) and "leading" in standby.said(), standby.said)
        finish(case, standby)


def test_standby_takes_over_at_once_from_a_leader_that_ends_gently(case: OutboxCase) -> None:
    with leader_and_standby(case) as (leader, standby):
        with case.writing():
            until(lambda: case.deleted_through() > 20, leader.said)
            assert leader.stop() == 0, leader.said()
            until(lambda: leads(case, standby), standby.said)
        finish(case, standby)


@pytest.mark.parametrize(
    "at",
    [At("append/disk.write"), At("append/disk.sync"), At("append", nth=2), At("clean/sql.clean_lock")],
    ids=str,
)
def test_stopped_leader_that_goes_on_gives_way_to_the_standby(case: OutboxCase, at: At) -> None:
    """It keeps the stream's lock while it is stopped; when it wakes it finds that it leads no more."""
    with leader_and_standby(case, at) as (leader, standby):
        case.write(6)
        leader.wait_until_stopped()
        if case.dialect != "sqlite":  # which it may have left locked in the very moment it was stopped
            case.write(2)
            until(lambda: leads(case, standby), standby.said)
            until(lambda: "it is stopped and keeps the lock" in standby.said(), standby.said)
        leader.send(signal.SIGCONT)
        case.write(2)
        finish(case, leader, standby)


@pytest.mark.parametrize(
    "at",
    [At("append/disk.write"), At("append/disk.sync"), At("clean/sql.clean_delete"), At("clean/sql.commit", "before")],
    ids=str,
)
def test_stopped_leader_that_is_killed_is_replaced_by_the_standby(case: OutboxCase, at: At) -> None:
    """Also one that was stopped in the middle of its clean-up, with the info row locked."""
    with leader_and_standby(case, at) as (leader, standby):
        case.write(6)
        leader.wait_until_stopped()
        assert "leading" not in standby.said()
        leader.kill()
        case.write(2)
        finish(case, standby)


@pytest.mark.parametrize("at", [At("lease.take"), At("lock"), At("recover"), At("start/append"), At("start")], ids=str)
def test_standby_stopped_and_killed_while_it_takes_over_is_replaced_by_the_next(case: OutboxCase, at: At) -> None:
    case.write(6)
    with running(case.orders(At("clean", "before"))) as leader:
        leader.wait()
    with running(case.orders(at, act="stop")) as standby:
        standby.wait_until_stopped()
        with running(case.orders(once=False)) as third:
            until(third.said)  # it stands by, or waits for a lock of the stopped one
            standby.kill()
            case.write(2)
            finish(case, third)


def test_lease_that_everybody_gets_leaves_one_writer_by_the_lock(case: OutboxCase) -> None:
    """A file stream has a lock as well: the second relay waits for the first one's death."""
    orders = [replace(case.orders(once=False), replacements=NO_LEASE) for _ in range(2)]
    with running(orders[0]) as first:
        until(lambda: "leading" in first.said(), first.said)
        with running(orders[1]) as second:
            with case.writing():
                until(lambda: "waiting for the stream's writer lock" in second.said(), second.said)
                until(lambda: case.deleted_through() > 20, first.said)
                first.kill()
                until(lambda: "leading" in second.said(), second.said)
            finish(case, second)


class SharedStream(MemoryStream):
    """A stream that two relays of one process write at once: only the append outcomes protect it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._writes = True

    def close(self) -> None:
        """Stays open for the other relay."""


def test_two_relays_that_both_lead_lose_and_double_nothing(case: OutboxCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease, no lock: each append is judged by the stream alone, and each deletion by the rows."""
    case.stream = f"memory://{case.folder.name}"
    MemoryStream(case.folder.name, writing=True).close()
    both, opened = threading.Barrier(2), threading.local()

    def open_shared(url: str, mode: str) -> Any:
        if not hasattr(opened, "once"):
            opened.once = True
            both.wait(timeout=60)  # each leads when the other does
        return SharedStream(case.folder.name)

    monkeypatch.setattr(Lease, "take", say_yes)
    monkeypatch.setattr(Lease, "check", do_nothing)
    monkeypatch.setattr(connector.relay, "open_stream", open_shared)
    stop, codes = threading.Event(), []

    def relay() -> None:
        codes.append(supervisor.run([case.options()], once=False, stop=stop))

    relays = [threading.Thread(target=relay) for _ in range(2)]
    for thread in relays:
        thread.start()
    with case.writing():
        until(lambda: len(case.committed) > 150)
    until(lambda: case.deleted_through() == max(case.committed))
    stop.set()
    for thread in relays:
        thread.join()
    assert codes == [0, 0]
    case.assert_exactly_once()
