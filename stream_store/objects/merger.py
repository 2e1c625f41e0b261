"""The writer's merging, in a thread of its own beside the appends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from outbox.errors import Terminal, Transient, UsageError

if TYPE_CHECKING:
    from stream_store.objects.changes import Changes

# The newest batches are left alone: readers are just at them.
_SPARED_SHARE = 16


class Merger:
    """Merges whenever so many batches have been appended. Its failures never fail an append, but damage does."""

    def __init__(self, changes: Changes, merge_objects: int) -> None:
        self._changes = changes
        self._merge_objects = merge_objects
        self._appended = 0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Terminal | None = None

    def count(self) -> None:
        """One more batch. The first of them brings what an earlier run has left to do."""
        if self._failure is not None:
            raise self._failure
        self._appended += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="outbox-merge", daemon=True)
            self._thread.start()
        elif self._appended < self._merge_objects:
            return
        self._appended = 0
        self._wake.set()

    def close(self) -> None:
        """Wait for the merge that is under way: its work is bounded."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                while not self._stop.is_set() and self._changes.merge(
                    self._merge_objects, self._merge_objects // _SPARED_SHARE
                ):
                    pass
                # After merging: what a crash left for the state that was next then is known to be void now.
                self._changes.sweep()
            except Transient:
                # The store is away: the appends say so themselves, and the next wake tries again.
                continue
            except UsageError:
                # The store lets us in no more; the appends say that, too.
                continue
            except Terminal as error:
                self._failure = error
                return
