"""What one relay is told: which out table into which stream, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outbox.errors import UsageError

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl
    from outbox.names import OutTable
    from stream_store.retention import Policy

_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_seconds(text: str) -> float:
    """`250ms`, `30s`, `5m`, `24h`, `7d`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a duration: write a number and a unit, as in 250ms, 30s, 5m, 24h, 7d")
    return float(match[1]) * _SECONDS_OF_UNIT[match[2]]


@dataclass(frozen=True, slots=True)
class DeleteAfter:
    """When a relayed row may be deleted from the out table."""

    kind: str = "durable"
    age_seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> DeleteAfter:
        """`durable`, `materialized`, `never`, or a duration such as `24h`."""
        if text in ("durable", "materialized", "never"):
            return cls(text)
        try:
            return cls("age", parse_duration_seconds(text))
        except UsageError:
            raise UsageError(
                f"{text!r}: rows are deleted after durable, materialized, never or a duration (24h)"
            ) from None


def parse_on_blocker(text: str) -> float | None:
    """`wait`, or `terminate after 5m`: None, or the seconds after which to terminate."""
    if text.strip() == "wait":
        return None
    match = re.fullmatch(r"\s*terminate after (.+)", text)
    if not match:
        raise UsageError(f"{text!r}: on_blocker is `wait` or `terminate after DURATION`")
    return parse_duration_seconds(match[1])


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """One out table, one stream, and the relay's habits."""

    database: DatabaseUrl
    table: OutTable
    stream: str
    delete_after: DeleteAfter = field(default_factory=DeleteAfter)
    terminate_blocker_after_seconds: float | None = None
    # `auto` lists lock holders and falls back to the barrier where they cannot be listed.
    fence: str = "auto"
    # Of one read, which comes in parts of bounded size: more rows than it takes to keep both ends busy.
    batch_rows: int = 1_000_000
    idle_poll_seconds: float = 0.08
    lease_seconds: float = 5.0
    # What the stream keeps; None: everything.
    retain: Policy | None = None
