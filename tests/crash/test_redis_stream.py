"""The Redis stream through killed writers, rivals, restarts, cut connections, and other people's hands."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from outbox.errors import StaleTail, StreamCorrupt, StreamUnavailable, Trimmed, Unsupported, UsageError, WrongPartner
from stream_store import Outcome, check, open_stream
from stream_store.redaction import REDACTED_CONTENT_TYPE
from stream_store.redis import encoding, erasing, link, reader, settling
from stream_store.redis import stream as stream_module
from stream_store.redis.address import Keys
from tests.crash.redis_faults import run_and_kill
from tests.crash.relay_process import until
from tests.crash.stream_events import EPOCH, assert_chained, batch, chain_of, ids_of, row, rows_of
from tests.crash.stream_relay import append_and_acknowledge, assert_whole
from tests.program import ROOT
from tests.servers.redis import DURABLE, RedisServer, fresh_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server that may be restarted, filled and locked."""
    server = RedisServer(*DURABLE, "--repl-diskless-sync-delay", "0").start()
    yield server
    server.destroy()


@pytest.fixture
def server(own_server: RedisServer) -> Iterator[RedisServer]:
    yield own_server
    if own_server.process is None or own_server.process.poll() is not None:
        own_server.start()


@pytest.fixture
def name() -> str:
    return fresh_name()


@pytest.fixture
def url(server: RedisServer, name: str) -> str:
    return f"{server.url}/{name}"


@pytest.fixture
def keys(name: str) -> Keys:
    return Keys.of(name)


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as found:
        yield found


# ---- killed writers


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_writer_killed_at_each_exchange_loses_nothing(server: RedisServer, halfway: bool) -> None:
    """From nothing: creation, binding, appends."""
    for at in itertools.count(1):
        url = f"{server.url}/{fresh_name()}"
        killed, acknowledged = run_and_kill(
            lambda ack, url=url: append_and_acknowledge(url, 9, ack), at, halfway=halfway
        )
        assert_whole(url, max(acknowledged, default=0), f"killed at {at}")
        if not killed:
            break
    assert at > (15 if halfway else 30), "the matrix became smaller than it was: are the exchanges still counted?"


def test_writer_killed_inside_a_batch_of_several_parts_leaves_whole_parts(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 7)

    def scenario(url: str, acknowledge: object) -> None:
        with open_stream(url, "write") as stream:
            stream.append(batch(range(1, 51)))

    for at in itertools.count(1):
        url = f"{server.url}/{fresh_name()}"
        killed, _ = run_and_kill(lambda ack, url=url: scenario(url, ack), at, halfway=True)
        tail = assert_whole(url, 0)
        assert tail % 7 == 0 or tail == 50
        if not killed:
            break
    assert tail == 50


@pytest.mark.parametrize("change", ["trim", "lose", "begin"])
def test_writer_killed_while_it_changes_the_stream_has_changed_it_or_not(server: RedisServer, change: str) -> None:
    def scenario(url: str) -> None:
        with open_stream(url, "write", create=False) as stream:
            if change == "trim":
                stream.trim(7)
            elif change == "lose":
                stream.lose(20)
            else:
                stream.begin(500)

    for at in itertools.count(1):
        url = f"{server.url}/{fresh_name()}"
        with open_stream(url, "write") as stream:
            if change != "begin":
                stream.append(batch(range(1, 13)))
        killed, _ = run_and_kill(lambda ack, url=url: scenario(url), at, halfway=True)
        with open_stream(url) as stream:
            info = stream.info()
            if change == "trim":
                assert info.trimmed_through in (0, 7)
                assert ids_of(stream.read(info.trimmed_through)) == list(range(info.trimmed_through + 1, 13))
            elif change == "lose":
                assert (info.tail, info.lost) in [(12, ()), (20, ((12, 20),))]
            else:
                assert (info.tail, info.trimmed_through) in [(0, 0), (500, 500)]
        assert check(url).ok
        if not killed:
            break
    assert (info.trimmed_through, info.tail) == {"trim": (7, 12), "lose": (0, 20), "begin": (500, 500)}[change]


