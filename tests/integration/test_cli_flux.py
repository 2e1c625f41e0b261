"""`outbox flux`: batches that are all or nothing, and bad lines that are named."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.program import TIMEOUT_SECONDS, command, environment, report, run, start, succeed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def database(sqlite_url: str) -> str:
    succeed("init", "--database", sqlite_url)
    return sqlite_url


def stored(database: str) -> list[str]:
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        return [kind for (kind,) in connection.execute("SELECT type FROM outbox ORDER BY id")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(*types: str) -> str:
    return "".join(json.dumps({"type": kind}) + "\n" for kind in types)


def test_lines_become_rows_in_their_order(database: str) -> None:
    kinds = [f"t{n}" for n in range(2500)]
    done = run("flux", "--database", database, stdin=lines(*kinds))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2,500 events written to outbox\n")
    assert stored(database) == kinds


def test_the_last_line_needs_no_line_break_and_empty_lines_are_nothing(database: str) -> None:
    assert report("flux", "--database", database, stdin='\n{"type":"a"}\r\n  \n{"type":"b"}')["events"] == 2
    assert stored(database) == ["a", "b"]
    assert report("flux", "--database", database, stdin="")["events"] == 0


def test_nothing_of_a_bad_lines_batch_is_written(database: str) -> None:
    text = lines("a", "b", "c", "d") + "nope\n" + lines("e")
    done = run("flux", "--database", database, "--batch", "3", stdin=text)
    assert done.returncode == 1
    assert "error: line 5 is bad: it is not a JSON object" in done.stderr
    assert "lines 1 to 3 were committed (3 events); go on with line 4" in done.stderr
    assert stored(database) == ["a", "b", "c"]


def test_a_bad_first_line_says_that_nothing_was_committed(database: str) -> None:
    done = run("flux", "--database", database, stdin='{"type":"t","data":NaN}\n')
    assert (done.returncode, "line 1 is bad" in done.stderr) == (1, True)
    assert "nothing was committed" in done.stderr
    assert stored(database) == []


def test_bad_lines_can_be_put_aside(database: str, tmp_path: Path) -> None:
    aside = tmp_path / "bad.jsonl"
    aside.write_text("earlier\n")
    text = lines("a") + "nope\n" + lines("b") + '{"type":7}\n' + lines("c")
    counted = report("flux", "--database", database, "--batch", "2", "--skip-bad", str(aside), stdin=text)
    assert counted == {"outbox": "outbox", "events": 3, "bad": 2}
    assert aside.read_text() == 'earlier\nnope\n{"type":7}\n'
    assert stored(database) == ["a", "b", "c"]
    done = run("flux", "--database", database, "--skip-bad", str(aside), stdin="nope\n")
    reason, summary = done.stderr.splitlines()
    assert (done.returncode, summary) == (0, f"0 events written to outbox, 1 bad line appended to {aside}")
    assert reason.startswith("line 1 is bad: it is not a JSON object")


def test_data_over_the_limit_is_a_bad_line_unless_the_limit_is_raised(database: str) -> None:
    line = json.dumps({"type": "t", "data": "x" * 2_000_000})
    done = run("flux", "--database", database, stdin=line)
    assert (done.returncode, "line 1 is bad: data has 2,000,002 bytes" in done.stderr) == (1, True)
    assert "raise --max-data-bytes" in done.stderr
    succeed("flux", "--database", database, "--max-data-bytes", "3000000", stdin=line)


def test_a_file_is_read_to_its_end(database: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(lines("a", "b"))
    assert report("flux", "--database", database, str(path))["events"] == 2


def test_a_fifo_is_read_until_its_writer_leaves(database: str, tmp_path: Path) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)

    def write() -> None:
        with fifo.open("w") as writer:
            writer.write(lines("a", "b", "c"))

    writer = threading.Thread(target=write)
    writer.start()
    assert report("flux", "--database", database, str(fifo))["events"] == 3
    writer.join()
    assert stored(database) == ["a", "b", "c"]


def test_a_slow_producers_lines_do_not_wait_for_a_full_batch(database: str) -> None:
    flux = subprocess.Popen(
        command("flux", "--database", database),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert flux.stdin is not None
    flux.stdin.write(lines("a").encode() + b'{"type":')
    flux.stdin.flush()
    wait_until(lambda: stored(database) == ["a"])
    flux.stdin.write(b'"b"}\n')
    flux.stdin.flush()
    wait_until(lambda: stored(database) == ["a", "b"])
    _, errors = flux.communicate(timeout=TIMEOUT_SECONDS)
    assert (flux.returncode, errors) == (0, b"2 events written to outbox\n")


def test_one_line_is_spoken_of_as_one(sqlite_url: str) -> None:
    sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).execute("CREATE TABLE other (x)")
    assert "refused line 1: no such table" in run("flux", "--database", sqlite_url, stdin=lines("a")).stderr
    succeed("init", "--database", sqlite_url)
    done = run("flux", "--database", sqlite_url, "--batch", "1", stdin=lines("a") + "nope\n")
    assert "line 1 was committed (1 event); go on with line 2" in done.stderr


def test_an_interrupt_says_how_far_it_came(database: str, tmp_path: Path) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    flux = start("flux", "--database", database, str(fifo))
    with fifo.open("w") as writer:
        writer.write(lines("a"))
        writer.flush()
        wait_until(lambda: stored(database) == ["a"])
        flux.send_signal(signal.SIGINT)
        _, errors = flux.communicate(timeout=TIMEOUT_SECONDS)
    assert flux.returncode == 130
    assert b"line 1 was committed (1 event); go on with line 2" in errors


def test_a_table_that_is_not_there_is_said_so(sqlite_url: str) -> None:
    sqlite3.connect(sqlite_url.removeprefix("sqlite:///")).execute("CREATE TABLE other (x)")
    done = run("flux", "--database", sqlite_url, stdin=lines("a", "b"))
    assert done.returncode == 1
    assert "refused lines 1 to 2: no such table: outbox. Is outbox installed" in done.stderr


def test_a_writer_role_is_all_that_flux_needs(postgresql_url: str) -> None:
    import psycopg

    role = "flux_writer"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS flux_writer")
        connection.execute("CREATE ROLE flux_writer LOGIN PASSWORD 'pw'")
    succeed("init", "--database", postgresql_url, "--grant-writer", role)
    scheme, _, rest = postgresql_url.partition("://")
    as_writer = f"{scheme}://{role}:pw@{rest.partition('@')[2]}"
    assert report("flux", "--database", as_writer, stdin=lines("a", "b"))["events"] == 2
    assert report("emit", "--database", as_writer, "--type", "c")["events"] == 1
    assert report("status", "--database", postgresql_url)["rows_waiting"] == 3
