"""The disk is full, then there is room again: the relay waits and goes on by itself."""

from __future__ import annotations

import errno
import resource
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.supervisor import is_transient
from stream_store.file import disk
from tests.crash.relay_process import At, running, until

if TYPE_CHECKING:
    from tests.crash.outbox_case import OutboxCase

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def test_relay_goes_on_by_itself_when_its_files_may_grow_again(server_case: OutboxCase) -> None:
    """The kernel's own limit: an append is cut short in the middle of a frame."""
    case = server_case
    case.write(10)
    assert case.relay_once() == 0
    case.write(30)
    orders = replace(case.orders(once=False), file_bytes_max=segment_of(case).stat().st_size + 5_000)
    with running(orders) as relay:
        until(lambda: relay.said().count("the file may not grow") > 2, relay.said)
        assert relay.exit_code is None
        assert case.deleted_through() <= case.tail()
        resource.prlimit(relay.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        case.write(2)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def segment_of(case: OutboxCase) -> Path:
    (segment,) = case.stream_folder.glob("*.log")
    return segment


@pytest.mark.parametrize("function", ["write", "sync", "create", "publish"])
def test_relay_goes_on_by_itself_when_the_disk_has_room_again(case: OutboxCase, function: str) -> None:
    case.write(10)
    assert case.relay_once() == 0
    case.write(4)
    full = case.folder / "full"
    full.touch()
    orders = replace(
        case.orders(once=False),
        replacements=(("stream_store.file.disk", function, Full(str(full), getattr(disk, function))),),
    )
    with running(orders) as relay:
        until(lambda: relay.said().count("the disk is full") > 1, relay.said)
        assert relay.exit_code is None
        full.unlink()
        case.write(2)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


@pytest.mark.parametrize(
    "at",
    [
        At("append/disk.write", "before"),
        At("append/disk.sync", "before"),
        At("append/disk.sync"),
        At("append/disk.publish", "before"),
        At("recover/disk.rename"),
        At("roll/disk.sync_folder"),
    ],
    ids=str,
)
def test_relay_opens_the_stream_anew_after_an_error_of_the_disk(sqlite_case: OutboxCase, at: At) -> None:
    """A sync that failed says nothing about what is on the disk, and is never repeated on the same file."""
    case = sqlite_case
    case.stream += "?segment_bytes=1"
    case.write(10)
    with running(case.orders(at, act="EIO")) as relay:
        assert relay.wait() == 0, relay.said()
        assert "trying again" in relay.said()
    case.assert_exactly_once()


class Full:
    """A function of the disk that finds no room while a file is there."""

    def __init__(self, full: str, function: object) -> None:
        self._full = full
        self._function = function

    def __call__(self, *arguments: object, **named: object) -> object:
        if Path(self._full).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        assert callable(self._function)
        return self._function(*arguments, **named)


def test_full_disk_under_a_sqlite_database_is_temporary(sqlite_case: OutboxCase) -> None:
    """Stream and database are often on the same disk: then the clean-up cannot write either."""
    case = sqlite_case
    case.write(60)
    size = Path(case.database.path).stat().st_size
    with running(replace(case.orders(once=False), file_bytes_max=size // 2)) as relay:
        until(lambda: relay.said().count("trying again") > 2 or relay.exit_code is not None, relay.said)
        assert relay.exit_code is None, relay.said()
        resource.prlimit(relay.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        case.write(2)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        assert relay.stop() == 0, relay.said()
    case.assert_exactly_once()


def test_errors_of_a_sqlite_file_that_pass_are_temporary(tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    writer, other = (sqlite3.connect(database, timeout=0, isolation_level=None) for _ in range(2))
    writer.execute("CREATE TABLE t (a)")
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as locked:
        other.execute("BEGIN IMMEDIATE")
    assert is_transient(locked.value)
    writer.execute("ROLLBACK")
    writer.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.OperationalError) as full:
        writer.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert is_transient(full.value)
    with pytest.raises(sqlite3.OperationalError) as wrong:
        writer.execute("SELECT nothing FROM nowhere")
    assert not is_transient(wrong.value)
    writer.close()
    other.close()