def test_writer_killed_while_it_erases_leaves_the_stream_whole_and_the_next_one_finishes(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "STEP_ENTRIES", 5)
    monkeypatch.setattr(erasing, "scrub", lambda *_: None)  # the server's own files: a test of its own

    def scenario(url: str) -> None:
        with open_stream(url, "write") as stream:
            stream.redact([3, 8, 12])

    def erased(event_id: int) -> dict[str, object]:
        gone = {"data": None, "data_bytes": None, "headers": None, "datacontenttype": REDACTED_CONTENT_TYPE}
        return {**row(event_id), **gone}

    original = [row(event_id) for event_id in range(1, 14)]
    expected = [erased(event_id) if event_id in (3, 8, 12) else row(event_id) for event_id in range(1, 14)]
    for at in itertools.count(1):
        url = f"{server.url}/{fresh_name()}"
        with open_stream(url, "write") as stream:
            stream.append(batch(range(1, 14)))
        killed, _ = run_and_kill(lambda ack, url=url: scenario(url), at, halfway=False)
        with open_stream(url, "write") as stream:
            assert rows_of(stream.read(0)) in (original, expected)
            assert stream.redact([3, 8, 12]) in (0, 3)
            assert rows_of(stream.read(0)) == expected
            assert stream.append(batch([14])).outcome is Outcome.APPENDED
        assert check(url).ok
        if not killed:
            break


def test_killed_again_and_again_under_a_reader_loses_nothing(url: str) -> None:
    follower = start("follow", url, "100")
    acknowledged = 0
    for appends in (30, 47, 60):
        writer = start("append", url)
        assert int(writer.stdout.readline()) >= acknowledged
        for _ in range(appends):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        rest = writer.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    output, errors = follower.communicate(timeout=60)
    assert int(output or 0) >= 100, errors
    assert_whole(url, acknowledged)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.stream_process", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- rivals


def test_two_writers_at_once_never_interleave(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each appends from the tail that it sees, in batches of several parts."""
    monkeypatch.setattr(encoding, "PART_ROWS", 20)
    last, outcomes, failures = 4000, [], []

    def write(step: int) -> None:
        try:
            with open_stream(url, "write") as stream:
                while (tail := stream.tail()) < last:
                    outcomes.append(stream.append(batch(range(tail + 1, tail + step))).outcome)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(step,)) for step in (61, 73)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures, failures
    assert set(outcomes) <= {Outcome.APPENDED, Outcome.STALE, Outcome.DUPLICATE}
    assert_whole(url, last)


def test_batch_that_is_overtaken_halfway_is_stale_or_a_duplicate(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 3)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        other.append(batch(range(1, 5)))
        answer = stream.append(batch(range(1, 10), prev_id=0))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 4)
        answer = stream.append(batch(range(5, 12), prev_id=4))
        assert answer.outcome is Outcome.APPENDED
        assert other.append(batch(range(5, 12), prev_id=4)).outcome is Outcome.DUPLICATE
        assert other.append(batch(range(9, 20), prev_id=8)).outcome is Outcome.STALE


def test_batch_whose_beginning_is_refused_is_refused_as_a_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second part would follow the tail, behind events of another history."""
    monkeypatch.setattr(encoding, "PART_ROWS", 10)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        stream.append(batch(range(1, 11)))
        answer = other.append(batch(range(1, 31), salt="another history"))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 10)
        assert rows_of(stream.read(0)) == [row(event_id) for event_id in range(1, 11)]


def test_rest_of_a_batch_does_not_follow_what_took_its_beginnings_place(
    url: str, keys: Keys, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 10)
    monkeypatch.setattr(stream_module, "PARTS_IN_FLIGHT", 1)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        pack, parts_packed = stream._packed, []

        def overtaken(*given: object) -> object:
            parts_packed.append(given)
            if len(parts_packed) == 2:  # the server went back, and another relay was quicker
                client.delete(keys.events)
                other.append(batch(range(1, 11), salt="another history"))
            return pack(*given)

        monkeypatch.setattr(stream, "_packed", overtaken)
        answer = stream.append(batch(range(1, 31)))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 10)
        assert rows_of(other.read(0)) == [row(event_id, "another history") for event_id in range(1, 11)]


