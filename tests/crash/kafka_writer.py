"""A writer of a Kafka stream in a process of its own that is killed exactly at a step of its producer.

Not by a fork of the test: the Kafka client has threads, and does not live through one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import wraps
from typing import TYPE_CHECKING, Any

from stream_store.kafka.clients import Clients
from tests.crash.stream_relay import append_and_acknowledge

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, "stream_store.kafka.stream"])

DEADLINE_SECONDS = 60


def run_and_kill(url: str, last: int, step: str, when: str, nth: int) -> tuple[bool, int]:
    """Append to `last`; whether the process was killed on the way, and the tail that was acknowledged to it."""
    receiving, sending = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_main, args=(url, last, step, when, nth, sending), daemon=True)
    process.start()
    sending.close()
    acknowledged = 0
    while True:
        try:
            acknowledged = receiving.recv()
        except EOFError:
            break
    process.join(DEADLINE_SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL), f"the writer failed by itself: {process.exitcode}"
    return process.exitcode != 0, acknowledged


def _main(url: str, last: int, step: str, when: str, nth: int, sending: Connection) -> None:
    make, calls = Clients.producer, 0

    def stepping(original: Any) -> Any:
        @wraps(original)
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            at = calls == nth
            if at and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*given, **named)
            if at and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    class Stepping:
        """The producer, which is the client's own class and cannot be changed."""

        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._producer, name)
            return stepping(found) if name == step else found

        def __len__(self) -> int:
            return len(self._producer)

    Clients.producer = lambda self, **options: Stepping(make(self, **options))  # type: ignore[method-assign,assignment,return-value]
    append_and_acknowledge(url, last, sending.send)
