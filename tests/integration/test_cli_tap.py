"""`outbox tap` on a real stream: ranges, following, pipes and FIFOs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from outbox.batch import SCHEMA, EventBatch
from stream_store import open_stream
from stream_store.gathering import gather
from tests.program import TIMEOUT_SECONDS, command, environment, run, start, succeed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stream_store import Stream

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def batch(prev_id: int, *ids: int, **more: Any) -> EventBatch:
    """Events at one a second from noon on, counted by their ID."""
    rows = [
        {
            "id": n,
            "type": "order.paid" if n % 2 else "user.new",
            "data": str(n),
            "time": NOON + timedelta(seconds=n),
            **more,
        }
        for n in ids
    ]
    return EventBatch(prev_id, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


@pytest.fixture
def stream(stream_url: str) -> Iterator[Stream]:
    """IDs 1 to 10 without 4 and 5, which are dead, in three batches."""
    with open_stream(stream_url, "write") as opened:
        opened.bind("0b0b0b0b-0000-4000-8000-000000000000", "/shop")
        opened.append(batch(0, 1, 2, 3))
        opened.append(batch(3, 6, 7))
        opened.append(batch(7, 8, 9, 10))
        yield opened


def ids(stream_url: str, *arguments: str) -> list[int]:
    return [int(json.loads(line)["id"]) for line in succeed("tap", "--stream", stream_url, *arguments).splitlines()]


class Follower:
    """A running `tap --follow` whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        self.process = start("tap", "--follow", *arguments)
        assert self.process.stdout is not None
        self._lines = self.process.stdout

    def next_ids(self, count: int) -> list[int]:
        alarm = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        alarm.start()
        try:
            return [int(json.loads(self._lines.readline())["id"]) for _ in range(count)]
        finally:
            alarm.cancel()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(TIMEOUT_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def follow() -> Iterator[Any]:
    followers: list[Follower] = []

    def begin(*arguments: str) -> Follower:
        followers.append(Follower(*arguments))
        return followers[-1]

    yield begin
    for follower in followers:
        follower.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [1, 2, 3, 6, 7, 8, 9, 10]),
        (["--from", "earliest", "--to", "7"], [1, 2, 3, 6, 7]),
        (["--from", "3", "--to", "6"], [3, 6]),
        (["--from", "4"], [6, 7, 8, 9, 10]),
        (["--from", "0", "--to", "1"], [1]),
        (["--from", "latest"], []),
        (["--from", "11"], []),
        (["--from", "99999999999"], []),
        (["--from", "2026-03-01T12:00:08Z"], [8, 9, 10]),
        (["--from", "2026-03-01T12:00:08"], [8, 9, 10]),
        (["--from", "2026-03-01T13:00:07.5+01:00", "--to", "2026-03-01 12:00:09"], [8, 9]),
        (["--from", "2026-03-01", "--to", "2026-03-01T12:00:05Z"], [1, 2, 3]),
        (["--from", "2030-01-01"], []),
        (["--types", "order.*"], [1, 3, 7, 9]),
        (["--types", "user.new", "--types", "nope"], [2, 6, 8, 10]),
        (["--types", "user.*,order.paid", "--to", "2"], [1, 2]),
    ],
)
def test_ranges_and_types(stream: Stream, stream_url: str, arguments: list[str], expected: list[int]) -> None:
    assert ids(stream_url, *arguments) == expected


def test_the_chain_shows_what_is_dead(stream: Stream, stream_url: str) -> None:
    lines = [json.loads(line) for line in succeed("tap", "--stream", stream_url).splitlines()]
    assert [(event["previd"], event["id"]) for event in lines][2:4] == [("2", "3"), ("3", "6")]
    assert {event["source"] for event in lines} == {"/shop"}