def test_second_erasure_takes_over_from_the_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "STEP_ENTRIES", 5)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        stream.append(batch(range(1, 30)))
        step, once = erasing.copy_step, []

        def slow(*given: object) -> str:
            if not once:
                once.append(1)
                other.append(batch([30]))
                other.redact([2])
            return step(*given)

        monkeypatch.setattr(erasing, "copy_step", slow)
        with pytest.raises(Exception, match="another process has begun to erase"):
            stream.redact([4])
        assert [
            event["id"] for event in rows_of(other.read(0)) if event["datacontenttype"] == REDACTED_CONTENT_TYPE
        ] == [2]
        assert ids_of(other.read(0)) == list(range(1, 31))
        assert stream.redact([4]) == 1


def test_events_appended_and_trimmed_while_content_is_erased_are_in_the_copy_or_gone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "STEP_ENTRIES", 5)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        stream.append(batch(range(1, 30)))
        step, steps = erasing.copy_step, []

        def busy(*given: object) -> str:
            steps.append(1)
            if len(steps) == 3:
                other.append(batch(range(30, 33)))
                other.trim(4)
            return step(*given)

        monkeypatch.setattr(erasing, "copy_step", busy)
        assert stream.redact([2, 20, 31]) == 2
        assert ids_of(stream.read(4)) == list(range(5, 33))
        with pytest.raises(Trimmed):
            stream.read(3)
        assert check(url).redacted == 1


def test_erasure_that_fails_gives_its_memory_back_and_never_touches_that_of_another(
    url: str, keys: Keys, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "STEP_ENTRIES", 5)
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 30)))
        step, steps = erasing.copy_step, []

        def beside() -> int:
            return len(client.keys(keys.events.replace("events", "c*")))

        def failing(*given: object) -> str:
            steps.append(1)
            if len(steps) == 3:
                raise StreamUnavailable("the test lets this fail")
            if len(steps) == 6:
                client.hset(keys.info, "erasing", "another's")
                raise StreamUnavailable("the test lets this fail")
            if len(steps) == 9:
                client.xdel(keys.erasing(client.hget(keys.info, "erasing").decode())[0], "2-0")
            return step(*given)

        monkeypatch.setattr(erasing, "copy_step", failing)
        with pytest.raises(StreamUnavailable, match="lets this fail"):
            stream.redact([4])
        assert beside() == 0
        client.xadd(keys.erasing("another's")[0], {"a": "b"})
        with pytest.raises(StreamUnavailable, match="lets this fail"):
            stream.redact([4])
        assert beside() == 1
        with pytest.raises(StaleTail, match="removed entries"):
            stream.redact([4])
        assert rows_of(stream.read(0)) == [row(event_id) for event_id in range(1, 30)]
        assert beside() == 0


