"""What the Redis client does by itself: XADD in pipelines, and XRANGE, with no stream of ours around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis

    from outbox.batch import EventBatch

# As many commands in one trip as one of our scripts appends events.
PIPELINE = 1_000
PAGE = 5_000


def append_all(client: redis.Redis, key: str, batches: list[EventBatch]) -> float:
    """Events per second into one stream key. The events are Python objects before the clock starts."""
    rows = [row for batch in batches for row in batch.rows.to_pylist()]
    entries = [
        (f"{row['id']}-0", {name: _plain(value) for name, value in row.items() if name != "id" and value is not None})
        for row in rows
    ]
    started = time.perf_counter()
    for start in range(0, len(entries), PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for entry_id, fields in entries[start : start + PIPELINE]:
            pipeline.xadd(key, fields, id=entry_id)
        pipeline.execute()
    return len(entries) / (time.perf_counter() - started)


def read_all(client: redis.Redis, key: str) -> float:
    """Entries per second out of it, as the client library hands them over."""
    started, after, count = time.perf_counter(), "-", 0
    while entries := client.xrange(key, after, "+", count=PAGE):
        count += len(entries)
        after = f"({entries[-1][0].decode()}"
    return count / (time.perf_counter() - started)


def _plain(value: object) -> object:
    return value if isinstance(value, str | bytes) else str(value)
