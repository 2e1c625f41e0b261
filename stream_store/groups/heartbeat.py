"""The thread beside a member's own: it says that the member lives, also while a handler takes its time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Heartbeat:
    """Calls `tend` again and again. What it raises ends the thread, and is the member's to raise."""

    def __init__(self, group_name: str, rest_seconds: float, tend: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._rest_seconds = rest_seconds
        self._tend = tend
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox group {group_name}", daemon=True)
        self._thread.start()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._rest_seconds):
                self._tend()
        except BaseException as error:
            self.error = error
