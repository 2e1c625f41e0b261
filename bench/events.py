"""Batches of events of about 200 bytes, made without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.fill import json_of
from outbox.batch import SCHEMA, EventBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_ROWS = 50_000


def batches(rows: int, batch_rows: int = BATCH_ROWS) -> Iterator[EventBatch]:
    """Events 1 to `rows`. The texts repeat from batch to batch: making them is not what is measured."""
    columns = _columns(min(rows, batch_rows))
    for after in range(0, rows, batch_rows):
        count = min(batch_rows, rows - after)
        ids = pa.array(range(after + 1, after + count + 1), pa.int64())
        yield EventBatch(after, pa.record_batch([ids, *(column.slice(0, count) for column in columns)], schema=SCHEMA))


def _columns(count: int) -> list[pa.Array]:
    now = datetime.now(UTC)
    return [
        pa.array(["order.placed"] * count, pa.string()),
        pa.array([f"order-{n}" for n in range(count)], pa.string()),
        pa.array([json_of(n) for n in range(count)], pa.string()),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
        pa.array([now] * count, pa.timestamp("us", tz="UTC")),
    ]
