"""How one member of a group works; others of its group may have other habits."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.errors import UsageError


@dataclass(frozen=True, slots=True)
class Habits:
    """What a member may choose for itself."""

    # Events that it has at once, those read ahead for it included.
    max_in_flight: int = 1000
    heartbeat_seconds: float = 2.0
    # After this many missed heartbeats the group gives its events to others.
    heartbeats_missed: int = 5
    # One by one, acknowledgements are written together: after this many, or this time. 1 for each at once.
    ack_every: int = 1000
    ack_seconds: float = 0.2

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "heartbeat_seconds", "heartbeats_missed", "ack_every"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be above 0")

    @property
    def lease_seconds(self) -> float:
        return self.heartbeat_seconds * self.heartbeats_missed
