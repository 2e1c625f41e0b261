"""Keeping a read within a bound of bytes where the driver cannot stream it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from outbox.database import Session

# A read is in memory several times over: as packets, as Python objects, as Arrow, and twice
# more in the appender's queue.
READ_BYTES_MAX = 16 * 2**20
# Fewer rows than this are read without asking for their size first.
UNASKED_ROWS = 16
# How much more a read may take than the one before. Asking for the size of many large rows
# costs as much as reading them, so it begins small.
GROWTH = 8


class ReadSize:
    """How many rows the next read may take, learnt from the reads before it."""

    def __init__(self) -> None:
        self._rows = UNASKED_ROWS

    def rows_within(self, session: Session, after: int, through: int, limit_rows: int) -> int:
        """How many of the next rows may be read at once; at least one."""
        limit_rows = min(limit_rows, self._rows)
        while limit_rows > UNASKED_ROWS:
            rows, size_bytes = session.row("read_size", after=after, through=through, limit_rows=limit_rows)
            if size_bytes <= READ_BYTES_MAX:
                return limit_rows
            # By their average, and asked again: the first rows may be the largest.
            limit_rows = min(int(rows) // 2, int(rows * READ_BYTES_MAX / float(size_bytes)))
        return max(limit_rows, 1)

    def learn(self, events: pa.RecordBatch) -> None:
        """Take in what a read has brought."""
        fitting_rows = int(events.num_rows * READ_BYTES_MAX / max(events.nbytes, 1))
        self._rows = max(1, min(max(self._rows, events.num_rows * GROWTH), fitting_rows))
