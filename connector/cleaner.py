"""Clean-up: deleting rows from the out table once they are safe elsewhere.

Lazy, in bounded ID ranges, and checked: only ranges that this process appended, or saw
answered DUPLICATE, are deleted, and the rows that go must be the rows that were appended.
`deleted_through` moves in the same transaction.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from outbox.database import is_lock_timeout
from outbox.errors import DatabaseUnavailable, LateRow, StaleTail
from outbox.queries import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.options import DeleteAfter
    from connector.source import Rows
    from outbox.database import Session

log: Any = structlog.get_logger()

RANGE_ROWS_MAX = 10_000
# While there is a backlog, reading comes first: deletes wait this long at most.
BACKLOG_PATIENCE_SECONDS = 30.0
# Small commits make small ranges: some gather rather than be deleted one by one. Each deletion
# is a commit, and leaves a dead version of the info row that every poll passes over while an
# old snapshot keeps vacuum from removing it (run: 15,000 of them add 0.3 ms to each poll).
GATHER_SECONDS = 0.5
# A sink reports how far it is; rows that wait for it gather for this long at most.
MATERIALIZED_SPAN_SECONDS = 5.0
# A row that someone wrote below `deleted_through` is looked for this often. Rarer when the
# look itself is slow: under a held-back vacuum it passes over every dead row.
LATE_CHECK_SECONDS = 5.0
LATE_CHECK_SHARE = 0.01
SAY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """Rows known to be in the stream: after < id <= through, and what they add up to."""

    after: int
    through: int
    rows: int
    id_sum: int
    version_sum: int
    # When its last rows were appended, and when its first.
    appended_at: float
    begun_at: float

    def joined(self, other: AppendedRange) -> AppendedRange:
        """This range and the one that follows it, as one."""
        assert self.through == other.after, (self, other)
        return replace(
            other,
            after=self.after,
            rows=self.rows + other.rows,
            id_sum=self.id_sum + other.id_sum,
            version_sum=self.version_sum + other.version_sum,
            begun_at=self.begun_at,
        )


def ranges(after: int, rows: Rows, *, leftover: bool = False) -> Iterator[AppendedRange]:
    """The ranges of rows that follow `after`, none with too many rows for one transaction.

    When leftover rows were appended is not known: their own time says it best.
    """
    now = time.monotonic()
    if leftover:
        newest = float(pc.max(rows.events.column("time").cast(pa.int64())).as_py()) / 1e6
        now -= max(0.0, time.time() - newest)
    for start in range(0, rows.events.num_rows, RANGE_ROWS_MAX):
        part = rows.slice(start, RANGE_ROWS_MAX)
        ids = part.events.column(0)
        through = int(ids[-1].as_py())
        yield AppendedRange(after, through, len(ids), _sum(ids), int(pc.sum(part.versions).as_py()), now, now)
        after = through


def _sum(ids: pa.Int64Array) -> int:
    """The sum of IDs. Arrow's wraps at 64 bits, so they are summed as distances from the first."""
    first, last = int(ids[0].as_py()), int(ids[-1].as_py())
    if last - first == len(ids) - 1:
        return (first + last) * len(ids) // 2
    if (last - first) * len(ids) < 2**63:
        return int(pc.sum(pc.subtract(ids, first)).as_py()) + first * len(ids)
    return sum(ids.to_pylist())  # somebody has moved the sequence very far


def nothing_left(after: int, through: int) -> AppendedRange:
    """A range in which the out table has no rows."""
    now = time.monotonic()
    return AppendedRange(after, through, 0, 0, 0, now, now)


