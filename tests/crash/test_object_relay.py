"""A relay on an object store, end to end: killed, raced, its server away, its credentials refused."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.errors import StreamRefused
from stream_store import open_stream
from tests import program
from tests.crash.outbox_case import OutboxCase
from tests.crash.relay_process import At, do_nothing, running, say_yes, until
from tests.servers import s3

NO_LEASE = (("connector.lease:Lease", "take", say_yes), ("connector.lease:Lease", "check", do_nothing))


@pytest.fixture
def object_case(sqlite_case: OutboxCase) -> OutboxCase:
    """Merges every few appends, so that they are always under way."""
    sqlite_case.stream = f"object+file://{sqlite_case.folder}/objects?merge_objects=5&merge_bytes=20000"
    return sqlite_case


@pytest.mark.parametrize(
    "at",
    [
        At("append/objects.create", "before"),
        At("append/objects.create", "after", nth=3),
        At("merge/objects.replace", "before"),
        At("merge/objects.replace", "after"),
        At("merge/objects.create", "before"),
        At("merge/objects.create", "after"),
        At("merge/objects.delete", "before"),
        At("merge/objects.delete", "after"),
        At("clean/sql.commit", "before"),
    ],
    ids=str,
)
def test_relay_killed_at_a_request_loses_and_doubles_nothing(object_case: OutboxCase, at: At) -> None:
    object_case.write(80, dead_every=3)
    with running(object_case.orders(at)) as relay:
        assert relay.wait() == -signal.SIGKILL, relay.said()
    object_case.write(3)
    assert object_case.relay_once() == 0
    object_case.assert_exactly_once()


def test_two_relays_that_both_lead_lose_and_double_nothing(object_case: OutboxCase) -> None:
    """No lease and no lock: each append is judged by what the store lets through."""
    orders = [replace(object_case.orders(once=False), replacements=NO_LEASE) for _ in range(2)]
    with running(orders[0]) as first, running(orders[1]) as second:
        said = lambda: f"{first.said()}\n\n{second.said()}"  # noqa: E731
        with object_case.writing():
            until(lambda: "leading" in first.said() and "leading" in second.said(), said)
            until(lambda: object_case.deleted_through() > 150, said)
        until(lambda: object_case.deleted_through() == max(object_case.committed), said)
        assert (first.stop(), second.stop()) == (0, 0), said()
    object_case.assert_exactly_once()


@pytest.fixture
def own_server() -> Iterator[s3.S3Server]:
    """A server that this test may crash."""
    server = s3.S3Server().start()
    yield server
    server.destroy()


def test_server_that_crashes_and_comes_back_and_refuses_us_loses_nothing(
    sqlite_case: OutboxCase, own_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name, value in s3.credentials().items():
        monkeypatch.setenv(name, value)
    case = sqlite_case
    case.stream = own_server.url("shop") + "&merge_objects=5&timeout_seconds=3"
    flags = ("relay", "--database", case.url, "--stream", case.stream)
    relay = program.start(*flags)
    try:
        with case.writing():
            until(lambda: case.deleted_through() > 20)
            own_server.crash()
            went_on_to = max(case.committed) + 30
            until(lambda: max(case.committed) > went_on_to)
            own_server.start()
            until(lambda: case.deleted_through() > went_on_to)
        # Now the server knows another access key. A relay that has led goes on trying; one that starts says so and ends.
        own_server.crash()
        own_server.start(access_key="somebody-else")
        with pytest.raises(StreamRefused, match="access key"):
            open_stream(case.stream)
        case.write(3)
        assert program.run(*flags, "--once").returncode in (2, 75)
        relay.terminate()
        output, errors = relay.communicate(timeout=60)
        assert s3.SECRET_KEY.encode() not in output + errors
        own_server.crash()
        own_server.start()
        done = program.run(*flags, "--once")
        assert done.returncode == 0, done
    finally:
        if relay.poll() is None:
            relay.kill()
    case.assert_exactly_once()


def test_bucket_that_is_not_there_is_refused(s3_url: str) -> None:
    with pytest.raises(StreamRefused, match="no such bucket"):
        open_stream(s3_url.replace("s3://bucket/", "s3://no-such-bucket/"), "write")


def test_commands_work_on_a_bucket(sqlite_case: OutboxCase, s3_url: str) -> None:
    """relay, tap, verify, status, check, stream info and check: by the same URL."""
    sqlite_case.stream = s3_url
    sqlite_case.write(5)
    names = ("--database", sqlite_case.url, "--stream", s3_url)
    program.succeed("relay", *names, "--once")
    tapped = program.succeed("tap", "--stream", s3_url)
    assert len(tapped.splitlines()) == len(sqlite_case.committed)
    assert program.report("verify", *names)["ok"]
    assert program.report("status", *names)
    assert program.report("stream", "info", "--stream", s3_url)["tail"] == max(sqlite_case.committed)
    assert program.report("stream", "check", "--stream", s3_url)["damage"] == []
    found = {each["name"]: each["level"] for each in program.report("check", *names)["findings"]}
    assert (found["stream"], found["stream-writable"], found["one-copy"]) == ("ok", "ok", "ok")
    sqlite_case.assert_exactly_once()
