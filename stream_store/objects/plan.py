"""What to merge: a pure decision over sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream_store.objects.chain import Unit

if TYPE_CHECKING:
    from stream_store.objects.state import State

# A batch of this share of a merged object is not worth rewriting: the store copies it.
_LARGE_SHARE = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of objects, each of which becomes one; and the merged objects that stay as they are."""

    kept: int
    groups: tuple[tuple[Unit, ...], ...]

    @property
    def absorbed(self) -> list[Unit]:
        """Merged objects that become part of larger ones."""
        return [unit for group in self.groups for unit in group if unit.merged is not None]


def is_large(unit: Unit, merge_bytes: int) -> bool:
    return not unit.is_lost and unit.size_bytes * _LARGE_SHARE >= merge_bytes


def plan_merge(state: State, batches: list[Unit], merge_bytes: int) -> Plan:
    """How to merge these batches, which follow the floor, into objects of at most `merge_bytes`.

    Small merged objects at the end are merged again with what comes now, as long as they are not
    much larger than it: each event is rewritten a few times at most (its object doubles each
    time), and the number of small objects stays that of the doublings.
    """
    assert batches
    assert batches[0].prev_id == state.floor
    groups: list[list[Unit]] = []
    open_bytes = 0
    for unit in batches:
        if is_large(unit, merge_bytes):
            groups.append([unit])
            open_bytes = 0
        elif open_bytes and open_bytes + unit.size_bytes <= merge_bytes:
            groups[-1].append(unit)
            open_bytes += unit.size_bytes
        else:
            groups.append([unit])
            open_bytes = unit.size_bytes
    kept = len(state.merged)
    first_bytes = sum(unit.size_bytes for unit in groups[0])
    while kept and not is_large(groups[0][-1], merge_bytes):
        last = state.merged[kept - 1]
        if last.size_bytes > 2 * first_bytes or last.size_bytes + first_bytes > merge_bytes:
            break
        groups[0].insert(0, Unit(last.prev_id, last.last_id, last.size_bytes, last.name, last))
        first_bytes += last.size_bytes
        kept -= 1
    return Plan(kept, tuple(tuple(group) for group in groups))
