"""What a group remembers: its head, what is outstanding behind it, and who its members are.

    through            head                         tail
       │  4 6 7 ·· 11    │   not looked at yet        │
    ───┴──────────────────┴────────────────────────────┴──▶ IDs

Everything at or below `head` is done, but for the outstanding events, which lie in lots: some
with a member, some waiting for one. Everything at or below `through` is done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The key of an event without a subject: it waits for nobody.
NO_KEY = 0
TRIES_MAX_DEFAULT = 5


class Order(Enum):
    """What a group promises about the order in which its members get events."""

    # Many in flight, in any order.
    NONE = "none"
    # Many in flight; an event waits while an earlier one of its subject is outstanding.
    SUBJECT = "subject"
    # One delivery at a time in the whole group, in ID order.
    STRICT = "strict"


class Preference(Enum):
    """What a group's members want of events that they could not take at once."""

    # Only the newest count: older ones are skipped, nothing is delivered again.
    LATEST = "latest"
    # All of them, each again until it is acknowledged.
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is fixed when a group is made, the same for all its members."""

    order: Order = Order.NONE
    preference: Preference = Preference.REPEAT
    # Events with members at once, in the whole group; None for as many as members take.
    max_in_flight: int | None = None
    # Deliveries before an event becomes a dead letter; None for never.
    max_tries: int | None = TRIES_MAX_DEFAULT
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("max_in_flight", self.max_in_flight), ("max_tries", self.max_tries)):
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: give a whole number above 0, or nothing for no limit")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"order": self.order.value, "preference": self.preference.value}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Settings:
        return cls(
            order=Order(saved["order"]),
            preference=Preference(saved["preference"]),
            max_in_flight=saved["max_in_flight"],
            max_tries=saved["max_tries"],
            types=tuple(saved["types"]),
        )


@dataclass(frozen=True, slots=True)
class Lot:
    """Outstanding events with one history: delivered together, or waiting together.

    Its token is new whenever it changes hands, so who was late acknowledges nothing.
    """

    token: int
    ids: tuple[int, ...]
    # The subject of each event as a number, in groups that order by subject; else empty.
    keys: tuple[int, ...] = ()
    # Who has it; None while it waits.
    member: str | None = None
    # How often its events were delivered, this time included.
    tries: int = 0
    # A waiting lot is not delivered before this time of the state database.
    not_before_us: int = 0
    # It came back because its member died: one of its events may be what kills members.
    suspect: bool = False
    reason: str | None = None

    def __post_init__(self) -> None:
        assert self.ids, "a lot has at least one event"
        assert not self.keys or len(self.keys) == len(self.ids), self

    def only(self, ids: set[int] | frozenset[int], token: int, **changes: Any) -> Lot | None:
        """The events with these IDs as a lot of their own, or None when there are none."""
        kept = [position for position, event_id in enumerate(self.ids) if event_id in ids]
        if not kept:
            return None
        keys = tuple(self.keys[position] for position in kept) if self.keys else ()
        return replace(self, token=token, ids=tuple(self.ids[position] for position in kept), keys=keys, **changes)


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who takes events, alive until a time of the state database unless heard of again."""

    name: str
    expires_us: int
    # Heartbeat rate times threshold: how long it may be silent.
    lease_us: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was delivered as often as it may be, and never acknowledged."""

    id: int
    tries: int
    reason: str
    # The event as a CloudEvents JSON line, so that it outlives the stream's retention.
    event: str = ""
    recorded_us: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """A group at one moment."""

    settings: Settings
    head: int
    paused: bool = False
    # IDs jumped over by a group that wants only the latest, or by a reset to a later place.
    skipped: int = 0
    lots: tuple[Lot, ...] = ()
    members: tuple[Member, ...] = ()

    @property
    def through(self) -> int:
        """Every event at or below this ID was acknowledged, dead-lettered, filtered out or skipped."""
        return min((lot.ids[0] - 1 for lot in self.lots), default=self.head)

    @property
    def in_flight(self) -> int:
        return sum(len(lot.ids) for lot in self.lots if lot.member is not None)

    @property
    def waiting(self) -> int:
        return sum(len(lot.ids) for lot in self.lots if lot.member is None)

    def lot(self, token: int) -> Lot | None:
        return next((lot for lot in self.lots if lot.token == token), None)
