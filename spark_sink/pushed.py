"""Conditions of a query that narrow what has to be read of a stream.

They may only leave out what the query would leave out anyway: times are not in ID order, so
`time >= t` gives a first ID (no earlier event is at or after t), and `time <= t` gives none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_store import Stream


class Pushed:
    """A lower and an upper ID, a lower time, and types."""

    def __init__(self) -> None:
        self.after = 0
        self.through: int | None = None
        self.since: datetime | None = None
        self.types: tuple[str, ...] = ()

    def take(self, condition: Any) -> None:
        """Narrow by one of Spark's `Filter`s, if it is of a kind that helps."""
        column, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
        kind = type(condition).__name__
        if column == ("id",) and isinstance(value, int):
            self._take_id(kind, value)
        elif column == ("time",) and isinstance(value, datetime):
            self._take_time(kind, value)
        elif column == ("type",):
            self._take_type(kind, value)

    def narrowed(self, stream: Stream, after: int, through: int) -> tuple[int, int]:
        after = max(after, self.after)
        if self.since is not None:
            after = max(after, stream.find(self.since) - 1)
        return after, through if self.through is None else min(through, self.through)

    def _take_id(self, kind: str, value: int) -> None:
        if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
            self.after = max(self.after, value - (kind != "GreaterThan"))
        if kind in ("LessThan", "LessThanOrEqual", "EqualTo"):
            through = value - (kind == "LessThan")
            self.through = through if self.through is None else min(self.through, through)

    def _take_time(self, kind: str, value: datetime) -> None:
        if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
            time = value if value.tzinfo else value.replace(tzinfo=UTC)
            self.since = time if self.since is None else max(self.since, time)

    def _take_type(self, kind: str, value: Any) -> None:
        values = {"EqualTo": (value,), "In": value, "StringStartsWith": (f"{value}*",)}.get(kind)
        # A type that holds a wildcard itself cannot be written as a pattern.
        if not self.types and values and all(isinstance(one, str) for one in values):
            plain = [one.removesuffix("*") if kind == "StringStartsWith" else one for one in values]
            if not any(mark in one for one in plain for mark in "*?"):
                self.types = tuple(values)
