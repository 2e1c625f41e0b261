"""A blockade: rows wait behind a gap that a transaction in flight keeps open.

Names the blocker, ends it where that is wished, and tries the barrier where holders cannot
be listed or are never seen absent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from connector.fence import settle
from outbox.database import is_driver_error, one_line
from outbox.errors import OutboxError

if TYPE_CHECKING:
    from connector.fence import Fence
    from connector.options import RelayOptions
    from connector.source import Blocker, Source

# How long a gap may stay open before anybody is asked about it.
QUIET_SECONDS = 1.0
REPEAT_SECONDS = 30.0
YOUNG_SECONDS = 5.0
# A session that idles inside its transaction for this long is not one that works through many.
STUCK_SECONDS = 1.0
BARRIER_PAUSE_SECONDS_MIN = 0.05
BARRIER_PAUSE_SECONDS_MAX = 5.0


class Blockade:
    """What is known of the current blockade, if there is one."""

    def __init__(self, source: Source, options: RelayOptions, log: Any) -> None:
        self._source = source
        self._options = options
        self._log = log
        self._since: float | None = None
        self._at = 0
        # Since when each blocker has been waited for, in the round that ends at `_bound`.
        self._waited_since: dict[str, float] = {}
        self._bound = 0
        # Blockers that could not be ended: said once.
        self._unended: set[str] = set()
        self._look_due = 0.0
        self._say_due = 0.0
        self._barrier_due = 0.0
        self._barrier_pause_seconds = BARRIER_PAUSE_SECONDS_MIN

    def look(self, fence: Fence, tail: int) -> Fence:
        """Rows are held behind `tail`: do what can be done about it."""
        now = time.monotonic()
        if self._since is None or self._at != tail:
            # Under a steady load something is held at every moment; what matters is for how long the same.
            self._since, self._at = now, tail
        if fence.round is None:
            return fence
        waiting_for = fence.round.waiting_for
        if fence.round.bound != self._bound:
            # MariaDB names a session, not its transaction: in another round it may be the next one.
            self._bound, self._waited_since = fence.round.bound, {}
        self._waited_since = {key: self._waited_since.get(key, now) for key in waiting_for}
        if "unlisted" in waiting_for:
            if now - self._since > QUIET_SECONDS and now >= self._say_due:
                self._say_due = now + REPEAT_SECONDS
                self._log.warning(
                    f"held at {tail + 1} by a transaction in flight, which cannot be named: holders of locks cannot be "
                    "listed here, and the barrier waits for all of them",
                    held_at=tail + 1,
                )
            return self._try_barrier(fence, now)
        if now - self._since < QUIET_SECONDS or now < self._look_due:
            return fence
        self._look_due = now + QUIET_SECONDS
        blockers = self._source.blockers(waiting_for)
        if now >= self._say_due and blockers:
            self._say_due = now + REPEAT_SECONDS
            for blocker in blockers:
                self._log.warning(f"held at {tail + 1} by {blocker}", held_at=tail + 1, pid=blocker.pid)
        self._terminate(blockers, tail)
        if blockers and not any(_is_stuck(blocker) for blocker in blockers):
            # Busy sessions that are never seen absent. Not while one is stuck: writers would queue up behind us.
            return self._try_barrier(fence, now)
        return fence

    def is_young(self) -> bool:
        """Whether what is held has been so for a moment only: then it pays to look often."""
        return self._since is not None and time.monotonic() - self._since < YOUNG_SECONDS

    def lift(self) -> None:
        """Nothing is held any more."""
        self._since = None
        self._barrier_pause_seconds = BARRIER_PAUSE_SECONDS_MIN

    def _try_barrier(self, fence: Fence, now: float) -> Fence:
        if now < self._barrier_due:
            return fence
        held = self._source.barrier()
        if held is not None:
            self._barrier_pause_seconds = BARRIER_PAUSE_SECONDS_MIN
            return settle(fence, *held)
        self._barrier_pause_seconds = min(self._barrier_pause_seconds * 2, BARRIER_PAUSE_SECONDS_MAX)
        self._barrier_due = time.monotonic() + self._barrier_pause_seconds
        return fence

    def _terminate(self, blockers: list[Blocker], tail: int) -> None:
        limit_seconds = self._options.terminate_blocker_after_seconds
        if limit_seconds is None:
            return
        for blocker in blockers:
            # Counted from when it was first in the way: a transaction may be long and emit last.
            waited_seconds = time.monotonic() - self._waited_since[blocker.key]
            if waited_seconds <= limit_seconds or blocker.key in self._unended:
                continue
            trouble = self._end(blocker)
            if trouble is not None:
                self._unended.add(blocker.key)
            done = "terminated" if trouble is None else f"could not terminate ({trouble})"
            self._log.warning(f"{done} {blocker}, which held the stream at {tail + 1}", held_at=tail + 1)

    def _end(self, blocker: Blocker) -> str | None:
        """End a blocker's session; why not, if it cannot be done."""
        try:
            return None if self._source.terminate(blocker) else "it has no session"
        except Exception as error:
            # It has ended by itself, or we may not end it: then the relay waits on.
            if isinstance(error, OutboxError) or not is_driver_error(error):
                raise
            return one_line(error)


def _is_stuck(blocker: Blocker) -> bool:
    """Whether waiting for this blocker behind a lock would keep other writers waiting for long."""
    return blocker.pid is None or ("idle" in blocker.state and (blocker.seconds or 0.0) >= STUCK_SECONDS)
