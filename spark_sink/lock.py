"""One writer at a time on a table of this machine.

On a local disk Delta's commit is "look whether the version is there, then rename": two
processes have been seen to succeed with the same version. So every command of ours that
writes such a table holds an OS lock for as long as its commit takes. The file lies beside
the table's folder, not in it: Delta does not make a table in a folder that holds something.

It is Java that commits, and it outlives a Python that was killed: it sees its standard input
end, and goes through its shutdown hooks while the commit is still under way. So Java holds a
lock, too, which ends with it. That is another file, because the two kinds of lock (flock, and
fcntl by process) know nothing of each other on a local disk, and are the same on NFS.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log: Any = structlog.get_logger()

POLL_SECONDS = 0.05
SAY_AFTER_SECONDS = 5.0
S3 = ("s3", "s3a", "s3n")
SINGLE_DRIVER = "S3SingleDriverLogStore"


def commits_collide(location: str, setting: Callable[[str], str | None]) -> bool:
    """Whether two processes that commit to a table there may overwrite each other's commits.

    Of the stores that Delta knows, S3 through Hadoop is the one without a way to create a file only if it
    is not there: unless told otherwise, Delta keeps writers apart within one driver alone.
    """
    scheme, _, path = location.partition("://")
    if not path or scheme not in S3 or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return False
    store = setting(f"spark.delta.logStore.{scheme}.impl") or setting("spark.delta.logStore.class")
    return store is None or store.endswith(SINGLE_DRIVER)


@contextmanager
def table_lock(folder: Path, java_file: Callable[[str, str], Any] | None = None) -> Iterator[None]:
    """Hold the lock of the table at `folder`; waits for it, and says for whom.

    `java_file` opens a file in the Java that writes the table.
    """
    path = folder.parent / f".{folder.name}.outbox-lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _open(path)
    try:
        _wait(lambda: _is_taken(fd), fd, folder)
        with suppress(OSError):  # a lock can be held on a file that one may only read
            os.pwrite(fd, f"{os.getpid():<20d}".encode(), 0)
        with _java_lock(path.with_name(path.name + "-java"), java_file, fd, folder):
            yield
    finally:
        os.close(fd)


@contextmanager
def _java_lock(path: Path, java_file: Callable[[str, str], Any] | None, holder: int, folder: Path) -> Iterator[None]:
    """Inside the other one: in this Java nobody else has the file open, whose closing would end our lock."""
    if java_file is None:
        yield
        return
    os.close(_open(path))
    channel = java_file(str(path), "rw").getChannel()
    try:
        _wait(lambda: channel.tryLock() is not None, holder, folder)
        yield
    finally:
        with suppress(Exception):  # Java is gone, and its lock with it
            channel.close()


def _open(path: Path) -> int:
    """The file, made when it is not there: for everybody who may write beside the table."""
    for how in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, FileExistsError, PermissionError):
            fd = os.open(path, how | os.O_CLOEXEC, 0o600)
            if how & os.O_CREAT:
                os.fchmod(fd, path.parent.stat().st_mode & 0o666)
            return fd
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # and have it say why not


def _is_taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(is_ours: Callable[[], bool], holder: int, folder: Path) -> None:
    since, said = time.monotonic(), False
    while not is_ours():
        if not said and time.monotonic() - since > SAY_AFTER_SECONDS:
            said = True
            pid = os.pread(holder, 20, 0).decode().strip() or "unknown"
            log.warning("waiting for the table's lock", table=str(folder), holder_pid=pid)
        time.sleep(POLL_SECONDS)
