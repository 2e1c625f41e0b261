"""Faults at the operations of `stream_store.file.disk`, counted as they come.

`arm` wraps every operation. Before operation number `at` (or in the middle of it, where it
writes bytes) the fault happens: the process kills itself, or the power is cut.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stream_store.file import disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OPERATIONS = ("create", "write", "sync", "rename", "sync_folder", "publish", "remove")


class PowerCut(BaseException):
    """The machine is off: nothing of the process goes on."""


@contextmanager
def arm(fault: Callable[[], None], at: int, *, halfway: bool, seen: list[str]) -> Iterator[None]:
    """Call `fault` at operation `at`; `seen` collects the operations' names."""
    originals = {name: getattr(disk, name) for name in OPERATIONS}
    lock = threading.Lock()

    def wrap(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            with lock:
                seen.append(name)
                if len(seen) > at:
                    fault()
                if len(seen) == at:
                    if halfway and name == "write":
                        fd, parts, offset = arguments
                        data = b"".join(bytes(memoryview(part)) for part in parts)
                        originals["write"](fd, [data[: len(data) // 2]], offset)
                    elif halfway and name == "publish":
                        fd, record = arguments
                        originals["publish"](fd, record[: len(record) // 2])
                    fault()
            return original(*arguments)

        return wrapped

    for name, original in originals.items():
        setattr(disk, name, wrap(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(disk, name, original)


def run_and_kill(
    scenario: Callable[[Callable[[int], None]], None], at: int, *, halfway: bool
) -> tuple[bool, list[int]]:
    """Run `scenario` in a process that is killed at operation `at`.

    The scenario gets a function to call with each ID that was acknowledged to it. Returns
    whether the process was killed (it may end before operation `at`), and those IDs.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with arm(lambda: os.kill(os.getpid(), signal.SIGKILL), at, halfway=halfway, seen=[]):
                scenario(lambda tail: os.write(write_end, b"%d\n" % tail))
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        acknowledged = [int(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the scenario failed by itself at operation {at}: {status}"
    return killed, acknowledged


class Disk:
    """What of a folder would be there after a power failure.

    Bytes count when their file was synced, names when their folder was. What was not synced
    may or may not be there: `image` makes the extremes.
    """

    def __init__(self, folder: Path, shadow: Path) -> None:
        self.folder = folder
        self.shadow = shadow
        self.names: dict[str, int] = {}
        # Records overwritten in place and not synced since: the kernel may have written any of them.
        self.published: dict[int, list[bytes]] = {}
        shadow.mkdir()
        # What is there to begin with counts as durable.
        self.names = self.current_names()
        for inode in self.names.values():
            shutil.copy(shadow / f"keep-{inode}", shadow / str(inode))

    @contextmanager
    def recording(self) -> Iterator[None]:
        sync, sync_folder, publish = disk.sync, disk.sync_folder, disk.publish
        lock = threading.Lock()

        def recorded_sync(fd: int) -> None:
            sync(fd)
            state = os.fstat(fd)
            # In one step: the power may be cut by another thread at this moment.
            copy = self.shadow / f"copy-{state.st_ino}"
            copy.write_bytes(os.pread(fd, state.st_size, 0))
            copy.rename(self.shadow / str(state.st_ino))
            self.published.pop(state.st_ino, None)

        def recorded_sync_folder(folder: Path) -> None:
            with lock:  # a listing must not overwrite a later one of another thread
                sync_folder(folder)
                if folder == self.folder:
                    self.names = self.current_names()

        def recorded_publish(fd: int, record: bytes) -> None:
            publish(fd, record)
            self.published.setdefault(os.fstat(fd).st_ino, []).append(record)

        disk.sync, disk.sync_folder, disk.publish = recorded_sync, recorded_sync_folder, recorded_publish
        try:
            yield
        finally:
            disk.sync, disk.sync_folder, disk.publish = sync, sync_folder, publish

    def current_names(self) -> dict[str, int]:
        """Names and inodes; each inode gets a second name, so that it is not given to another file."""
        names = {}
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # renamed by another thread
                inode = path.stat().st_ino
                with suppress(FileExistsError):  # linked before
                    os.link(path, self.shadow / f"keep-{inode}")
                names[path.name] = inode
        return names

    def image(self, target: Path, *, names: str, data: str) -> None:
        """A folder as the disk may show it: names `synced` or `current`, data `synced`, `zeros`, `current` or `between`."""
        target.mkdir()
        for name, inode in (self.names if names == "synced" else self.current_names()).items():
            synced = self.shadow / str(inode)
            content = synced.read_bytes() if synced.exists() else b""
            now = (self.shadow / f"keep-{inode}").read_bytes()
            if data == "current":
                content = now
            elif data == "between" and self.published.get(inode):  # written back some time ago
                content = self.published[inode][len(self.published[inode]) // 2]
            elif data == "zeros":  # the size reached the disk, the bytes did not
                content += bytes(max(0, len(now) - len(content)))
            (target / name).write_bytes(content)


def describe(folder: Path) -> str:
    """The folder's files, for a failed assertion."""
    return json.dumps({path.name: path.stat().st_size for path in sorted(folder.iterdir())}, indent=1)


def copy_folder(source: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
