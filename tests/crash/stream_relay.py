"""What a relay does with a file stream, and what must hold afterwards whatever happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream_store import Outcome, check, open_stream
from tests.crash.stream_events import assert_chained, batch, row, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = "?segment_bytes=2500"


def append_and_acknowledge(url: str, last: int, acknowledge: Callable[[int], None]) -> None:
    """What a relay does: open, bind, and append from the tail on, in threes."""
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        acknowledge(stream.tail())
        while stream.tail() < last:
            tail = stream.tail()
            answer = stream.append(batch(range(tail + 1, tail + 4)))
            assert answer.outcome is Outcome.APPENDED
            acknowledge(answer.tail)


def assert_whole(url: str, acknowledged: int, context: str = "") -> int:
    """Everything acknowledged is there once, the chain holds, and appends go on. Returns the tail."""
    with open_stream(url, "write") as stream:
        tail = stream.tail()
        assert tail >= acknowledged, context
        batches = list(stream.read(0))
        assert_chained(batches, 0)
        assert rows_of(batches) == [row(event_id) for event_id in range(1, tail + 1)], context
        if tail:
            again = max(1, tail - 4)
            assert stream.append(batch(range(again, tail + 1))).outcome is Outcome.DUPLICATE
        assert stream.append(batch([tail + 1])).outcome is Outcome.APPENDED
    found = check(url)
    assert found.ok, found.damage
    assert (found.events, found.dead_ids, found.unacknowledged_bytes) == (tail + 1, 0, 0)
    return tail
