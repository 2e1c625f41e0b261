"""The fence: reading IDs in order while transactions commit out of order.

A gap, a missing ID below a visible one, is either in flight or dead. Whoever drew an ID
holds a lock that is taken before the ID is drawn and released after its rows are visible.
So, with all of this in the order written here:

1. every ID up to `bound` has been drawn;
2. the holders of the lock are listed;
3. each of those holders has been seen absent once (newcomers are never waited for: what
   they draw lies above `bound`, because the sequence only grows);
4. a read takes its snapshot.

Then each ID up to `bound` is settled: the read sees its row, or the ID is dead. Rows above
`bound` may follow without a gap, each directly behind its neighbour; a new gap there needs
a round of its own.

A transaction that prepares (two-phase commit) and leaves its session may drop the lock and
hold its rows back all the same (MariaDB: run). Where the database lists such transactions
apart, they are listed once more after the last session was seen absent: a session that
turned into a prepared transaction is on that list, and again only those listed are
waited for.

Everything here is a pure function of what was seen. `tests/model` runs it through every
interleaving up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Holders:
    """Who held the lock at one moment: `sessions` was listed first, then `prepared`."""

    sessions: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Round:
    """One wait: IDs through `bound` settle when everyone in it has been seen absent."""

    bound: int
    sessions: frozenset[str]
    prepared: frozenset[str] | None = None

    @property
    def waiting_for(self) -> frozenset[str]:
        return self.sessions | (self.prepared or frozenset())


@dataclass(frozen=True, slots=True)
class Fence:
    """What is known: every ID through `settled_through` is visible or dead."""

    settled_through: int = 0
    round: Round | None = None


def observe(fence: Fence, bound: int, holders: Holders) -> Fence:
    """Take in one listing of the holders, made after every ID through `bound` was drawn."""
    current = fence.round
    if current is None:
        if bound <= fence.settled_through:
            return fence
        current = Round(bound, holders.sessions)
    else:
        current = replace(current, sessions=current.sessions & holders.sessions)
    if not current.sessions:
        prepared = holders.prepared if current.prepared is None else current.prepared & holders.prepared
        current = replace(current, prepared=prepared)
        if not prepared:
            return Fence(settled_through=current.bound)
    return replace(fence, round=current)


def settle(fence: Fence, bound: int, prepared: frozenset[str] = frozenset()) -> Fence:
    """A barrier was held after every ID through `bound` was drawn: no session was in flight.

    `prepared` was listed behind the barrier, which does not wait for such transactions.
    """
    if prepared:
        return replace(fence, round=Round(bound, frozenset(), prepared))
    return Fence(max(fence.settled_through, bound))


def admit(fence: Fence, tail: int, deleted_through: int, ids: Sequence[int]) -> int:
    """How many of the rows just read, from the front, may be appended behind `tail`.

    `ids` are the visible IDs above `tail`, ascending, read after the listing that `fence`
    last took in; `deleted_through` was read after them. Below `deleted_through` absence
    proves nothing, because relays delete: when another relay has cleaned up past our tail,
    nothing is admitted and the caller goes through the start path.
    """
    if not ids or deleted_through > tail:
        return 0
    settled = _first(len(ids), lambda i: ids[i] - 1 > fence.settled_through)
    start = ids[settled - 1] if settled else tail
    # Above the settled IDs each row must directly follow its neighbour; `ids[i] - i` stays
    # the same for as long as that is so and never falls, so the end of it can be bisected.
    return settled + _first(len(ids) - settled, lambda i: ids[settled + i] != start + 1 + i)


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first of `count` positions where a condition that never turns false again holds."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
