"""The main loop of a relay that leads: list, read, decide, hand over.

One turn: the sequence's last value, then the lock's holders, then the rows, then the sequence
again, in this order, because the fence's proof needs it. Close to the end of the table a turn
is one trip to the database (`look`); a backlog is read in large strides (`read`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connector.blockade import Blockade
from connector.fence import Fence, admit, observe
from connector.start import check_sequence
from outbox.errors import ExplicitId, StaleTail

if TYPE_CHECKING:
    import threading

    import pyarrow as pa

    from connector.appender import Appender
    from connector.cleaner import Cleaner
    from connector.lease import Lease
    from connector.options import RelayOptions
    from connector.source import Rows, Source
    from connector.start import Started

PAUSE_SECONDS_MIN = 0.0005
HELD_PAUSE_SECONDS = 0.004
REPORT_SECONDS = 10.0
# Rows above the sequence, with IDs written by hand, are looked for this often.
LOOK_SECONDS = 5.0
# From here on reading and appending come before deleting.
BACKLOG_ROWS = 10_000
HELD_ROWS = 100
# As many rows as this, at most, come in one trip with everything else. More are a backlog, and
# read as Arrow in parts: rows of a megabyte must not fill the memory.
LOOK_ROWS = 32


class Follower:
    """Follows the out table from where the start path left off."""

    def __init__(self, options: RelayOptions, source: Source, started: Started, log: Any) -> None:
        self._options = options
        self._source = source
        self._log = log
        self._blockade = Blockade(source, options, log)
        self._fence = Fence()
        self._standing = started.standing
        # The last ID handed over to the appender.
        self._tail = started.tail
        # Every ID through this one is handed over or dead: there is nothing to read below it.
        self._empty_through = 0
        # Where a gap held the last read, and what was settled then.
        self._held_at: tuple[int, int] | None = None
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._report_due = 0.0
        self._look_due = 0.0

    def run(self, appender: Appender, cleaner: Cleaner, lease: Lease, stop: threading.Event, *, once: bool) -> None:
        """Relay until told to stop or, with `once`, until nothing visible is left."""
        expecting = True
        while not stop.is_set():
            for party in (lease, appender, cleaner):
                party.check()
            self._guard()
            before = self._tail
            waiting = self._standing.drawn - self._tail
            cleaner.backlog = waiting >= BACKLOG_ROWS
            if waiting > LOOK_ROWS:
                seen, held = self._read(appender, lease, stop)
            elif once or expecting or self._may_have_rows():
                seen, held = self._look(appender)
            else:
                seen, held = 0, False
            if once and not seen:
                return
            if held:
                self._fence = self._blockade.look(self._fence, self._tail)
            else:
                self._blockade.lift()
            self._report()
            progressed = self._tail > before
            self._pause(stop, progressed=progressed, held=held, backlog=cleaner.backlog)
            # Where rows were just now there will be more; else a glance at the sequence is enough.
            expecting = progressed or held
            if not expecting:
                self._standing = self._source.standing()

    def _guard(self) -> None:
        """What must hold between database and stream, after each look at the database."""
        deleted_through = self._standing.deleted_through
        if deleted_through > self._tail:
            raise StaleTail(f"another relay has cleaned up through {deleted_through}, we have handed over {self._tail}")
        check_sequence(self._standing.drawn, self._tail)

    def _may_have_rows(self) -> bool:
        """Whether there can be rows by the sequence; it does not know of IDs written by hand."""
        return self._standing.drawn > max(self._tail, self._empty_through) or time.monotonic() >= self._look_due

    def _look(self, appender: Appender) -> tuple[int, bool]:
        """Take the few rows at the end of the table, if any: rows seen, and whether some are held."""
        self._look_due = time.monotonic() + LOOK_SECONDS
        look = self._source.look(self._tail, min(LOOK_ROWS, self._options.batch_rows))
        self._fence = observe(self._fence, look.before.drawn, look.holders)
        self._standing = look.after
        if look.rows is None:
            self._empty_through = self._fence.settled_through
            return 0, False
        return look.rows.events.num_rows, self._hand_over(look.rows, appender)

    def _read(self, appender: Appender, lease: Lease, stop: threading.Event) -> tuple[int, bool]:
        """Read a backlog once and hand over what the fence admits, part by part as it comes.

        The parts are of one snapshot, so what is looked up after the first holds for all.
        """
        self._standing = self._source.standing()
        self._guard()
        self._list_holders()
        settled_through, seen = self._fence.settled_through, 0
        self._look_due = time.monotonic() + LOOK_SECONDS
        # A gap that is still open keeps everything behind it: a look is enough until that changes.
        still_held = self._held_at == (self._tail, settled_through)
        limit_rows = min(HELD_ROWS, self._options.batch_rows) if still_held else self._options.batch_rows
        with contextlib.closing(self._source.read(self._tail, limit_rows)) as parts:
            for rows in parts:
                if not seen:
                    self._standing = self._source.standing()
                    self._source.make_durable(self._standing)
                seen += rows.events.num_rows
                if self._hand_over(rows, appender):
                    return seen, True
                if stop.is_set():
                    break
                lease.check()
        if not seen:
            self._empty_through = settled_through
        return seen, False

    def _list_holders(self) -> None:
        if self._standing.drawn > self._fence.settled_through:
            self._fence = observe(self._fence, self._standing.drawn, self._source.holders())

    def _hand_over(self, rows: Rows, appender: Appender) -> bool:
        """Give the appender what the fence admits; whether some of the rows are held."""
        admitted = self._admit(rows)
        if admitted:
            self._tail = appender.take(self._tail, rows.slice(0, admitted))
        if admitted < rows.events.num_rows:
            self._held_at = (self._tail, self._fence.settled_through)
            return True
        return False

    def _admit(self, rows: Rows) -> int:
        """How many of the rows may be appended, once nothing about them is odd."""
        self._guard()
        ids = _Ids(rows.events.column(0))
        if ids[-1] > self._standing.drawn:
            raise ExplicitId(
                f"row {ids[-1]} lies above the sequence, which stands at {self._standing.drawn}: someone wrote an explicit "
                "ID, and IDs that the sequence gives out later would lie below it. Delete that row and emit it anew, or "
                "move the sequence past it; see docs/operations.md"
            )
        return admit(self._fence, self._tail, self._standing.deleted_through, ids)

    def _pause(self, stop: threading.Event, *, progressed: bool, held: bool, backlog: bool) -> None:
        """Go on at once in a backlog, soon after progress, and ever more slowly when idle."""
        longest_seconds = self._options.idle_poll_seconds
        if held and self._blockade.is_young():
            # Writers that begin again at once are absent only for a moment, which must be seen.
            longest_seconds = min(HELD_PAUSE_SECONDS, longest_seconds)
        if progressed:
            self._pause_seconds = PAUSE_SECONDS_MIN
            if backlog:
                return
        stop.wait(self._pause_seconds)
        if not progressed:
            self._pause_seconds = min(self._pause_seconds * 1.5, longest_seconds)

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            standing = self._standing
            self._log.debug("relaying", tail=self._tail, drawn=standing.drawn, deleted_through=standing.deleted_through)


class _Ids(Sequence[int]):
    """An Arrow column of IDs as plain integers, one at a time: the fence bisects it."""

    def __init__(self, column: pa.Int64Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, position: Any) -> Any:
        return self._column[position].as_py()