def test_erasure_goes_on_only_while_its_copy_is_whole_so_far(
    url: str, keys: Keys, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was overtaken gives up late, on whatever connection: the copy of another stays whole."""
    monkeypatch.setattr(erasing, "STEP_ENTRIES", 5)
    with open_stream(url, "write") as stream, open_stream(url, "write") as other:
        stream.append(batch(range(1, 30)))
        erasing.take_over(stream._link, keys, "A", url)
        client.sadd(keys.erasing("A")[1], "5-0")
        at_a = erasing.copy_step(stream._link, keys, "A", "-", url)
        erasing.take_over(other._link, keys, "B", url)
        client.sadd(keys.erasing("B")[1], "7-0")
        at_b = erasing.copy_step(other._link, keys, "B", "-", url)
        with pytest.raises(StaleTail, match="another process"):
            erasing.copy_step(stream._link, keys, "A", at_a, url)
        erasing._step(stream._link, keys, "A", "")
        while at_b:
            at_b = erasing.copy_step(other._link, keys, "B", at_b, url)
        assert ids_of(other.read(0)) == list(range(1, 30))
        # A copy that is gone, or ends elsewhere, is never put in place.
        for spoil in (client.unlink, lambda key: client.xdel(key, "5-0"), lambda key: client.xadd(key, {"a": "b"})):
            erasing.take_over(other._link, keys, "C", url)
            at_c = erasing.copy_step(other._link, keys, "C", "-", url)
            spoil(keys.erasing("C")[0])
            with pytest.raises(StaleTail, match="nothing was changed"):
                erasing.copy_step(other._link, keys, "C", at_c, url)
        assert ids_of(other.read(0)) == list(range(1, 30))
        assert check(url).redacted == 1


# ---- the server goes away


def test_server_that_restarts_has_everything_and_the_stream_is_opened_again(server: RedisServer, url: str) -> None:
    stream, following = open_stream(url, "write"), open_stream(url)
    stream.append(batch(range(1, 10)))
    server.restart()
    with pytest.raises(StreamUnavailable):
        stream.append(batch([10]))
    with pytest.raises(StreamUnavailable, match="opened again"):
        stream.append(batch([10]))
    assert ids_of(eventually(lambda: list(following.read(0))))[:9] == list(range(1, 10))
    stream.close()
    following.close()
    assert assert_whole(url, 9) in (9, 10)


def test_server_that_is_killed_has_everything_it_acknowledged(server: RedisServer, url: str) -> None:
    acknowledged: list[int] = []

    def write() -> None:
        try:
            append_and_acknowledge(url, 1_000_000, acknowledged.append)
        except StreamUnavailable:
            return

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: len(acknowledged) > 200, lambda: str(acknowledged[-1:]))
    server.crash()
    writer.join()
    server.start()
    assert_whole(url, acknowledged[-1])


def eventually(attempt: object, seconds: float = 30.0) -> object:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except StreamUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_idle_writer_notices_a_restart_before_it_appends(
    server: RedisServer, url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lost its end would answer TAIL_LOST to it, though all rows are still there to be appended again."""
    for idle_seconds in (link.IDLE_SECONDS, 0.0):
        monkeypatch.setattr(link, "IDLE_SECONDS", idle_seconds)
        with open_stream(url, "write") as stream:
            server.restart()
            with server.client() as client:
                client.delete(keys.events)
            with pytest.raises(StreamUnavailable):
                stream.append(batch([10], prev_id=9))


def test_tail_that_the_server_lost_while_it_was_to_be_settled_is_not_answered(
    server: RedisServer, client: redis.Redis, url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "SYNCED_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(settling, "_SYNC_POLL_SECONDS", 0.01)
    client.config_set("appendfsync", "everysec")
    try:
        with open_stream(url, "write") as stream:
            stream.append(batch(range(1, 10)))
            assert stream.settle() == 9
            wait = stream._settling._wait_for_sync

            def lose_the_end() -> None:
                client.hset(keys.info, "tail", 5)
                wait()

            monkeypatch.setattr(stream._settling, "_wait_for_sync", lose_the_end)
            with pytest.raises(StreamUnavailable, match="through ID 9"):
                stream.settle()

            def restart() -> None:
                client.hset(keys.info, "tail", 9)
                server.restart()
                with pytest.raises(StreamUnavailable):
                    stream.info()  # somebody else meets the lost connection first

            monkeypatch.setattr(stream._settling, "_wait_for_sync", restart)
            with pytest.raises(StreamUnavailable, match="restarted"):
                stream.settle()
    finally:
        with server.client() as again:
            again.config_set("appendfsync", "always")


def test_connections_that_are_cut_lose_nothing(client: redis.Redis, url: str) -> None:
    acknowledged, over, failures = [0], threading.Event(), []

    def write() -> None:
        try:
            while not over.is_set():
                try:
                    append_and_acknowledge(url, acknowledged[-1] + 3000, acknowledged.append)
                except StreamUnavailable:
                    continue
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(20):
        before = acknowledged[-1]
        client.client_kill_filter(_type="normal", skipme=True)
        until(lambda before=before: acknowledged[-1] > before or bool(failures), lambda: str(failures))
    over.set()
    client.client_kill_filter(_type="normal", skipme=True)
    writer.join()
    assert not failures, failures
    assert_whole(url, max(acknowledged))


def test_connection_that_was_closed_while_idle_is_made_anew(
    client: redis.Redis, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "IDLE_SECONDS", 0.0)
    with open_stream(url, "write") as stream:
        stream.append(batch([1]))
        client.client_kill_filter(_type="normal", skipme=True)
        assert stream.append(batch([2])).outcome is Outcome.APPENDED


def test_scripts_that_the_server_has_forgotten_are_loaded_again(
    client: redis.Redis, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 2)
    with open_stream(url, "write") as stream:
        client.script_flush()
        assert stream.append(batch(range(1, 12))).outcome is Outcome.APPENDED
        client.script_flush()
        stream.trim(3)
        client.script_flush()
        assert stream.append(batch([12])).outcome is Outcome.APPENDED
        assert ids_of(stream.read(3)) == list(range(4, 13))


def test_full_memory_is_temporary_and_nothing_is_half_written(
    client: redis.Redis, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 4)
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StreamUnavailable, match=r"maxmemory.*raise it"):
                stream.append(batch(range(10, 20)))
            with open_stream(url, "write") as again, pytest.raises(StreamUnavailable, match="maxmemory"):
                again.append(batch(range(10, 20)))
        finally:
            client.config_set("maxmemory", 0)
    assert assert_whole(url, 9) == 9


def test_credentials_that_are_revoked_are_temporary_and_wrong_ones_are_a_mistake(
    client: redis.Redis, server: RedisServer, name: str
) -> None:
    client.execute_command("ACL", "SETUSER", "relay", "on", ">s3cret", "~*", "&*", "+@all")
    url = f"redis://relay:s3cret@127.0.0.1:{server.port}/0/{name}"
    with open_stream(url, "write") as stream:
        assert "s3cret" not in stream.url
        stream.append(batch([1]))
        client.execute_command("ACL", "SETUSER", "relay", "-evalsha")
        with pytest.raises(StreamUnavailable, match="may not do this") as refused:
            stream.append(batch([2]))
        assert "s3cret" not in str(refused.value)
    client.execute_command("ACL", "SETUSER", "relay", "off")
    with pytest.raises(UsageError, match="ACL SETUSER") as refused:
        open_stream(url, "write")
    assert "s3cret" not in str(refused.value)
    client.execute_command("ACL", "SETUSER", "relay", "on", "+@all")
    assert assert_whole(url, 1) == 1
    client.execute_command("ACL", "DELUSER", "relay")


def test_role_of_least_rights_is_enough(client: redis.Redis, server: RedisServer, name: str) -> None:
    """As docs/stream-redis.md grants it: nothing about the server is shown to it but INFO."""
    rights = "-@all +ping +hello +client +select +info +evalsha +script|load +exists +hget +hmget +hgetall"
    rights += (
        " +hset +hdel +xadd +xrange +xlen +xtrim +xgroup|create +xgroup|destroy +zadd +zcard +zrange +zrangebyscore"
    )
    rights += " +zremrangebyscore +sadd +sismember +unlink +rename +memory|usage +wait +bgrewriteaof"
    client.execute_command("ACL", "SETUSER", "least", "on", ">pw", f"~outbox:{{{name}}}:*", *rights.split())
    url = f"redis://least:pw@127.0.0.1:{server.port}/0/{name}"
    assert_whole(url, 0)
    with open_stream(url, "write") as stream:
        stream.bind("outbox-b", "/shop")
        stream.append(batch(range(2, 40)))
        assert stream.find(EPOCH) == 1
        assert stream.cuts(0, 39)
        stream.report("table", "t", 3)
        assert len(stream.readers()) == 1
        stream.forget("table", "t")
        stream.trim(5)
        stream.settle()
    client.execute_command("ACL", "DELUSER", "least")


# ---- other people's hands


def test_entries_that_somebody_removed_are_damage(client: redis.Redis, url: str, keys: Keys) -> None:
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        client.xdel(keys.events, "5-0")
        with pytest.raises(StreamCorrupt, match="behind ID 4 through ID 5"):
            list(stream.read(0))
        assert ids_of(stream.read(5)) == [6, 7, 8, 9]
        client.xdel(keys.events, "9-0")
        with pytest.raises(StreamCorrupt, match="behind ID 8 through ID 9"):
            list(stream.read(5))
    found = check(url)
    assert [place.offset for place in found.damage] == [6]
    assert found.damage[0].file == keys.events


def test_entries_that_somebody_else_wrote_are_damage_and_stop_the_writer(
    client: redis.Redis, url: str, keys: Keys
) -> None:
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        client.xadd(keys.events, {"hello": "world"}, id="20-0")
        assert ids_of(stream.read(0)) == list(range(1, 10))
        with pytest.raises(StreamCorrupt, match="somebody else writes"):
            stream.append(batch(range(10, 20)))
    client.xadd(keys.events, {"hello": "world"}, id="21-3")
    with open_stream(url, "write") as stream:
        stream.lose(25)
        with pytest.raises(StreamCorrupt, match="20-0 is no event"):
            list(stream.read(0))
    assert not check(url).ok


def test_events_that_were_removed_as_a_whole_are_a_lost_tail(client: redis.Redis, url: str, keys: Keys) -> None:
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        client.delete(keys.events)
        assert stream.tail() == 0
        assert stream.append(batch([10])).outcome is Outcome.TAIL_LOST
        assert not check(url).ok
        assert stream.append(batch(range(1, 10))).outcome is Outcome.APPENDED
        assert check(url).ok


def test_stream_that_was_removed_or_replaced_under_its_writer_is_noticed(
    client: redis.Redis, url: str, keys: Keys
) -> None:
    stream = open_stream(url, "write")
    stream.append(batch([1]))
    client.delete(keys.info, keys.events)
    with pytest.raises(StreamUnavailable, match="removed"):
        stream.append(batch([2]))
    stream.close()
    stream = open_stream(url, "write")
    client.delete(keys.info, keys.events)
    open_stream(url, "write").close()
    with pytest.raises(WrongPartner, match="was stream"):
        stream.append(batch([1]))
    stream.close()


def test_keys_that_hold_something_else_are_left_alone(client: redis.Redis, url: str, keys: Keys) -> None:
    client.xadd(keys.events, {"a": "b"})
    with pytest.raises(StreamCorrupt, match="no stream of ours"):
        open_stream(url, "write")
    assert client.xlen(keys.events) == 1


def test_server_that_would_evict_the_stream_or_keep_nothing_is_refused(
    client: redis.Redis, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", 10**9)
    try:
        with pytest.raises(Unsupported, match="noeviction"):
            open_stream(url, "write")
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    client.config_set("appendfsync", "no")
    try:
        with pytest.raises(Unsupported, match="acks=write"):
            open_stream(url, "write")
        with open_stream(url + "?acks=write", "write") as stream:
            assert "no row is deleted" in caplog.text
            stream.append(batch([1]))
            assert stream.settle() == 0
    finally:
        client.config_set("appendfsync", "always")


def test_replicas_that_are_not_there_hold_up_the_acknowledgement(url: str) -> None:
    strict = open_stream(url + "?acks=all&replicas=1&timeout_seconds=1", "write")
    with strict as stream, pytest.raises(StreamUnavailable, match="0 instead of 1 of the replicas"):
        stream.append(batch([1]))
    # The event is there; it is settled once a replica has it too.
    with open_stream(url + "?acks=all&replicas=1&timeout_seconds=1", "write") as stream:
        assert stream.append(batch([1])).outcome is Outcome.DUPLICATE
        with pytest.raises(StreamUnavailable, match="0 instead of 1"):
            stream.settle()
    with open_stream(url + "?acks=write&replicas=1&timeout_seconds=1", "write") as stream:
        assert stream.append(batch([2])).outcome is Outcome.APPENDED


def test_replicas_that_once_were_are_waited_for_until_the_url_says_otherwise(url: str) -> None:
    with open_stream(url + "?acks=all&replicas=1&timeout_seconds=1", "write"):
        pass
    with (
        open_stream(url + "?timeout_seconds=1", "write") as stream,
        pytest.raises(StreamUnavailable, match="0 instead of 1"),
    ):
        stream.append(batch([1]))
    with open_stream(url + "?replicas=0", "write") as stream:
        assert stream.append(batch([1])).outcome is Outcome.DUPLICATE
        assert stream.settle() == 1
    with open_stream(url, "write") as stream:
        assert stream.append(batch([2])).outcome is Outcome.APPENDED


def test_replica_acknowledges_and_takes_no_appends_itself(server: RedisServer, url: str, name: str) -> None:
    replica = RedisServer("--appendonly", "no", "--save", "", "--replicaof", "127.0.0.1", str(server.port)).start()
    try:
        with server.client() as client:
            until(lambda: client.info("replication").get("slave0", {}).get("state") == "online", lambda: "no replica")
        with open_stream(url + "?acks=all&replicas=1", "write") as stream:
            assert stream.append(batch(range(1, 10))).outcome is Outcome.APPENDED
            assert stream.settle() == 9
        with open_stream(f"{replica.url}/{name}") as stream:
            assert ids_of(stream.read(0)) == list(range(1, 10))
        with pytest.raises(StreamUnavailable, match="primary"):
            open_stream(f"{replica.url}/{name}", "write")
    finally:
        replica.destroy()


def test_erased_content_is_gone_from_the_servers_files(server: RedisServer, url: str) -> None:
    def files() -> bytes:
        return b"".join(path.read_bytes() for path in server.folder.rglob("*") if path.is_file() and path != server.log)

    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10), salt="needle-of-content"))
        assert b"needle-of-content" in files()
        assert stream.redact(range(1, 10)) == 9
        assert b"needle-of-content" not in files()
    server.crash()
    server.start()
    with open_stream(url) as stream:
        assert all(event["data"] is None for event in rows_of(stream.read(0)))


