"""A place in a stream as people write it: an ID, a time, `earliest`, `latest`. Both ends inclusive."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from outbox.errors import UsageError

if TYPE_CHECKING:
    from stream_store.stream import Readable

EARLIEST, LATEST = "earliest", "latest"


def start_after(stream: Readable, text: str, name: str) -> int:
    """The ID to read after, so that the first event is the one at a place."""
    if text == EARLIEST:
        return stream.info().trimmed_through
    if text == LATEST:
        return stream.tail()
    place = parse_place(text, name, words=f", {EARLIEST}, {LATEST}")
    return (max(place, 1) if isinstance(place, int) else stream.find(place)) - 1


def end_through(stream: Readable, text: str, name: str) -> int:
    """The ID to read through, so that the last event is the one at a place."""
    place = parse_place(text, name)
    # The last event at or before a time comes just before the first that is later.
    return place if isinstance(place, int) else stream.find(place + timedelta(microseconds=1)) - 1


def require_order(start: str, end: str, names: tuple[str, str]) -> None:
    """Refuse a range that ends before it begins, as far as that can be told without the stream."""
    if start in (EARLIEST, LATEST):
        return
    first, last = parse_place(start, names[0], words=f", {EARLIEST}, {LATEST}"), parse_place(end, names[1])
    if isinstance(first, int) == isinstance(last, int) and first > last:  # type: ignore[operator]
        raise UsageError(f"{names[0]} {start} {names[1]} {end} ends before it begins: swap them")


def parse_place(text: str, name: str, words: str = "") -> int | datetime:
    """An ID, or a time in ISO 8601, which is in UTC unless it says otherwise."""
    if re.fullmatch(r"\d{1,19}", text):
        # Eight digits could be a date without dashes, but IDs are far more common.
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name} {text!r}: give an ID, a time such as 2026-03-01T12:00:00Z{words}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
