"""What the machine itself adds: a process that only sleeps, and by how much it oversleeps."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NAP_SECONDS = 0.002


class Sleeper:
    """Sleeps in a process of its own until it is told to stop; `late_ms` then has each lateness."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_sleep, args=(theirs,), daemon=True)
        self.late_ms: list[float] = []

    def __enter__(self) -> Sleeper:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send("over")
        self.late_ms = self._ours.recv()
        self._process.join()


def _sleep(connection: Connection) -> None:
    late_ms: list[float] = []
    while not connection.poll():
        before = time.perf_counter()
        time.sleep(NAP_SECONDS)
        late_ms.append((time.perf_counter() - before - NAP_SECONDS) * 1e3)
    connection.send(late_ms)
