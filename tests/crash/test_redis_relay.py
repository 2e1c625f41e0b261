"""A relay into Redis: through restarts, cut connections, full memory, revoked credentials, and a lost tail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stream_store import open_stream
from stream_store.redis import settling
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import running, until
from tests.servers.redis import EVERY_SECOND, RedisServer, fresh_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    found = RedisServer().start()
    yield found
    found.destroy()


@pytest.fixture
def lossy() -> Iterator[RedisServer]:
    """A server that syncs once a second, as most do."""
    found = RedisServer(*EVERY_SECOND).start()
    yield found
    found.destroy()


@pytest.fixture
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays in the test's own process do not wait for the server's sync as long as it may take."""
    monkeypatch.setattr(settling, "SYNCED_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(settling, "_SYNC_POLL_SECONDS", 0.05)


@pytest.fixture
def case(server: RedisServer, folder: Path) -> OutboxCase:
    return case_on(f"{server.url}/{fresh_name()}", folder)


def case_on(stream: str, folder: Path) -> OutboxCase:
    case = OutboxCase(f"sqlite:///{folder / 'app.db'}", folder)
    case.stream = stream
    return case


def drained(case: OutboxCase) -> bool:
    return case.deleted_through() == max(case.committed)


def test_relay_brings_everything_once(case: OutboxCase) -> None:
    case.write(40)
    assert case.relay_once() == 0
    case.assert_exactly_once()
    case.write(3)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_relay_goes_on_by_itself_when_the_server_was_restarted(case: OutboxCase, server: RedisServer) -> None:
    case.write(5)
    with running(case.orders(once=False)) as relay:
        until(lambda: drained(case), relay.said)
        with case.writing():
            for outage in (server.restart, lambda: (server.crash(), server.start())):
                outage()
                until(lambda: "trying again" in relay.said(), relay.said)
        until(lambda: drained(case), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_relay_goes_on_by_itself_when_its_connections_are_cut(case: OutboxCase, server: RedisServer) -> None:
    with running(case.orders(once=False)) as relay, server.client() as client:
        with case.writing():
            for _ in range(4):
                before = case.deleted_through()
                client.client_kill_filter(_type="normal", skipme=True)
                until(lambda before=before: case.deleted_through() > before, relay.said)
        until(lambda: drained(case), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_relay_goes_on_by_itself_when_the_memory_has_room_again(case: OutboxCase, server: RedisServer) -> None:
    case.write(4)
    with running(case.orders(once=False)) as relay, server.client() as client:
        until(lambda: drained(case), relay.said)
        client.config_set("maxmemory", 1)
        try:
            case.write(4)
            until(lambda: relay.said().count("memory is full") > 1, relay.said)
            assert relay.exit_code is None
            assert not drained(case)
        finally:
            client.config_set("maxmemory", 0)
        until(lambda: drained(case), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_relay_goes_on_by_itself_when_its_credentials_are_restored(server: RedisServer, folder: Path) -> None:
    name = fresh_name()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "relay", "on", ">s3cret", "~*", "&*", "+@all")
        case = case_on(f"redis://relay:s3cret@127.0.0.1:{server.port}/0/{name}", folder)
        case.write(4)
        with running(case.orders(once=False)) as relay:
            until(lambda: drained(case), relay.said)
            client.execute_command("ACL", "SETUSER", "relay", "off")
            client.client_kill_filter(_type="normal", skipme=True)
            case.write(4)
            until(lambda: relay.said().count("ACL SETUSER") > 1, relay.said)
            assert relay.exit_code is None
            client.execute_command("ACL", "SETUSER", "relay", "on")
            until(lambda: drained(case), relay.said)
            assert relay.stop() == 0, relay.said()
            assert "s3cret" not in relay.said()
        case.assert_exactly_once()
        client.execute_command("ACL", "DELUSER", "relay")


def test_relay_with_a_wrong_password_ends_at_once(case: OutboxCase, server: RedisServer) -> None:
    wrong = case.options(stream=f"redis://nobody:wrong@127.0.0.1:{server.port}/0/{fresh_name()}")
    with running(replace(case.orders(once=False), options=wrong)) as relay:
        assert relay.wait() == 2, relay.said()
    assert "wrong@" not in relay.said()


# ---- a machine that crashes before the server has synced its file: the tail of the file is not there


def cut_tail(server: RedisServer, case: OutboxCase) -> tuple[int, int]:
    """What a crash of the machine leaves of a file that was not synced; the tail before and after."""
    before = case.tail()
    server.crash()
    path = server.aof_tail()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    server.start()
    after = case.tail()
    assert 0 < after < before
    return before, after


def test_acknowledged_events_that_a_crash_took_back_are_appended_again_from_rows_that_were_kept(
    lossy: RedisServer, folder: Path
) -> None:
    case = case_on(f"{lossy.url}/shop", folder)
    case.write(30)
    assert case.relay_once(delete_after=NEVER) == 0
    cut_tail(lossy, case)
    assert case.verify().rows_pending > 0
    assert case.relay_once(delete_after=NEVER) == 0
    case.assert_exactly_once(drained=False)


def test_running_relay_notices_that_a_crash_took_events_back_and_appends_them_again(
    lossy: RedisServer, folder: Path
) -> None:
    case = case_on(f"{lossy.url}/shop", folder)
    with running(case.orders(once=False, delete_after=NEVER)) as relay:
        case.write(30)
        until(lambda: case.committed and relay_is_at(case), relay.said)
        cut_tail(lossy, case)
        case.write(2)
        until(lambda: relay_is_at(case), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once(drained=False)


def relay_is_at(case: OutboxCase) -> bool:
    try:
        return case.tail() == max(case.committed)
    except Exception:  # not made yet, or the server is not up yet
        return False


@pytest.mark.usefixtures("quick_sync")
def test_rows_are_deleted_only_when_the_server_has_synced_them(lossy: RedisServer, folder: Path) -> None:
    """So a crash takes back only what is still in the table: nothing is lost although rows are deleted."""
    case = case_on(f"{lossy.url}/shop", folder)
    case.write(10)
    with running(case.orders(once=False)) as relay:
        until(lambda: relay_is_at(case), relay.said)
        assert case.deleted_through() == 0
        until(lambda: drained(case), relay.said)
        case.write(10)
        until(lambda: relay_is_at(case), relay.said)
        relay.kill()
    deleted_through = case.deleted_through()
    before = case.tail()
    lossy.crash()
    # The events that were not yet synced are gone: exactly those whose rows are still there.
    path = lossy.aof_tail()
    content = path.read_bytes()
    at = content.index(b"\r\n%d-0\r\n" % (deleted_through + 1))
    with path.open("r+b") as file:
        file.truncate(content.rindex(b"*1\r\n$5\r\nMULTI\r\n", 0, at))
    lossy.start()
    assert deleted_through <= case.tail() < before
    assert case.relay_once() == 0
    case.assert_exactly_once()


@pytest.mark.usefixtures("quick_sync")
def test_events_that_are_gone_for_good_stop_the_relay_and_a_rebase_records_them(
    lossy: RedisServer, folder: Path
) -> None:
    """The file lost what had been synced, too: a disk that lied, or an old copy of it."""
    case = case_on(f"{lossy.url}/shop", folder)
    case.write(30)
    assert case.relay_once() == 0
    assert drained(case)
    _, after = cut_tail(lossy, case)
    case.write(2)
    assert case.relay_once() == 4
    assert not case.verify().ok
    through = case.deleted_through()
    assert case.rebase() == ["record-loss"]
    case.committed = {key: content for key, content in case.committed.items() if not after < key <= through}
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=through - after)
    with open_stream(case.stream) as stream:
        assert stream.info().lost == ((after, through),)


def test_server_that_was_emptied_stops_the_relay(case: OutboxCase, server: RedisServer) -> None:
    case.write(4)
    assert case.relay_once() == 0
    through = case.deleted_through()
    with server.client() as client:
        client.flushall()
    case.write(2)
    assert case.relay_once() == 4
    assert case.rebase() == ["bind-stream", "record-loss"]
    assert case.relay_once() == 0
    case.committed = {key: content for key, content in case.committed.items() if key > through}
    case.assert_exactly_once(recorded_lost=through)
