"""Retention beside a relay: what the stream need not keep is trimmed once in a while.

The relay is the one that may write the stream, so it is the one that trims it (`retain = "30d"`).
A trim that fails is said and tried again; the relay goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from outbox.errors import OutboxError
from stream_store.retention import Watch, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream_store.retention import Choice, Policy
    from stream_store.stream import Stream

FIRST_SECONDS = 5.0
LOOK_SECONDS = 300.0


class Retainer:
    """Applies a policy in a thread of its own, as long as the relay leads."""

    def __init__(self, stream: Stream, policy: Policy, deleted_through: Callable[[], int], log: Any) -> None:
        self._stream = stream
        self._policy = policy
        self._deleted_through = deleted_through
        self._log = log
        self._watch = Watch()
        self._over = threading.Event()
        self._held: object = None
        self._thread = threading.Thread(target=self._work, name="retainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> Choice:
        """Trim what may go now."""
        choice = plan(self._stream, self._policy, deleted_through=self._deleted_through(), watch=self._watch)
        if choice.through > choice.trimmed_through:
            self._stream.trim(choice.through)
            trimmed_through = self._stream.info().trimmed_through
            if trimmed_through > choice.trimmed_through:
                self._log.info("trimmed the stream", trimmed_through=trimmed_through)
        held = [(hold.kind, hold.name) for hold in choice.held_by]
        if held != self._held:
            self._held = held
            for hold in choice.held_by:
                self._log.warning(
                    "retention waits", wanted=choice.wanted, held_by=f"{hold.kind} {hold.name}", at=hold.through
                )
        for hold in choice.passed_over:
            self._log.warning(
                "retention passes over a reader that has been silent for too long",
                reader=f"{hold.kind} {hold.name}", at=hold.through, silent_seconds=round(hold.silent_seconds or 0),
            )  # fmt: skip
        return choice

    def _work(self) -> None:
        pause_seconds = FIRST_SECONDS
        while not self._over.wait(pause_seconds):
            pause_seconds = LOOK_SECONDS
            try:
                self.look()
            except OutboxError as error:
                self._log.warning("the stream was not trimmed", reason=str(error))
