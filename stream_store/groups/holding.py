"""A lot in the hands of a member: what it has handed out of it, and what is settled."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

from stream_store.groups.state import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stream_store.groups.state import Lot


class Holding:
    """Each ID is unsettled until it is acknowledged or given back; handed while somebody works on it."""

    __slots__ = ("changed", "handed", "handed_keys", "lot", "unsettled")

    def __init__(self, lot: Lot) -> None:
        self.lot = lot
        # ID and subject, in order.
        self.unsettled: dict[int, int] = dict(zip(lot.ids, lot.keys or repeat(NO_KEY), strict=False))
        self.handed: set[int] = set()
        self.handed_keys: set[int] = set()
        # Acknowledgements that are not written yet.
        self.changed = 0

    def is_free(self, event_id: int) -> bool:
        """Whether no event of its subject is being worked on. A subject lies in one lot at a time."""
        return self.unsettled[event_id] not in self.handed_keys

    def hand_out(self, event_id: int) -> None:
        self.handed.add(event_id)
        key = self.unsettled[event_id]
        if key != NO_KEY:
            self.handed_keys.add(key)

    def hand_out_all(self) -> None:
        self.handed.update(self.unsettled)

    def settle(self, ids: Iterable[int]) -> int:
        """These are done; how many were not before."""
        count = 0
        for event_id in ids:
            key = self.unsettled.pop(event_id, None)
            if key is not None:
                self.handed.discard(event_id)
                self.handed_keys.discard(key)
                count += 1
        self.changed += count
        return count

    def left(self) -> Lot | None:
        """What is outstanding of the lot."""
        if not self.unsettled:
            return None
        keys = tuple(self.unsettled.values()) if self.lot.keys else ()
        return replace(self.lot, ids=tuple(self.unsettled), keys=keys)
