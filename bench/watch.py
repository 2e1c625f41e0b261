"""When the stream became durable through which ID, as another process sees it.

The writer overwrites the stream's mark after each sync. The kernel tells us so (inotify):
no polling, which would take a core from what is measured.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from stream_store import open_stream
from stream_store.file.mark import MARK_NAME

if TYPE_CHECKING:
    from pathlib import Path

_IN_MODIFY = 0x2
_IN_CLOEXEC = 0o2000000


class Watch:
    """Notes (tail, nanoseconds) at each change of a file stream's mark, in a thread."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(_IN_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(folder / MARK_NAME), _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch the mark of {folder}")
        self._stream = open_stream(f"file://{folder}", "read")
        self._over = False
        self._changed = threading.Condition()
        self.tails: list[int] = [self._stream.tail()]
        self.times_ns: list[int] = [time.time_ns()]
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over:
            readable, _, _ = select.select([self._fd], [], [], 0.2)
            if readable:
                os.read(self._fd, 65536)
            tail, now_ns = self._stream.tail(), time.time_ns()
            if tail > self.tails[-1]:
                with self._changed:
                    self.tails.append(tail)
                    self.times_ns.append(now_ns)
                    self._changed.notify_all()

    def wait_for(self, event_id: int, seconds: float = 60.0) -> int:
        """The nanoseconds at which the event was first seen to be durable."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.tails[-1] >= event_id, seconds):
                raise RuntimeError(f"event {event_id} did not reach the stream in {seconds} s")
        return self.durable_at_ns(event_id)

    def durable_at_ns(self, event_id: int) -> int:
        return self.times_ns[bisect_left(self.tails, event_id)]

    def close(self) -> None:
        self._over = True
        self._thread.join()
        os.close(self._fd)
        self._stream.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
