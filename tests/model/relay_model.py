"""The relay of the model: the loop of `connector/` around the real `connector/fence.py`.

One atomic interaction with the database or the stream is one step, and everything that the
relay remembers between two steps is in `Relay`; a crash forgets all of it. `Rules` holds
each decision that a mutant weakens. The defaults are the product's rules.

    start      (start.py)    deleted_through is read, then the stream's tail, then what is drawn
    leftover   (start.py)    rows at or below the tail are read, and offered again: DUPLICATE expected
    standing   (follower.py) the last ID drawn, the bound; and deleted_through
    list       (follower.py) the holders, sessions before prepared; `observe`
    read       (follower.py) rows above the tail, one snapshot
    admit      (follower.py) after the read: deleted_through again; `admit`; hand over; next turn
    append     (appender.py) what was handed over, one batch or several as one, by compare-and-set
    clean      (cleaner.py)  one transaction: delete what was appended, move deleted_through

The last two are parties of their own beside the loop. A refusal that another try can mend
(STALE), a lost connection and a clean-up that finds other rows than expected all end this
run of the relay and begin the next one at the start path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.fence import Fence, Holders
from tests.model.rules import NOBODY, Relay, Rules, Step, again, stopped
from tests.model.world import (
    HOLDING,
    VISIBLE,
    Bounds,
    World,
    append,
    drawn_as_seen,
    highest,
    ids_of,
    listed_sessions,
    lowest,
    through,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNLISTED = frozenset({"unlisted"})
# Batches that wait for the appender at most.
QUEUE_BATCHES_MAX = 2


def step(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step | None:
    """The next step of the relay's loop; None when it has stopped or waits for its appender."""
    if relay.at == "stopped" or len(relay.queue) > (QUEUE_BATCHES_MAX if bounds.pipelined else 0):
        return None
    if relay.written and not bounds.pipelined:
        return None
    # A backlog of MySQL is read over a connection of its own, which notices nothing.
    unaware = relay.at == "read" and bounds.dialect in ("mysql", "mariadb")
    if not relay.connected and not unaware and relay.at not in ("start", "tail", "offer"):
        return "loses its connection", world, again(relay, rules)
    return _STEPS[relay.at](world, relay, bounds, rules)


# The start path.


