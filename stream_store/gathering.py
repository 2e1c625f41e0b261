"""Putting small batches together: lines, appends and syncs cost least by the ten thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.batch import concatenate
from outbox.errors import OutboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from outbox.batch import EventBatch

GATHER_ROWS = 50_000
GATHER_BYTES = 32 << 20


def gather(batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """The same events in larger batches, where the chain from one to the next is whole."""
    held: list[EventBatch] = []
    rows = size_bytes = 0
    try:
        for batch in batches:
            rows += len(batch)
            size_bytes += batch.rows.nbytes
            if held and (rows > GATHER_ROWS or size_bytes > GATHER_BYTES or batch.prev_id != held[-1].last_id):
                yield concatenate(held)
                held, rows, size_bytes = [], len(batch), batch.rows.nbytes
            held.append(batch)
    except OutboxError:
        if held:  # what comes before the damage
            yield concatenate(held)
        raise
    if held:
        yield concatenate(held)
