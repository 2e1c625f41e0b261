"""The writer lock: one writer per stream folder, by flock on a file of its own.

The file is never renamed or removed: a lock on a name that moves protects nothing. The
kernel frees the lock when its holder dies; a holder that is only stopped keeps it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from outbox.errors import StreamLocked

LOCK_NAME = "writer.lock"
# A record of fixed length, overwritten in one piece: nobody sees half of a shorter one.
_RECORD_BYTES = 512

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Held from construction to `release` or the death of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._fd: int | None = None
        try:
            while not self._take(folder):
                self._close()
            assert self._fd is not None
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
            os.pwrite(self._fd, json.dumps(holder).encode().ljust(_RECORD_BYTES), 0)
        except BaseException:
            # A full disk has no room for the name: the descriptor would keep the lock for ever.
            self._close()
            raise
        _held.add(self)

    def _take(self, folder: Path) -> bool:
        """Open the file and lock it; False when the name stands for another file by then."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            record = os.pread(self._fd, _RECORD_BYTES, 0)
            raise StreamLocked(f"{folder} has a writer already: {_describe(record)}") from None
        # The folder may have been replaced between open and flock.
        return self.path.exists() and self.path.stat().st_ino == os.fstat(self._fd).st_ino

    def release(self) -> None:
        if self._fd is not None:
            # The name only explains a lock that is held: one that stays behind does no harm.
            with suppress(OSError):
                os.pwrite(self._fd, b" " * _RECORD_BYTES, 0)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # the descriptor is gone either way, and the lock with it
                os.close(fd)

    @property
    def is_held(self) -> bool:
        return self._fd is not None


def _leave_to_parent() -> None:
    """A forked child shares the lock, and would keep it alive after the writer's death."""
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _describe(record: bytes) -> str:
    try:
        holder = json.loads(record)
        pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])
    except (ValueError, KeyError, TypeError):
        return "it has not written its name yet; try again"
    who = f"process {pid} on host {host}, since {since}"
    if host != socket.gethostname():
        return f"{who}; only one relay writes a stream, this one waits"
    state = _process_state(pid)
    if state is None:
        return f"{who}; that process is not to be seen from here: look for it in other containers that share the folder"
    if state in "Tt":
        return f"{who}; it is stopped and keeps the lock until it goes on (kill -CONT {pid}) or dies (kill -KILL {pid})"
    return f"{who}; only one relay writes a stream, this one waits"


def _process_state(pid: int) -> str | None:
    """The state letter of a process, `?` where there is no /proc, None when it is not there."""
    if not Path("/proc/self/stat").exists():
        return "?"
    try:
        # The second field is the program's name, in parentheses, and may itself hold any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
