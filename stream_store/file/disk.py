"""Every operation by which the file stream changes the disk.

They are called as `disk.sync(...)`, never imported by name: the crash tests put a SIGKILL,
a full disk or a failed sync exactly before or after one of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable
from stream_store.file.direct import write_direct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyarrow import Buffer

TEMPORARY = ".tmp"


def create(path: Path) -> int:
    """A new, empty file, open for reading and writing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write(fd: int, parts: Sequence[bytes | memoryview | Buffer], offset: int) -> None:
    """Write all of `parts`, one behind the other, at `offset`."""
    views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
    if write_direct(fd, views, offset):
        return
    while views:
        written = os.pwritev(fd, views, offset)
        offset += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


def sync(fd: int) -> None:
    """Return when the file's bytes and its size are on the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def rename(source: Path, target: Path) -> None:
    source.rename(target)


def sync_folder(folder: Path) -> None:
    """Make names that were created, renamed or removed in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(fd: int, record: bytes) -> None:
    """Overwrite a small record in place, for readers in other processes."""
    os.pwrite(fd, record, 0)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """A folder of its owner's alone, and the folders above it, all durable."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700 if folder == path else 0o755, exist_ok=True)
        sync_folder(folder.parent)


def replace(path: Path, parts: Iterable[bytes | memoryview | Buffer], temporary: Path | None = None) -> int:
    """Put a file of this content in the place of `path`, whole and durable, or not at all.

    Returns the new file, open; the caller closes it. A crash leaves at most `temporary`.
    """
    temporary = temporary or path.with_name(path.name + TEMPORARY)
    remove(temporary)
    fd = create(temporary)
    try:
        offset = 0
        for part in parts:
            write(fd, [part], offset)
            offset += len(memoryview(part))
        sync(fd)
        rename(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        with suppress(OSError):  # a full disk needs the room back; the next writer removes it otherwise
            temporary.unlink(missing_ok=True)
        raise
    return fd


@contextmanager
def reporting(action: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that says what to do."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full: make room, the writer goes on by itself",
            errno.EDQUOT: "the disk quota is used up: raise it, the writer goes on by itself",
            errno.EFBIG: "the file may not grow: raise the file size limit (ulimit -f)",
            errno.EROFS: "the file system is read-only: see the kernel log, mount it writable again",
            errno.EACCES: "grant this user access to the folder",
        }.get(error.errno or 0, "see the kernel log for the disk; the stream is opened again before the next try")
        raise StreamUnavailable(f"{action} {path}: {error.strerror or error}; {advice}") from error
