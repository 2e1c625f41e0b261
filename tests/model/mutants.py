"""Mutants: the rules of the fence, the chain and the cleaner, each weakened alone.

Every one of them looks reasonable; most have been written by someone. `breaks` is the
invariant that falls, as `explore` names it: by a number of DESIGN.md section 4, section 5
for the newcomers, or liveness.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from connector.fence import Fence, Holders, Round, admit, observe
from tests.model.rules import NOBODY, Rules
from tests.model.world import IDLE, Bounds, Promises, World, listed_prepared, listed_sessions

TWO_WRITERS = Bounds("postgresql", sessions=2, transactions=1, ids=2)
SPLIT = replace(TWO_WRITERS, split_insert=True)
TWO_AND_TWO = Bounds("postgresql", sessions=2, transactions=2, ids=3, watch_newcomers=True)
THREE_WRITERS = Bounds("postgresql", sessions=3, transactions=1, ids=3)
PREPARING = replace(TWO_WRITERS, prepares=True)
XA = replace(PREPARING, dialect="mariadb")
RESTARTED = replace(PREPARING, restarts=1)
TWO_RELAYS = replace(TWO_WRITERS, relays=2, cleaner=True, crashes=True)
TAIL_LOSS = replace(TWO_RELAYS, tail_loss=True)
POWER_LOSS = replace(TWO_RELAYS, power_loss=True)
CLEANED = replace(TWO_WRITERS, cleaner=True, crashes=True)


@dataclass(frozen=True)
class Mutant:
    """One rule weakened, and the smallest bounds known to show the harm."""

    name: str
    breaks: str
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    promises: Promises = field(default_factory=Promises)


# The fence: who is waited for.


def with_an_xid(world: World, bounds: Bounds, only: int | None = None) -> frozenset[str]:
    """`pg_snapshot_xmin` sees who has a transaction ID, and nextval assigns none."""
    return frozenset(
        key
        for number, session in enumerate(world.sessions)
        if session.inserted
        for key in listed_sessions(world, bounds, number)
        if only is None or only == number
    )


def by_pid(world: World, bounds: Bounds, only: int | None = None) -> frozenset[str]:
    return frozenset(
        f"pid {number}"
        for number, session in enumerate(world.sessions)
        if session.phase != IDLE and (only is None or only == number)
    )


def nobody_prepared(world: World, bounds: Bounds) -> frozenset[str]:
    return NOBODY


def timed_out(fence: Fence, bound: int, holders: Holders) -> Fence:
    """A gap that was there at three looks is dead."""
    looks = 1 if fence.round is None else len(fence.round.sessions) + 1
    first = bound if fence.round is None else fence.round.bound
    if looks == 3 or not holders.sessions:
        return Fence(first)
    return Fence(fence.settled_through, Round(first, frozenset(f"look {number}" for number in range(looks))))


def until_nobody_holds(fence: Fence, bound: int, holders: Holders) -> Fence:
    """A round ends when there is no holder at all, newcomers included."""
    first = bound if fence.round is None else fence.round.bound
    if holders.sessions or holders.prepared:
        return Fence(fence.settled_through, Round(first, holders.sessions, holders.prepared))
    return Fence(first)


def through_the_newest(fence: Fence, bound: int, holders: Holders) -> Fence:
    """When a round ends, everything drawn by now is settled, not only what it began with."""
    after = observe(fence, bound, holders)
    return Fence(max(bound, after.settled_through)) if after.round is None else after


def taken_for_its_next(fence: Fence, bound: int, holders: Holders) -> Fence:
    """A thread that is listed a second time must be in its next transaction by now."""
    if fence.round is None:
        return observe(fence, bound, holders)
    return observe(fence, bound, replace(holders, sessions=holders.sessions - fence.round.sessions))


def prepared_at_first(fence: Fence, bound: int, holders: Holders) -> Fence:
    """Prepared transactions are listed when a round begins, and not again when its sessions are gone."""
    after = observe(fence, bound, holders)
    opened = fence.round is None and after.round is not None and after.round.prepared is None
    return replace(after, round=replace(after.round, prepared=holders.prepared)) if opened and after.round else after


def with_the_client_there(world: World, bounds: Bounds) -> frozenset[str]:
    """Prepared transactions by their sessions, whose clients may have left."""
    return frozenset(key for key in listed_prepared(world._replace(prepared=()), bounds))


FENCE = [
    Mutant("xmin rule", "3", SPLIT, Rules(list_sessions=with_an_xid)),
    Mutant("timeout rule", "3", TWO_WRITERS, Rules(observe=timed_out)),
    Mutant("one snapshot for locks and read", "3", TWO_WRITERS, Rules(reads_after_listing=False)),
    Mutant("newcomers waited for", "5", TWO_AND_TWO, Rules(observe=until_nobody_holds)),
    Mutant("new gaps settled by the re-read", "3", THREE_WRITERS, Rules(observe=through_the_newest)),
    Mutant("prepared ignored, PostgreSQL", "3", PREPARING, Rules(list_prepared=nobody_prepared)),
    Mutant("prepared ignored, XA", "3", XA, Rules(list_prepared=nobody_prepared)),
    Mutant(
        "holders keyed by pid, which PREPARE makes NULL",
        "3",
        PREPARING,
        Rules(list_sessions=by_pid, list_prepared=nobody_prepared),
    ),
    Mutant("holders keyed by pid, whose next transaction is waited for", "5", TWO_AND_TWO, Rules(list_sessions=by_pid)),
    # MySQL names transactions by thread and event; by thread alone a busy one is never seen absent.
    Mutant(
        "a thread's next transaction taken for its last",
        "5",
        replace(TWO_AND_TWO, dialect="mysql"),
        Rules(list_sessions=by_pid),
    ),
    Mutant(
        "a thread seen again taken for its next transaction",
        "3",
        replace(TWO_WRITERS, dialect="mariadb"),
        Rules(observe=taken_for_its_next),
    ),
    Mutant("XA listed only when the round begins", "3", XA, Rules(observe=prepared_at_first)),
    Mutant("XA listed before the sessions", "3", XA, Rules(lists_sessions_first=False)),
    Mutant("XA listed only with its client there", "3", XA, Rules(list_prepared=with_the_client_there)),
    Mutant(
        "bound read after the listing", "3", replace(THREE_WRITERS, torn_listing=True), Rules(lists_after_bound=False)
    ),
    Mutant("no fence at all", "3", TWO_WRITERS, Rules(admit=lambda fence, tail, deleted_through, ids: len(ids))),
    Mutant("round kept over a reconnect", "3", RESTARTED, Rules(forgets_round=False)),
    Mutant("settled IDs kept over a reconnect", "3", replace(THREE_WRITERS, restarts=1), Rules(forgets_settled=False)),
    Mutant("barrier without a look at XA", "3", replace(XA, fence="barrier"), Rules(barrier_lists_prepared=False)),
    Mutant(
        "barrier's bound read after it",
        "3",
        replace(TWO_AND_TWO, dialect="mysql", ids=4, fence="barrier", watch_newcomers=False),
        Rules(barrier_bound_first=False),
    ),
    Mutant(
        "lock released before the rows are visible", "3", TWO_WRITERS, promises=Promises(visible_before_release=False)
    ),
    Mutant(
        "a read that finds nothing skips all that is drawn", "liveness", TWO_WRITERS, Rules(skips_only_settled=False)
    ),
]


# The chain, the start path, the cleaner.


def below_deleted_through(fence: Fence, tail: int, deleted_through: int, ids: list[int]) -> int:
    return admit(fence, tail, 0, ids)


CHAIN = [
    Mutant(
        "dead below deleted_through",
        "3",
        TAIL_LOSS,
        Rules(admit=below_deleted_through, restarts_when_cleaned_past_tail=False),
    ),
    Mutant(
        "deleted_through read before the rows",
        "3",
        TAIL_LOSS,
        Rules(reads_deleted_through_after_rows=False),
    ),
    Mutant("STALE taken for appended", "4", TWO_RELAYS, Rules(stale="done")),
    # The newer tail alone does no harm: the cleaner sees that its ranges have a hole, and starts again.
    Mutant("STALE taken for a newer tail", "7", TWO_RELAYS, Rules(stale="tail", cleans_where_it_ended=False)),
    Mutant("TAIL_LOST not looked for at the start", "liveness", TAIL_LOSS, Rules(compares_tail_at_start=False)),
    Mutant("tail read before deleted_through", "6", TWO_RELAYS, Rules(reads_deleted_through_before_tail=False)),
    Mutant("last ID drawn read before the tail", "6", TWO_RELAYS, Rules(reads_drawn_after_tail=False)),
    Mutant("leftovers offered behind deleted_through", "3", TAIL_LOSS, Rules(offers_behind_first_id=False)),
    Mutant("leftovers not offered again", "liveness", CLEANED, Rules(offers_leftovers=False)),
    Mutant(
        "leftovers not offered again, and passed over by the cleaner",
        "7",
        CLEANED,
        Rules(offers_leftovers=False, cleans_where_it_ended=False),
    ),
    Mutant("deleted_through not moved with the rows", "7", CLEANED, Rules(moves_deleted_through=False)),
    Mutant(
        "rows deleted before they are durable", "4", replace(POWER_LOSS, relays=1), Rules(cleans_only_durable=False)
    ),
    Mutant("tail reported before it is durable", "6", POWER_LOSS, Rules(tail_is_durable=False)),
    Mutant("DUPLICATE answered before it is durable", "4", POWER_LOSS, Rules(duplicate_is_durable=False)),
]

MUTANTS = FENCE + CHAIN
