"""One writer at a time on a table of this machine.

On a local disk Delta's commit is "look whether the version is there, then rename": two
processes have been seen to succeed with the same version. So every command of ours that
writes such a table holds an OS lock for as long as its commit takes. The file lies beside
the table's folder, not in it: Delta does not make a table in a folder that holds something.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log: Any = structlog.get_logger()

POLL_SECONDS = 0.05
SAY_AFTER_SECONDS = 5.0


@contextmanager
def table_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the table at `folder`; waits for it, and says for whom."""
    path = folder.parent / f".{folder.name}.outbox-lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(fd, folder)
        os.pwrite(fd, f"{os.getpid():<20d}".encode(), 0)
        yield
    finally:
        os.close(fd)


def _take(fd: int, folder: Path) -> None:
    since, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said and time.monotonic() - since > SAY_AFTER_SECONDS:
                said = True
                holder = os.pread(fd, 20, 0).decode().strip() or "unknown"
                log.warning("waiting for the table's lock", table=str(folder), holder_pid=holder)
            time.sleep(POLL_SECONDS)
        else:
            return
