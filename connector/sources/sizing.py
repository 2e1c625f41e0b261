"""Keeping a read within a bound of bytes where the driver cannot stream it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.database import Session

READ_BYTES_MAX = 32 * 2**20
# Fewer rows than this are read without asking for their size first.
UNASKED_ROWS = 64


def rows_within(session: Session, after: int, through: int, limit_rows: int) -> int:
    """How many of the next rows may be read at once; at least one."""
    while limit_rows > UNASKED_ROWS:
        rows, size_bytes = session.row("read_size", after=after, through=through, limit_rows=limit_rows)
        if size_bytes <= READ_BYTES_MAX:
            return limit_rows
        limit_rows = max(min(int(rows) // 2, int(limit_rows * READ_BYTES_MAX / float(size_bytes))), UNASKED_ROWS)
    return max(limit_rows, 1)
