"""Backlogs by connectorx: never more of its threads than fit, and PyMySQL where it cannot."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.sources import mysql_bulk, open_source
from tests.integration.relays import emit, installed, relay_once, stream_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.options import RelayOptions
    from connector.source import Source

ROOT = Path(__file__).parents[2]
ROWS = 4_000


@pytest.fixture
def outbox(mariadb_url: str, stream_url: str) -> RelayOptions:
    options = installed(mariadb_url, stream_url)
    emit(options, ROWS)
    return options


@pytest.fixture
def source(outbox: RelayOptions) -> Iterator[Source]:
    with contextlib.closing(open_source(outbox)) as source:
        source.open()
        while read_rows(source) < ROWS:  # learns that the rows are small
            pass
        yield source


def read_rows(source: Source) -> int:
    source.standing()
    return sum(rows.events.num_rows for rows in source.read(0, ROWS))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_threads_that_reads_leave_behind_are_bounded(source: Source, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mysql_bulk, "ALLOWANCE", mysql_bulk.Allowance(2, 60.0))
    before = threads()
    assert [read_rows(source) for _ in range(8)] == [ROWS] * 8, "the others go through PyMySQL"
    assert threads() - before <= 2 * 3


def test_an_allowance_comes_back_with_time():
    allowance = mysql_bulk.Allowance(2, 60.0)
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    at_once = mysql_bulk.Allowance(2, 0.0)
    assert [at_once.take() for _ in range(3)] == [True, True, True]


def test_a_read_for_which_there_is_no_thread_fails_like_any_other(outbox: RelayOptions):
    """connectorx panics then, which by itself would end the relay."""
    # In a process of its own: what is left of the address space is too little for a thread's stack.
    program = f"""
import resource, sys
from connector.sources import mysql_bulk
from outbox.database import DatabaseUrl
url = DatabaseUrl.parse({outbox.database.url!r})
assert mysql_bulk.read_arrow(url, "SELECT 1 AS a").num_rows == 1
used = int(open("/proc/self/statm").read().split()[0]) * {resource.getpagesize()}
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**20, used + 3 * 2**20))
try:
    mysql_bulk.read_arrow(url, "SELECT 1 AS a")
except RuntimeError as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "refused: " in done.stdout, done.stderr


def test_a_backlog_is_relayed_when_connectorx_fails(outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch):
    tries = []

    def fail(*_: object) -> None:
        tries.append(1)
        raise RuntimeError("timed out waiting for connection")

    monkeypatch.setattr(mysql_bulk, "read_arrow", fail)
    relay_once(outbox)
    assert stream_ids(outbox.stream) == list(range(1, ROWS + 1))
    assert len(tries) == 1, "it is not tried again at once"