class Cleaner:
    """Deletes ranges in a thread of its own, over a session of its own."""

    def __init__(
        self,
        session: Session,
        policy: DeleteAfter,
        materialized_through: Callable[[], int | None],
        settle: Callable[[], int],
    ) -> None:
        self._session = session
        self._policy = policy
        self._materialized_through = materialized_through
        # `Stream.settle`: rows go only when the stream has them durably, whatever it acknowledged them with.
        self._settle = settle
        self._settled_through = 0
        self._deleted_through = 0
        self._ranges: deque[AppendedRange] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._ending = threading.Event()
        self._late_check_due = time.monotonic() + LATE_CHECK_SECONDS
        self._say_due = 0.0
        self._thread = threading.Thread(target=self._work, name="cleaner", daemon=True)
        self.backlog = False
        self._failure: BaseException | None = None
        self.rows_deleted = 0

    def start(self, deleted_through: int) -> None:
        self._deleted_through = deleted_through
        self._thread.start()

    @property
    def deleted_through(self) -> int:
        return self._deleted_through

    def check(self) -> None:
        """Raise what ended the cleaner, if anything did."""
        if self._failure is not None:
            raise self._failure

    def take(self, appended: AppendedRange) -> None:
        """Remember a range that is in the stream now."""
        if self._policy.kind == "never":
            return
        with self._lock:
            last = self._ranges[-1] if self._ranges else None
            if (
                last is not None
                and last.rows + appended.rows <= RANGE_ROWS_MAX
                and appended.appended_at - last.begun_at < self._span_seconds()
            ):
                self._ranges[-1] = last.joined(appended)
            else:
                self._ranges.append(appended)
        self._wake.set()

    def _span_seconds(self) -> float:
        """Over how long a time rows may gather in one range, which is deleted when its last row may be."""
        if self._policy.kind == "age":
            return max(1.0, self._policy.age_seconds / 100)
        return MATERIALIZED_SPAN_SECONDS if self._policy.kind == "materialized" else math.inf

    def finish(self, seconds: float) -> None:
        """Delete what may be deleted now, then end; within `seconds` if it can be helped."""
        self._over = True
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=seconds)

    def _work(self) -> None:
        try:
            while True:
                self._wake.wait(timeout=1.0)
                self._wake.clear()
                over = self._over
                while (due := self._next_due(over=over)) is not None and self._try_to_delete(due):
                    pass
                self._look_for_late_rows()
                if over:
                    return
                self._ending.wait(GATHER_SECONDS)
        except BaseException as error:
            self._failure = error

    def _next_due(self, *, over: bool) -> AppendedRange | None:
        # Outside of the lock, which the appender needs: it reads files.
        materialized_through = (self._materialized_through() or 0) if self._policy.kind == "materialized" else 0
        with self._lock:
            if not self._ranges or not self._is_due(self._ranges[0], materialized_through, over=over):
                return None
            # Taken out before it is settled, so that it does not grow meanwhile.
            first = self._ranges.popleft()
        if first.through > self._settled_through:
            # Outside of the lock too: it may wait for a disk or for replicas.
            self._settled_through = self._settle()
        if first.through <= self._settled_through:
            return first
        with self._lock:
            self._ranges.appendleft(first)
        return None

    def _is_due(self, first: AppendedRange, materialized_through: int, *, over: bool) -> bool:
        """Whether the policy lets a range go."""
        age_seconds = time.monotonic() - first.appended_at
        if self._policy.kind == "age" and age_seconds < self._policy.age_seconds:
            return False
        if self._policy.kind == "materialized" and first.through > materialized_through:
            return False
        return not self.backlog or over or age_seconds >= BACKLOG_PATIENCE_SECONDS

    def _try_to_delete(self, due: AppendedRange) -> bool:
        """Delete a range; False when somebody's lock is in the way, and it has to be tried later."""
        try:
            self._delete(due)
        except DatabaseUnavailable as error:
            if not is_lock_timeout(error.__cause__):
                raise
            with self._lock:
                self._ranges.appendleft(due)
            if time.monotonic() >= self._say_due:
                self._say_due = time.monotonic() + SAY_SECONDS
                log.warning("clean-up waits: a lock on the out table is in its way", through=due.through)
            return False
        return True

    def _delete(self, due: AppendedRange) -> None:
        """Delete a range, or nothing. The info row is locked last: whoever keeps rows of the out
        table locked must not keep the lease from being renewed."""
        session = self._session
        with session.transaction():
            if "clean_digest" in blocks(session.dialect):
                found = session.row("clean_digest", after=due.after, through=due.through)
                gone = session.change("clean_delete", after=due.after, through=due.through)
            else:
                found = session.row("clean_delete", after=due.after, through=due.through)
                gone = int(found[0])
            deleted_through = int(session.value("clean_lock"))
            if deleted_through >= due.through and not gone:
                return  # another relay was here before: fine
            if deleted_through != due.after:
                # Past it: another relay. Below it: the database went back in time under us.
                raise StaleTail(
                    f"the out table is cleaned up through {deleted_through}, our next range begins behind {due.after}"
                )
            rows, distance_sum, version_sum = (int(number) for number in found)
            id_sum = distance_sum + rows * due.after
            if (rows, id_sum, version_sum, gone) != (due.rows, due.id_sum, due.version_sum, due.rows):
                # Rolled back. The start path offers every row again and names the one that differs.
                raise StaleTail(
                    f"rows {due.after + 1} to {due.through} are not what was appended: "
                    f"expected {due.rows} with IDs adding up to {due.id_sum}, found {rows} and {id_sum}"
                )
            session.change("clean_move", through=due.through)
        self._deleted_through = due.through
        self.rows_deleted += due.rows

    def _look_for_late_rows(self) -> None:
        now = time.monotonic()
        if now < self._late_check_due:
            return
        late = self._session.value("late_id", deleted_through=self._deleted_through)
        if late is not None:
            raise late_row(int(late), self._deleted_through)
        done = time.monotonic()
        self._late_check_due = done + max(LATE_CHECK_SECONDS, (done - now) / LATE_CHECK_SHARE)


def late_row(late_id: int, boundary: int) -> LateRow:
    """The error for a row that appeared where everything was relayed and deleted already."""
    return LateRow(
        f"row {late_id} appeared in the out table at or below {boundary}, where every row had been relayed and deleted: "
        "someone wrote an explicit ID, or the sequence was reset. `outbox rebase` gives such rows new IDs; see docs/operations.md"
    )