def test_a_trimmed_stream_begins_at_its_earliest_event(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'stream'}?segment_bytes=1"
    with open_stream(url, "write") as opened:
        opened.bind("0b0b0b0b-0000-4000-8000-000000000000", "/shop")
        for n in range(1, 6):
            opened.append(batch(n - 1, n))
        opened.trim(3)
        kept = opened.info().trimmed_through
    assert kept == 3
    assert ids(url) == [4, 5]
    refused = run("tap", "--stream", url, "--from", "2")
    assert (refused.returncode, "trimmed through ID 3" in refused.stderr) == (1, True)


def test_following_gives_new_events_as_they_come(stream: Stream, stream_url: str, follow: Any) -> None:
    follower = follow("--stream", stream_url, "--from", "9")
    assert follower.next_ids(2) == [9, 10]
    stream.append(batch(10, 11, 12))
    assert follower.next_ids(2) == [11, 12]
    stream.append(batch(12, 20))
    assert follower.next_ids(1) == [20]
    assert follower.end() == 0


def test_following_from_latest_gives_only_new_events(stream: Stream, stream_url: str, follow: Any) -> None:
    follower = follow("--stream", stream_url, "--from", "latest", "--types", "order.*")
    # Nothing tells when it has looked at the tail, so new events come until one is seen.
    done = threading.Event()

    def append() -> None:
        tail = 10
        while not done.wait(0.05):
            stream.append(batch(tail, tail + 1))
            tail += 1

    appender = threading.Thread(target=append)
    appender.start()
    try:
        (first,) = follower.next_ids(1)
    finally:
        done.set()
        appender.join()
    assert first > 10
    assert first % 2 == 1


def test_following_ends_at_to(stream: Stream, stream_url: str, follow: Any) -> None:
    follower = follow("--stream", stream_url, "--from", "10", "--to", "12")
    assert follower.next_ids(1) == [10]
    stream.append(batch(10, 11, 12, 13))
    assert follower.next_ids(2) == [11, 12]
    assert follower.process.wait(TIMEOUT_SECONDS) == 0
    refused = run("tap", "--stream", stream_url, "--follow", "--to", "2030-01-01")
    assert (refused.returncode, "does not go with --follow" in refused.stderr) == (2, True)


def test_following_waits_for_a_stream_that_is_not_there_yet(stream_url: str, follow: Any) -> None:
    follower = follow("--stream", stream_url)
    assert b"waiting for it" in follower.process.stderr.readline()
    with open_stream(stream_url, "write") as opened:
        opened.bind("0b0b0b0b-0000-4000-8000-000000000000", "/shop")
        opened.append(batch(0, 1))
        assert follower.next_ids(1) == [1]


