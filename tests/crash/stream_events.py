"""Batches of events for the stream tests: content follows from the ID, so that it can be checked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.batch import SCHEMA, EventBatch
from stream_store.file.stream import FileStream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stream_store import Stream

EPOCH = datetime(2024, 5, 1, tzinfo=UTC)


def row(event_id: int, salt: str = "", at: datetime | None = None) -> dict[str, object]:
    """One event. Every third has binary data, every fifth is a tombstone."""
    kind = event_id % 5
    return {
        "id": event_id,
        "type": f"order.{event_id % 3}",
        "subject": None if event_id % 4 == 0 else f"order-{event_id}",
        "data": f'{{"n":{event_id},"é":"{salt}"}}' if kind not in (0, 3) else None,
        "data_bytes": bytes([event_id % 256, 0, 255]) + salt.encode() if kind == 3 else None,
        "datacontenttype": "application/avro" if kind == 3 else None,
        "headers": '{"traceparent":"00"}' if event_id % 2 else None,
        "time": at or EPOCH + timedelta(seconds=event_id),
    }


def batch(ids: Iterable[int], prev_id: int | None = None, salt: str = "", at: datetime | None = None) -> EventBatch:
    """The events with these IDs, following `prev_id`, or the ID just below the first."""
    rows = [row(event_id, salt, at) for event_id in ids]
    first = rows[0]["id"]
    assert isinstance(first, int)
    return EventBatch(first - 1 if prev_id is None else prev_id, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def ids_of(batches: Iterable[EventBatch]) -> list[int]:
    return [event_id for part in batches for event_id in part.ids.to_pylist()]


def rows_of(batches: Iterable[EventBatch]) -> list[dict[str, object]]:
    return [event for part in batches for event in part.rows.to_pylist()]


def chain_of(batches: Iterable[EventBatch]) -> list[tuple[int, int]]:
    """(prev_id, last_id) of each batch."""
    return [(part.prev_id, part.last_id) for part in batches]


def assert_chained(batches: list[EventBatch], after: int) -> None:
    for part in batches:
        assert part.prev_id == after
        after = part.last_id


def wait_until_tidy(stream: Stream) -> None:
    """Sealed segments are tidied beside the appends, and closing does not wait for all of them."""
    assert isinstance(stream, FileStream)
    stream._writer._tidier.wait()