def _start(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    relay = relay._replace(connected=True)
    if rules.reads_deleted_through_before_tail:
        deleted, drawn = world.deleted_through, drawn_as_seen(bounds, world)
        drawn = 0 if rules.reads_drawn_after_tail else drawn
        return (
            f"starts, deleted_through {deleted}",
            world,
            relay._replace(at="tail", deleted_through=deleted, drawn=drawn),
        )
    if rules.tail_is_durable:
        world = world._replace(durable=world.stream)
    tail = highest(world.stream)
    return f"starts, the stream's tail is {tail}", world, relay._replace(at="leftover", tail=tail)


def _tail(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    if rules.tail_is_durable:
        world = world._replace(durable=world.stream)
    tail, deleted = highest(world.stream), relay.deleted_through
    label = f"the stream's tail is {tail}"
    if tail < deleted and rules.compares_tail_at_start:
        return f"{label}: TAIL_LOST", world, stopped("TAIL_LOST")
    return label, world, relay._replace(at="leftover", tail=tail)


def _leftover(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    if not rules.reads_deleted_through_before_tail:
        relay = relay._replace(deleted_through=world.deleted_through)
        if relay.tail < world.deleted_through:
            return f"deleted_through is {world.deleted_through}: TAIL_LOST", world, stopped("TAIL_LOST")
    late = world.rows & through(relay.deleted_through)
    if late:
        return f"finds {ids_of(late)} below deleted_through", world, stopped("LATE")
    drawn = drawn_as_seen(bounds, world) if rules.reads_drawn_after_tail else relay.drawn
    if drawn < relay.tail:
        return f"finds the sequence at {drawn}, below the tail", world, stopped("SEQUENCE_RESET")
    leftover = world.rows & through(relay.tail) if rules.offers_leftovers else 0
    if not leftover:
        return "finds no leftovers", world, relay._replace(at="standing", deleted_through=0, drawn=0)
    return f"reads leftovers {ids_of(leftover)}", world, relay._replace(at="offer", rows=leftover, drawn=0)


def _offer(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    prev_id = lowest(relay.rows) - 1 if rules.offers_behind_first_id else relay.deleted_through
    outcome, after = append(world, prev_id, relay.rows)
    label = f"offers {ids_of(relay.rows)} again, behind {prev_id}: {outcome}"
    if outcome == "DUPLICATE":
        if rules.duplicate_is_durable:
            after = after._replace(durable=after.stream)
        known = relay._replace(owned=relay.rows, owned_after=relay.deleted_through)
        return label, after, known._replace(at="standing", rows=0, deleted_through=0)
    if outcome in ("APPENDED", "STALE"):
        # The tail went back while we started: look at everything again.
        return label, after._replace(durable=after.stream), again(relay, rules)
    return label, world, stopped(outcome)


# The loop.


def _next_turn(relay: Relay) -> Relay:
    return relay._replace(at="standing", rows=0, drawn=0, deleted_through=0, listed=NOBODY, looked_at=0)


def _standing(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    drawn, deleted = drawn_as_seen(bounds, world), world.deleted_through
    label = f"stands at {drawn} drawn, deleted_through {deleted}"
    refused = _guarded(drawn, deleted, relay, rules)
    if refused:
        return label, world, refused
    relay = relay._replace(drawn=drawn, deleted_through=0 if rules.reads_deleted_through_after_rows else deleted)
    if drawn > relay.fence.settled_through and rules.reads_after_listing:
        return label, world, relay._replace(at="list")
    return label, world, _to_read(relay, rules)


def _guarded(drawn: int, deleted_through: int, relay: Relay, rules: Rules) -> Relay | None:
    if deleted_through > relay.tail and rules.restarts_when_cleaned_past_tail:
        return again(relay, rules)
    if drawn < relay.tail:
        return stopped("SEQUENCE_RESET")
    return None


def _to_read(relay: Relay, rules: Rules) -> Relay:
    if relay.drawn <= max(relay.tail, relay.empty_through):
        return _next_turn(relay)
    needed_later = not (rules.reads_after_listing and rules.skips_only_settled)
    return relay._replace(at="read", listed=NOBODY, looked_at=0, drawn=relay.drawn if needed_later else 0)


def _read(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    rows = world.rows & ~through(relay.tail)
    while bounds.read_limit and rows.bit_count() > bounds.read_limit:
        rows &= ~(1 << highest(rows))
    label = f"reads {ids_of(rows)} above {relay.tail}"
    if not rows:
        known = relay.fence.settled_through if rules.skips_only_settled else relay.drawn
        return label, world, _next_turn(relay._replace(empty_through=known if known > relay.tail else 0))
    at = "admit" if rules.reads_after_listing else "list"
    return label, world, relay._replace(at=at, rows=rows)


def _admit(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    """One part of what was read; a part is all of it unless the bounds say otherwise."""
    drawn = drawn_as_seen(bounds, world)
    deleted = world.deleted_through if rules.reads_deleted_through_after_rows else relay.deleted_through
    label = f"stands at {drawn} drawn, deleted_through {deleted} after the read"
    ids = ids_of(relay.rows)[: bounds.part_rows]
    refused = _guarded(drawn, deleted, relay, rules)
    if refused:
        return label, world, refused
    if ids[-1] > drawn:
        return label, world, stopped("EXPLICIT_ID")
    count = rules.admit(relay.fence, relay.tail, deleted, ids)
    if count:
        batch = sum(1 << i for i in ids[:count])
        label = f"{label}, hands over {ids[:count]} behind {relay.tail}"
        relay = relay._replace(queue=(*relay.queue, (relay.tail, batch)), tail=ids[count - 1], rows=relay.rows & ~batch)
        # Below the tail it says nothing: one state less.
        relay = relay._replace(empty_through=relay.empty_through if relay.empty_through > relay.tail else 0)
    if count < len(ids):
        held = _next_turn(relay)
        return f"{label}, holds {ids[count:]}", world, held if bounds.fence == "list" else held._replace(at="barrier")
    return label, world, relay if relay.rows else _next_turn(relay)


def _list(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    if bounds.fence == "barrier":
        return _observed("lists nothing", world, relay, Holders(UNLISTED), bounds, rules)
    if not rules.lists_sessions_first:
        prepared = rules.list_prepared(world, bounds)
        label = f"lists prepared {sorted(prepared)}"
        return label, world, relay._replace(at="list_sessions_last", listed=prepared)
    if bounds.torn_listing:
        number = relay.looked_at
        seen = rules.list_sessions(world, bounds, number)
        relay = relay._replace(listed=relay.listed | seen, looked_at=number + 1)
        label = f"looks at session {number}: {sorted(seen)}"
        if relay.looked_at < bounds.sessions:
            return label, world, relay
    else:
        seen = rules.list_sessions(world, bounds, None)
        relay = relay._replace(listed=seen)
        label = f"lists sessions {sorted(seen)}"
    if bounds.prepares:
        return label, world, relay._replace(at="list_prepared", looked_at=0)
    return _observed(label, world, relay, Holders(relay.listed), bounds, rules)


def _list_prepared(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    prepared = rules.list_prepared(world, bounds)
    label = f"lists prepared {sorted(prepared)}"
    if bounds.dialect == "postgresql":
        # One view shows both, prepared transactions last.
        return _observed(label, world, relay, Holders(relay.listed | prepared), bounds, rules)
    return _observed(label, world, relay, Holders(relay.listed, prepared), bounds, rules)


def _list_sessions_last(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    sessions = rules.list_sessions(world, bounds, None)
    return _observed(f"lists sessions {sorted(sessions)}", world, relay, Holders(sessions, relay.listed), bounds, rules)


def _observed(label: str, world: World, relay: Relay, holders: Holders, bounds: Bounds, rules: Rules) -> Step:
    bound = relay.drawn if rules.lists_after_bound else drawn_as_seen(bounds, world)
    fence = rules.observe(relay.fence, bound, holders)
    if bounds.watch_newcomers:
        world = _named(world, relay.fence, fence)
    label = f"{label}, {told(fence)}"
    relay = relay._replace(fence=fence, listed=NOBODY, looked_at=0)
    if not rules.reads_after_listing:
        return label, world, relay._replace(at="admit", drawn=0)
    return label, world, _to_read(relay, rules)


def _named(world: World, before: Fence, after: Fence) -> World:
    """Mark the newcomers to the list that a round has just made, of sessions or of prepared ones."""
    if after.round is None:
        return world
    if after.round.prepared is not None and (before.round is None or before.round.prepared is None):
        sessions = tuple(session._replace(newcomer=session.phase in (HOLDING, VISIBLE)) for session in world.sessions)
    elif before.round is None:
        sessions = tuple(session._replace(newcomer=False) for session in world.sessions)
    else:
        return world
    return world._replace(sessions=sessions, prepared=tuple(held._replace(newcomer=False) for held in world.prepared))


def told(fence: Fence) -> str:
    """What the fence knows, for a trace."""
    if fence.round is None:
        return f"settled through {fence.settled_through}"
    return f"waits for {sorted(fence.round.waiting_for)} to settle through {fence.round.bound}"


# The barrier.


def _barrier(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    drawn = drawn_as_seen(bounds, world)
    return f"wants the barrier, {drawn} drawn", world, relay._replace(at="barrier_take", drawn=drawn)


def _barrier_take(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    if listed_sessions(world, bounds):
        return "does not get the barrier", world, _next_turn(relay)
    return "holds the barrier and drops it", world, relay._replace(at="barrier_prepared")


def _barrier_prepared(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Step:
    prepared = rules.list_prepared(world, bounds) if rules.barrier_lists_prepared else NOBODY
    bound = relay.drawn if rules.barrier_bound_first else drawn_as_seen(bounds, world)
    fence = relay.fence if prepared else rules.settle(relay.fence, bound)
    return f"lists prepared {sorted(prepared)}, {told(fence)}", world, _next_turn(relay._replace(fence=fence))


_STEPS: dict[str, Callable[[World, Relay, Bounds, Rules], Step]] = {
    "start": _start,
    "tail": _tail,
    "leftover": _leftover,
    "offer": _offer,
    "standing": _standing,
    "list": _list,
    "list_prepared": _list_prepared,
    "list_sessions_last": _list_sessions_last,
    "read": _read,
    "admit": _admit,
    "barrier": _barrier,
    "barrier_take": _barrier_take,
    "barrier_prepared": _barrier_prepared,
}


# The parties beside the loop.


def append_steps(world: World, relay: Relay, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """The appender takes the first batch, or all that wait as one."""
    if relay.written:
        yield _synced(world, relay, rules)
        return
    for count in {1, len(relay.queue)} if relay.queue else ():
        taken, rest = relay.queue[:count], relay.queue[count:]
        batch = 0
        for _, rows in taken:
            batch |= rows
        outcome, after = append(world, taken[0][0], batch)
        label = f"appends {ids_of(batch)} behind {taken[0][0]}: {outcome}"
        left = relay._replace(queue=rest)
        if outcome == "APPENDED" and bounds.power_loss:
            left = left._replace(written=taken)
            yield label, after, left if rules.cleans_only_durable else own(left, taken)
        elif outcome in ("APPENDED", "DUPLICATE"):
            if outcome == "APPENDED" or rules.duplicate_is_durable:
                after = after._replace(durable=after.stream)
            yield label, after, own(left, taken)
        elif outcome == "STALE":
            if rules.stale == "start":
                yield label, world, again(relay, rules)
            elif rules.stale == "done":
                yield label, world, own(left, taken)
            else:
                yield label, world, _next_turn(relay._replace(queue=(), tail=highest(world.stream)))
        else:
            yield label, world, stopped(outcome)


def _synced(world: World, relay: Relay, rules: Rules) -> Step:
    batch = 0
    for _, rows in relay.written:
        batch |= rows
    if batch & ~world.stream:
        return f"fsync of {ids_of(batch)} fails", world, again(relay, rules)
    durable = relay._replace(written=())
    if rules.cleans_only_durable:
        durable = own(durable, relay.written)
    return f"{ids_of(batch)} is durable", world._replace(durable=world.stream), durable


def own(relay: Relay, batches: tuple[tuple[int, int], ...]) -> Relay:
    """Remember for the cleaner what is in the stream now."""
    owned, owned_after = relay.owned, relay.owned_after
    for prev_id, rows in batches:
        owned_after = owned_after if owned else prev_id
        owned |= rows
    return relay._replace(owned=owned, owned_after=owned_after)


def clean_steps(world: World, relay: Relay, rules: Rules) -> Iterator[Step]:
    """One transaction: delete a range of what is owned and move deleted_through.

    It locks the info row first, so two cleaners come one after the other. What it deletes
    must be what was appended, except for what another relay has deleted already.
    """
    if not relay.owned or relay.at == "stopped":
        return
    if not relay.connected:
        yield "loses its connection", world, again(relay, rules)
        return
    for last in {lowest(relay.owned), highest(relay.owned)}:
        known = relay.owned & through(last)
        rest = relay._replace(owned=relay.owned & ~known, owned_after=last if relay.owned & ~known else 0)
        found = world.rows & through(last) & ~through(relay.owned_after)
        label = f"deletes {ids_of(known)}"
        if world.deleted_through >= last:
            yield f"{label}: another relay has", world, rest
        elif (world.deleted_through != relay.owned_after and rules.cleans_where_it_ended) or found != known:
            yield f"{label}: finds {ids_of(found)}, deleted_through {world.deleted_through}", world, again(relay, rules)
        else:
            moved = last if rules.moves_deleted_through else world.deleted_through
            yield (
                f"{label}, deleted_through {moved}",
                world._replace(rows=world.rows & ~found, deleted_through=moved),
                rest,
            )
