"""The in-memory outbox, as an application's unit test uses it."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime

import pytest

from outbox import Event, InvalidEvent, MemoryOutbox, Outbox


def place_order(outbox: Outbox, connection: object) -> None:
    """The code under test: it knows nothing of MemoryOutbox."""
    outbox.emit(connection, type="order.placed", subject="o-17", data={"total": 12})
    outbox.emit(connection, type="order.paid", subject="o-17", data_bytes=b"\x01", datacontenttype="application/avro")


def test_events_are_kept_with_rising_ids():
    outbox = MemoryOutbox(source="shop")
    place_order(outbox, None)
    placed, paid = outbox.events
    assert (placed.id, placed.prev_id, placed.type, placed.subject, placed.data) == (
        1,
        0,
        "order.placed",
        "o-17",
        {"total": 12},
    )
    assert (paid.id, paid.prev_id, paid.data_bytes, paid.source) == (2, 1, b"\x01", "shop")
    assert placed.time is not None
    assert placed.time.tzinfo is UTC


def test_clear_forgets_events_but_not_the_ids():
    outbox = MemoryOutbox()
    place_order(outbox, None)
    outbox.clear()
    assert outbox.events == []
    outbox.emit(None, type="t")
    assert [(event.id, event.prev_id) for event in outbox.events] == [(3, 2)]


def test_bad_events_are_refused_as_by_the_real_one():
    outbox = MemoryOutbox(max_data_bytes=10)
    for bad in ({"type": ""}, {"type": "t", "data": float("nan")}, {"type": "t", "data": "x" * 20}):
        with pytest.raises(InvalidEvent):
            outbox.emit(None, **bad)
    with pytest.raises(InvalidEvent, match="event 1"):
        outbox.emit_many(None, [{"type": "t"}, {"type": ""}])
    assert outbox.events == []


def test_emit_many_takes_dicts_and_events():
    outbox = MemoryOutbox()
    time = datetime(2026, 3, 1, tzinfo=UTC)
    outbox.emit_many(
        None, [{"type": "a", "data": [1]}, Event(99, "b", "s", data_json="[ 2 ]", headers={"h": 1}, time=time)]
    )
    first, second = outbox.events
    assert (first.type, first.data) == ("a", [1])
    assert second == Event(2, "b", "s", data_json="[ 2 ]", headers={"h": 1}, time=time, prev_id=1)


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(InvalidEvent, match=r"event 0 .*'topic'"):
        MemoryOutbox().emit_many(None, [{"type": "t", "topic": "x"}])
    with pytest.raises(InvalidEvent, match="type is missing"):
        MemoryOutbox().emit_many(None, [{"subject": "x"}])


def test_async_and_deferred_emit_are_there_too():
    outbox = MemoryOutbox()

    async def work() -> None:
        await outbox.emit_async(None, type="a")
        await outbox.emit_many_async(None, [{"type": "b"}])

    asyncio.run(work())
    outbox.emit(None, type="c", deferred=True)
    assert [event.type for event in outbox.events] == ["a", "b", "c"]


def test_signatures_are_those_of_the_real_one():
    for name in ("emit", "emit_many", "emit_async", "emit_many_async", "__init__"):
        assert inspect.signature(getattr(MemoryOutbox, name)) == inspect.signature(getattr(Outbox, name))