# ---- seeking


def test_time_is_found_whatever_the_order_of_times(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By units of a few events, against a plain search."""
    monkeypatch.setattr(stream_module, "UNIT_ROWS", 4)
    monkeypatch.setattr(encoding, "PART_ROWS", 3)
    chance = random.Random(5)
    times: list[datetime] = []
    with open_stream(url, "write") as stream:
        while len(times) < 150:
            now = EPOCH + timedelta(seconds=len(times) + chance.randrange(-40, 40))
            times += [now] * (count := chance.randrange(1, 6))
            stream.append(batch(range(len(times) - count + 1, len(times) + 1), at=now))
        for trimmed in (0, 37):
            stream.trim(trimmed)
            for seconds in range(-60, 260, 3):
                wanted = EPOCH + timedelta(seconds=seconds)
                found = (number for number, at in enumerate(times, 1) if number > trimmed and at >= wanted)
                assert stream.find(wanted) == next(found, len(times) + 1), seconds


# ---- sizes


def test_large_batches_and_pages_of_any_size_come_back_as_they_were(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PAGE_ENTRIES_FIRST", 3)
    monkeypatch.setattr(encoding, "PART_BYTES", 2000)
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 3000)))
        stream.append(batch(range(3000, 3010), salt="x" * 100_000))
        assert rows_of(stream.read(0, 2999)) == [row(event_id) for event_id in range(1, 3000)]
        assert rows_of(stream.read(2999)) == [row(event_id, "x" * 100_000) for event_id in range(3000, 3010)]
        assert_chained(list(stream.read(0)), 0)
        cuts = stream.cuts(0, 3009)
        assert len(cuts) > 2
        assert cuts[-1].id == 3009
        assert chain_of(stream.read(cuts[0].id, cuts[1].id))[-1][1] == cuts[1].id


def test_reading_that_is_given_up_leaves_nothing_behind(url: str) -> None:
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 2000)))
        for _ in range(5):
            batches = stream.read(0)
            next(batches)
            batches.close()
        assert ids_of(stream.read(0)) == list(range(1, 2000))
