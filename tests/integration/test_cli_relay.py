"""`outbox relay` as a process: signals, its log, and its exit codes."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.relays import until
from tests.program import TIMEOUT_SECONDS, command, environment, report, run, start, succeed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def relay(sqlite_url: str, stream_url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A relay that leads."""
    succeed("init", "--database", sqlite_url, cwd=tmp_path)
    process = start("relay", "--database", sqlite_url, "--stream", stream_url, "--log-format", "json", cwd=tmp_path)
    assert process.stderr is not None
    assert logged_until(process, "leading")["outbox"] == "outbox"
    yield process
    process.kill()
    process.communicate()


def logged_until(process: subprocess.Popen[bytes], event: str) -> dict:
    """The log's next entry of this name; every line before it is JSON too."""
    assert process.stderr is not None
    alarm = threading.Timer(TIMEOUT_SECONDS, process.kill)
    alarm.start()
    try:
        while True:
            entry = json.loads(process.stderr.readline())
            if entry["event"] == event:
                return entry
    finally:
        alarm.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_exits_with_0(
    relay: subprocess.Popen[bytes], number: signal.Signals, sqlite_url: str, stream_url: str
) -> None:
    for _ in range(3):
        succeed("emit", "--database", sqlite_url, "--type", "a")
    relay.send_signal(number)
    _, errors = relay.communicate(timeout=TIMEOUT_SECONDS)
    assert relay.returncode == 0
    assert f"{number.name}: finishing what is under way" in errors.decode()
    assert b"Traceback" not in errors
    # What was not relayed before the signal is relayed by the next run: nothing is lost.
    succeed("relay", "--once", "--database", sqlite_url, "--stream", stream_url)
    assert len(succeed("tap", "--stream", stream_url).splitlines()) == 3


def test_the_second_signal_exits_at_once_with_130(
    relay: subprocess.Popen[bytes], sqlite_url: str, stream_url: str
) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path, isolation_level=None) as writer:
        # Nobody else can write while this transaction is open, so the relay cannot give its lease back.
        writer.execute("BEGIN IMMEDIATE")
        relay.send_signal(signal.SIGTERM)
        assert relay.stderr is not None
        assert b"once more to exit at once" in relay.stderr.readline()
        relay.send_signal(signal.SIGTERM)
        relay.communicate(timeout=TIMEOUT_SECONDS)
        assert relay.returncode == 130
        writer.execute("ROLLBACK")
    succeed("emit", "--database", sqlite_url, "--type", "a")
    succeed("relay", "--once", "--database", sqlite_url, "--stream", stream_url)
    assert report("verify", "--database", sqlite_url, "--stream", stream_url)["events"] == 1


def test_events_are_relayed_while_it_runs(relay: subprocess.Popen[bytes], sqlite_url: str, stream_url: str) -> None:
    follower = start("tap", "--stream", stream_url, "--follow")
    assert follower.stdout is not None
    alarm = threading.Timer(TIMEOUT_SECONDS, follower.kill)
    alarm.start()
    try:
        for n in range(3):
            succeed("emit", "--database", sqlite_url, "--type", "a", "--data", str(n))
            assert json.loads(follower.stdout.readline())["data"] == n
    finally:
        alarm.cancel()
        follower.kill()
        follower.communicate()
    status = report("status", "--database", sqlite_url, "--stream", stream_url)
    assert (status["leader_alive"], status["stream_tail"]) == (True, 3)


def test_the_log_is_for_people_unless_json_is_asked_for(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    succeed("init", "--database", sqlite_url)
    at = ["relay", "--once", "--database", sqlite_url, "--stream", stream_url]
    for_people = run(*at, cwd=tmp_path)
    assert "[info" in for_people.stderr
    assert for_people.stdout == ""
    as_json = run(*at, cwd=tmp_path, OUTBOX_LOG_FORMAT="json")
    assert all({"event", "level", "timestamp"} <= set(json.loads(line)) for line in as_json.stderr.splitlines())
    (tmp_path / "outbox.toml").write_text('log_format = "yaml"')
    wrong = run(*at, cwd=tmp_path)
    assert (wrong.returncode, "log_format 'yaml': it is human or json" in wrong.stderr) == (2, True)


def test_a_log_that_cannot_be_written_stops_nothing(sqlite_url: str, stream_url: str) -> None:
    succeed("init", "--database", sqlite_url)
    succeed("emit", "--database", sqlite_url, "--type", "a")
    with Path("/dev/full").open("wb") as full:
        for log_format in ("human", "json"):
            at = ["--database", sqlite_url, "--stream", stream_url, "--log-format", log_format]
            done = subprocess.run(command("relay", "--once", *at), stderr=full, env=environment(), check=False)
            assert done.returncode == 0
            assert len(succeed("tap", "--stream", stream_url).splitlines()) == 1
        for wrong, code in ((["--delete-after", "soon"], 2), (["--nothing"], 2), (["--outbox", "other"], 1)):
            done = subprocess.run(command("relay", "--once", *at, *wrong), stderr=full, env=environment(), check=False)
            assert done.returncode == code, wrong


def test_a_log_that_nobody_reads_any_more_stops_nothing(
    relay: subprocess.Popen[bytes], sqlite_url: str, stream_url: str
) -> None:
    assert relay.stderr is not None
    relay.stderr.close()
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("INSERT INTO outbox (type) VALUES ('a')")
        until(lambda: writer.execute("SELECT count(*) FROM outbox").fetchone() == (0,), "the row is relayed")
    relay.send_signal(signal.SIGTERM)  # of which it has to say something
    assert relay.wait(TIMEOUT_SECONDS) == 0
    assert len(succeed("tap", "--stream", stream_url).splitlines()) == 1


def test_a_missing_out_table_is_a_failure_not_a_restart_loop(sqlite_url: str, stream_url: str) -> None:
    sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).execute("CREATE TABLE other (x)")
    done = run("relay", "--database", sqlite_url, "--stream", stream_url)
    assert done.returncode == 1
    assert "there is no out table outbox" in done.stderr
    assert "Traceback" not in done.stderr
