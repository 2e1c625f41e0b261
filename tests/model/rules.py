"""What a relay of the model goes by, and what it remembers.

`Rules` holds each decision that a mutant weakens; the defaults are the product's.
`Relay` is everything that the relay remembers between two steps; a crash forgets all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from connector import fence as product
from connector.fence import Fence, Holders
from tests.model.world import Bounds, World, listed_prepared, listed_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Rules:
    """Every rule that the proof needs, so that each can be taken away alone."""

    observe: Callable[[Fence, int, Holders], Fence] = product.observe
    settle: Callable[[Fence, int], Fence] = product.settle
    admit: Callable[[Fence, int, int, list[int]], int] = product.admit
    list_sessions: Callable[[World, Bounds, int | None], frozenset[str]] = listed_sessions
    list_prepared: Callable[[World, Bounds], frozenset[str]] = listed_prepared
    # The start path.
    reads_deleted_through_before_tail: bool = True
    reads_drawn_after_tail: bool = True
    compares_tail_at_start: bool = True
    offers_leftovers: bool = True
    # What the leftovers are offered behind: their own first ID less one.
    offers_behind_first_id: bool = True
    # The loop.
    reads_after_listing: bool = True
    lists_after_bound: bool = True
    lists_sessions_first: bool = True
    reads_deleted_through_after_rows: bool = True
    restarts_when_cleaned_past_tail: bool = True
    skips_only_settled: bool = True
    # After STALE: the `start` path; or it is taken for `done`; or the `tail` is taken over.
    stale: str = "start"
    # The barrier.
    barrier_lists_prepared: bool = True
    barrier_bound_first: bool = True
    # Reconnecting forgets the round, and what is settled.
    forgets_round: bool = True
    forgets_settled: bool = True
    # The cleaner.
    cleans_only_durable: bool = True
    cleans_where_it_ended: bool = True
    moves_deleted_through: bool = True
    # The stream.
    tail_is_durable: bool = True
    duplicate_is_durable: bool = True


class Relay(NamedTuple):
    """What one relay remembers, and where in its loop it is."""

    at: str = "start"
    # The last ID handed over to the appender.
    tail: int = 0
    fence: Fence = Fence()
    drawn: int = 0
    deleted_through: int = 0
    # Rows of the current read that are not yet dealt with.
    rows: int = 0
    # Every ID through this one is handed over or dead.
    empty_through: int = 0
    listed: frozenset[str] = NOBODY
    # How many sessions a torn listing has looked at.
    looked_at: int = 0
    # Handed over, not yet appended: (the ID that it follows, its rows). Then: written, not durable.
    queue: tuple[tuple[int, int], ...] = ()
    written: tuple[tuple[int, int], ...] = ()
    # Rows that this run appended or saw answered DUPLICATE and has not deleted yet, and what they follow.
    owned: int = 0
    owned_after: int = 0
    connected: bool = False
    error: str = ""


Step = tuple[str, World, Relay]


def is_open(relay: Relay) -> bool:
    """Whether the relay has the stream open for writing."""
    return relay.at not in ("start", "stopped")


def disconnected(relay: Relay) -> Relay:
    """The database went away: the relay learns of it at its next statement."""
    return relay._replace(connected=False) if relay.connected else relay


def again(relay: Relay, rules: Rules) -> Relay:
    """The start path: nothing is remembered."""
    if rules.forgets_round and rules.forgets_settled:
        return Relay()
    settled_through = 0 if rules.forgets_settled else relay.fence.settled_through
    return Relay(fence=Fence(settled_through, None if rules.forgets_round else relay.fence.round))


def stopped(error: str) -> Relay:
    return Relay(at="stopped", error=error)