def test_an_interrupt_exits_with_130(stream: Stream, stream_url: str, follow: Any) -> None:
    follower = follow("--stream", stream_url, "--from", "10")
    assert follower.next_ids(1) == [10]
    assert follower.end(signal.SIGINT) == 130


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'stream'}"
    with open_stream(url, "write") as opened:
        opened.bind("0b0b0b0b-0000-4000-8000-000000000000", "/shop")
        # More than a pipe holds.
        opened.append(batch(0, *range(1, 20_001)))
    tap = subprocess.Popen(
        command("tap", "--stream", url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert tap.stdout is not None
    assert tap.stderr is not None
    assert json.loads(tap.stdout.readline())["id"] == "1"
    tap.stdout.close()
    assert tap.stderr.read() == b""
    assert tap.wait(TIMEOUT_SECONDS) == 0


def test_output_goes_to_a_file(stream: Stream, stream_url: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("old")
    assert succeed("tap", "--stream", stream_url, "--output", str(path)) == ""
    assert path.read_text() == succeed("tap", "--stream", stream_url)
    refused = run("tap", "--stream", stream_url, "--output", str(tmp_path / "no" / "such"))
    assert (refused.returncode, "cannot be written" in refused.stderr) == (2, True)


def test_a_fifo_sees_one_reader_after_the_other(stream: Stream, stream_url: str, tmp_path: Path, follow: Any) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    follower = follow("--stream", stream_url, "--output", str(fifo))
    with fifo.open("rb") as reader:
        first = [json.loads(reader.readline())["id"] for _ in range(8)]
    assert first == ["1", "2", "3", "6", "7", "8", "9", "10"]
    # The first reader is gone; the next one gets what follows.
    stream.append(batch(10, 11))
    with fifo.open("rb") as reader:
        assert json.loads(reader.readline())["id"] == "11"
        stream.append(batch(11, 12))
        assert json.loads(reader.readline())["id"] == "12"
    assert follower.end() == 0


def test_a_fifo_without_a_reader_does_not_keep_tap_from_ending(
    stream: Stream, stream_url: str, tmp_path: Path, follow: Any
) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    follower = follow("--stream", stream_url, "--output", str(fifo))
    with fifo.open("rb") as reader:
        assert json.loads(reader.readline())["id"] == "1"
    stream.append(batch(10, 11))
    time.sleep(0.2)  # it is waiting for a reader now, or will
    assert follower.end() == 0


def test_small_batches_are_put_together_without_a_seam(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'stream'}"
    with open_stream(url, "write") as opened:
        opened.bind("0b0b0b0b-0000-4000-8000-000000000000", "/shop")
        for n in range(1, 301):
            opened.append(batch(n - 1, n))
    lines = [json.loads(line) for line in succeed("tap", "--stream", url).splitlines()]
    assert [(event["previd"], event["id"], event["data"]) for event in lines] == [
        (str(n - 1), str(n), n) for n in range(1, 301)
    ]


def test_large_events_are_not_gathered_without_bound() -> None:
    large = [batch(n - 1, n, data='"' + "x" * 10_000_000 + '"') for n in range(1, 8)]
    assert [len(together) for together in gather(large)] == [3, 3, 1]
    small = [batch(n - 1, n) for n in range(1, 8)]
    assert [len(together) for together in gather(small)] == [7]
    assert [len(together) for together in gather([batch(0, 1), batch(5, 6)])] == [1, 1]


def test_a_recorded_loss_shows_in_the_chain(stream: Stream, stream_url: str) -> None:
    stream.lose(15)
    stream.append(batch(15, 16))
    last = json.loads(succeed("tap", "--stream", stream_url).splitlines()[-1])
    assert (last["previd"], last["id"]) == ("15", "16")


def test_what_comes_before_the_damage_is_written(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'stream'}"
    with open_stream(url, "write") as opened:
        opened.append(batch(0, 1, 2))
        before = max((tmp_path / "stream").glob("*.log")).stat().st_size
        opened.append(batch(2, 3))
    segment = max((tmp_path / "stream").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[before + 100] ^= 0xFF
    segment.write_bytes(content)
    done = run("tap", "--stream", url)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["1", "2"]
    assert (done.returncode, segment.name in done.stderr) == (4, True)


def test_a_folder_that_lost_its_identity_is_damaged_not_empty(stream: Stream, stream_url: str) -> None:
    (Path(stream_url.removeprefix("file://")) / "stream.json").unlink()
    done = run("tap", "--stream", stream_url)
    assert (done.returncode, "has segments and no stream.json" in done.stderr) == (4, True)


@pytest.mark.parametrize("places", [("2", "1"), ("2026-03-01T12:00:02Z", "2026-03-01T12:00:01Z")])
def test_a_range_that_ends_before_it_begins_is_a_usage_error(
    stream: Stream, stream_url: str, places: tuple[str, str]
) -> None:
    refused = run("tap", "--stream", stream_url, "--from", places[0], "--to", places[1])
    assert (refused.returncode, "ends before it begins" in refused.stderr) == (2, True)


def test_a_full_disk_is_named_in_one_line(stream: Stream, stream_url: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("tap", "--stream", stream_url),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    assert done.stderr == b"error: stdout cannot be written: No space left on device\n"
    assert done.returncode == 1
