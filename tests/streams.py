"""Streams written directly, without a database: what the sink's tests read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from outbox.batch import SCHEMA, EventBatch
from stream_store import Outcome, open_stream

EPOCH = datetime(2024, 5, 1, tzinfo=UTC)
OUTBOX_ID = "6f6b4b1e-0000-4000-8000-000000000001"
SOURCE = "/tests"


def write_stream(
    url: str,
    events: Iterable[Mapping[str, Any]],
    *,
    frame_rows: int = 1000,
    outbox_id: str = OUTBOX_ID,
    source: str = SOURCE,
) -> int:
    """Append events to the stream at a URL, made when it is not there; its tail.

    An event needs only what matters to the test. Left out: `id` is the next one (an ID that is
    jumped over is dead), `type` is "order.paid", `time` is a second per ID after EPOCH. `data`
    that is not a string becomes JSON; None for it, or nothing, makes a tombstone.
    """
    with open_stream(url, "write") as stream:
        stream.bind(outbox_id, source)
        rows = _rows(events, stream.tail())
        while frame := list(itertools.islice(rows, frame_rows)):
            batch = EventBatch(stream.tail(), pa.RecordBatch.from_pylist(frame, schema=SCHEMA))
            answer = stream.append(batch)
            assert answer.outcome is Outcome.APPENDED, answer
        return stream.tail()


def _rows(events: Iterable[Mapping[str, Any]], last_id: int) -> Iterable[dict[str, Any]]:
    for event in events:
        last_id = event.get("id", last_id + 1)
        row = {"type": "order.paid", "time": EPOCH + timedelta(seconds=last_id), **event, "id": last_id}
        for name in ("data", "headers"):
            if row.get(name) is not None and not isinstance(row[name], str):
                row[name] = json.dumps(row[name], ensure_ascii=False, separators=(",", ":"))
        yield row
