"""A model of the object-store stream: relays, a merger, a trimmer, a sweeper and a reader, one request at a time.

What the parties do is what `stream_store/objects` does, with IDs that are a handful and batches
that are pairs (prev_id, last_id): the content of an event follows from its ID, so two batches
with the same pair have the same bytes. Each relay cuts its batches in its own length, so their
batches under one name differ.

`explore` goes through every state that can be reached by any interleaving of the parties' requests,
each party crashing anywhere, and requests carried out after their sender has given up. `Rules` says
which rules of the protocol are kept; the mutants leave out one each, and must be found out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Batch = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """The protocol, a rule each. A mutant is the same with one of them left out."""

    floor_checked_after_create: bool = True
    floor_checked_before_create_instead: bool = False
    conflict_is_compared: bool = True
    state_by_compare_and_set: bool = True
    state_before_delete: bool = True
    states_kept_for_ever: bool = True
    floor_only_over_what_was_read: bool = True
    sweep_minds_the_number: bool = True
    reader_minds_the_floor: bool = True
    reader_looks_again: bool = True
    reader_checks_the_floor_afterwards: bool = True


@dataclass(frozen=True)
class Bounds:
    last_id: int = 3
    # Events per batch of each relay.
    relays: tuple[int, ...] = (1, 2)
    merges: int = 2
    trims: int = 1
    sweeps: int = 1
    late_requests: int = 1
    crashes: int = 2
    reader: bool = False


class State(NamedTuple):
    """The newest state. Merged objects are (number they were written for, prev_id, last_id)."""

    number: int = 0
    floor: int = 0
    trimmed: int = 0
    merged: tuple[tuple[int, int, int], ...] = ()


class Party(NamedTuple):
    """A party between two of its requests: where it is, and what it remembers."""

    at: str = "start"
    tail: int = 0
    floor: int = 0
    plan: tuple[object, ...] = ()


class World(NamedTuple):
    """What the store holds, what really happened (for the invariants), and the parties."""

    state: State = State()
    batches: frozenset[Batch] = frozenset()
    merged: frozenset[tuple[int, int, int]] = frozenset()
    late: frozenset[Batch] = frozenset()
    # What was ever appended, in order: nothing in the protocol looks at it.
    history: tuple[Batch, ...] = ()
    relays: tuple[Party, ...] = ()
    merger: Party = Party()
    trimmer: Party = Party()
    reader: Party = Party()
    left: tuple[int, ...] = ()


MERGES, TRIMS, SWEEPS, LATE, CRASHES = range(5)


class Violation(AssertionError):
    """A state that must not be, and how it came about."""


def chain(world: World, floor: int) -> list[Batch]:
    found, at = [], floor
    names = dict(world.batches)
    while at in names:
        found.append((at, names[at]))
        at = names[at]
    return found


def tail(world: World) -> int:
    found = chain(world, world.state.floor)
    return found[-1][1] if found else world.state.floor


def create(world: World, batch: Batch) -> World | None:
    """Put-if-absent; None when there is a batch of that name."""
    if any(prev_id == batch[0] for prev_id, _ in world.batches):
        return None
    appends = batch[0] == tail(world) and batch[0] >= world.state.floor
    return world._replace(
        batches=world.batches | {batch}, history=(*world.history, batch) if appends else world.history
    )


def spend(world: World, what: int) -> World:
    return world._replace(left=tuple(each - (at == what) for at, each in enumerate(world.left)))


# ---- relays


def relay_steps(world: World, number: int, bounds: Bounds, rules: Rules) -> Iterator[tuple[str, World]]:
    relay, length = world.relays[number], bounds.relays[number]

    def become(after: World, party: Party) -> World:
        return after._replace(relays=(*after.relays[:number], party, *after.relays[number + 1 :]))

    if relay.at == "start":
        # One atomic step: the real look counts only when the state is the same before and after.
        yield "looks", become(world, Party("create", tail(world), world.state.floor))
    elif relay.at == "create" and rules.floor_checked_before_create_instead:
        low = world.state.floor <= relay.tail
        yield "checks the floor too early", become(world, relay._replace(at="checked") if low else Party())
    elif relay.at in ("create", "checked") and relay.tail + length <= bounds.last_id:
        batch = (relay.tail, relay.tail + length)
        made = create(world, batch)
        if made is not None:
            yield f"creates {batch}", become(made, relay._replace(at="check"))
        elif batch in world.batches or not rules.conflict_is_compared:
            yield f"meets {batch} and takes it for its own", become(world, relay._replace(at="check"))
        else:
            yield "meets another's batch", become(world, Party())
        if world.left[LATE]:
            sent = spend(world, LATE)._replace(late=world.late | {batch})
            yield f"gives up waiting for {batch}", become(sent, Party())
    elif relay.at == "check":
        batch = (relay.tail, relay.tail + length)
        if rules.floor_checked_after_create and world.state.floor > relay.tail:
            yield "finds the floor above its batch", become(world, Party())
        else:
            if batch not in world.history:
                raise Violation(f"{batch} is acknowledged and was never appended")
            yield f"acknowledges {batch}", become(world, Party("create", batch[1], relay.floor))
    if relay.at != "start" and world.left[CRASHES]:
        yield "crashes", become(spend(world, CRASHES), Party())


# ---- merger, trimmer, sweeper


def commit(world: World, state: State, rules: Rules) -> World | None:
    """The next state put-if-absent; None when somebody was faster."""
    if not rules.state_by_compare_and_set:
        return world._replace(state=state)
    if state.number == world.state.number + 1:
        return world._replace(state=state)
    if not rules.states_kept_for_ever and state.number < world.state.number:
        return world  # the name was free again: it looks like a success, and the newest state stays
    return None


def merger_steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    merger = world.merger
    if merger.at == "start" and world.left[MERGES]:
        found = chain(world, world.state.floor)
        for count in range(1, len(found) + 1):
            # With and without the merged object before it, which then becomes part of the new one.
            for absorbed in {0, min(1, len(world.state.merged))}:
                taken = world.state.merged[len(world.state.merged) - absorbed :]
                kept = world.state.merged[: len(world.state.merged) - absorbed]
                first = taken[0][1] if taken else found[0][0]
                new = (world.state.number + 1, first, found[count - 1][1])
                plan = (world.state, kept, taken, tuple(found[:count]), new)
                yield f"plans {new}", spend(world, MERGES)._replace(merger=Party("write", plan=plan))
    elif merger.at == "write":
        new = merger.plan[4]
        yield "writes", world._replace(merged=world.merged | {new}, merger=merger._replace(at="first"))
    elif merger.at in ("first", "second"):
        state, kept, taken, inputs, new = merger.plan
        committing = (merger.at == "first") == rules.state_before_delete
        after = "start" if merger.at == "second" else "second"
        if not committing:
            gone = world._replace(batches=world.batches - set(inputs), merged=world.merged - set(taken))
            yield (
                "deletes what it merged",
                gone._replace(merger=merger._replace(at=after) if after != "start" else Party()),
            )
            return
        floor = new[2] if rules.floor_only_over_what_was_read else tail(world)
        made = commit(world, State(state.number + 1, floor, state.trimmed, (*kept, new)), rules)
        if made is None:
            yield "is too late and discards", world._replace(merged=world.merged - {new}, merger=Party())
        else:
            yield (
                f"raises the floor to {floor}",
                made._replace(merger=merger._replace(at=after) if after != "start" else Party()),
            )
    if merger.at != "start" and world.left[CRASHES]:
        yield "crashes", spend(world, CRASHES)._replace(merger=Party())


def trimmer_steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    trimmer = world.trimmer
    if trimmer.at == "start" and world.left[TRIMS]:
        state = world.state
        ends = [last for _, _, last in state.merged] + [last for _, last in chain(world, state.floor)]
        for through in ends:
            plan = (state, through, tuple(chain(world, state.floor)))
            yield f"plans to trim through {through}", spend(world, TRIMS)._replace(trimmer=Party("first", plan=plan))
    elif trimmer.at in ("first", "second"):
        state, through, batches = trimmer.plan
        kept = tuple(each for each in state.merged if each[2] > through)
        gone = set(state.merged) - set(kept)
        after = Party() if trimmer.at == "second" else trimmer._replace(at="second")
        if (trimmer.at == "first") != rules.state_before_delete:
            left = world.batches - {each for each in batches if each[1] <= through}
            yield "deletes what it trimmed", world._replace(batches=left, merged=world.merged - gone, trimmer=after)
            return
        made = commit(world, State(state.number + 1, max(state.floor, through), through, kept), rules)
        if made is None:
            yield "is too late", world._replace(trimmer=Party())
        else:
            yield f"trims through {through}", made._replace(trimmer=after)
    if trimmer.at != "start" and world.left[CRASHES]:
        yield "crashes", spend(world, CRASHES)._replace(trimmer=Party())


def sweep_steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    if not world.left[SWEEPS]:
        return
    void = {batch for batch in world.batches if batch[0] < world.state.floor}
    orphans = {
        each
        for each in world.merged
        if each not in world.state.merged and (each[0] <= world.state.number or not rules.sweep_minds_the_number)
    }
    if void or orphans:
        yield "sweeps", spend(world, SWEEPS)._replace(batches=world.batches - void, merged=world.merged - orphans)


# ---- reader


def reader_steps(world: World, bounds: Bounds, rules: Rules) -> Iterator[tuple[str, World]]:
    """Reads object by object; `tail` is how far it has come, `plan` the state that it knows."""
    reader = world.reader
    if not bounds.reader:
        return
    if reader.at == "start":
        reached = max(reader.tail, world.state.trimmed)
        yield "looks", world._replace(reader=Party("read", reached, plan=(world.state,)))
        return
    reached = reader.tail
    if reader.at == "confirm":
        state, found, is_batch = reader.plan
        if is_batch and rules.reader_checks_the_floor_afterwards and world.state.floor > reached:
            yield "finds the floor above what it read", world._replace(reader=Party("start", reached))
            return
        ends = {last for _, last in world.history}
        covered = [batch for batch in world.history if reached <= batch[0] < found]
        if found not in ends or not covered or covered[0][0] != reached:
            raise Violation(f"the reader was given ({reached}, {found}], which was never appended so")
        yield f"takes ({reached}, {found}]", world._replace(reader=Party("read", found, plan=(state,)))
        return
    (state,) = reader.plan
    merged = next((each for each in state.merged if each[1] <= reached < each[2]), None)
    if merged is not None and rules.reader_minds_the_floor:
        found = merged[2] if merged in world.merged else None
    else:
        merged, found = None, dict(world.batches).get(reached)
    if found is not None:
        plan = (state, found, merged is None)
        yield f"reads ({reached}, {found}]", world._replace(reader=Party("confirm", reached, plan=plan))
    elif state != world.state and rules.reader_looks_again:
        yield "misses an object and looks again", world._replace(reader=Party("start", reached))
    elif reached < tail(world) and world.state.trimmed <= reached:
        raise Violation(f"the reader misses what follows {reached}, and it is in the stream")


def late_steps(world: World) -> Iterator[tuple[str, World]]:
    for batch in world.late:
        made = create(world, batch)
        yield f"a late request for {batch}", (made or world)._replace(late=world.late - {batch})


# ---- what must hold


def check(world: World) -> None:
    """The stream, as anyone finds it now, is everything that was ever appended and not trimmed."""
    state = world.state
    reached = state.trimmed
    for each in state.merged:
        if each not in world.merged:
            raise Violation(f"state {state.number} names the merged object {each}, which is gone")
        if each[1] != reached:
            raise Violation(f"the merged object {each} does not follow {reached}")
        reached = each[2]
    if reached != state.floor:
        raise Violation(f"the merged objects end at {reached}, the floor is {state.floor}")
    end = tail(world)
    appended = world.history[-1][1] if world.history else 0
    if end < appended:
        raise Violation(f"events through {appended} were appended, the stream ends at {end}")
    for before, after in zip(world.history, world.history[1:], strict=False):
        if after[0] != before[1]:
            raise Violation(f"{after} does not follow {before}")
    for batch in chain(world, state.floor):
        if batch not in world.history:
            raise Violation(f"{batch} is in the stream and was never appended")


def successors(world: World, bounds: Bounds, rules: Rules) -> Iterator[tuple[str, World]]:
    for number in range(len(bounds.relays)):
        for label, after in relay_steps(world, number, bounds, rules):
            yield f"relay {number} {label}", after
    for who, steps in (
        ("merger", merger_steps(world, rules)),
        ("trimmer", trimmer_steps(world, rules)),
        ("sweeper", sweep_steps(world, rules)),
        ("reader", reader_steps(world, bounds, rules)),
        ("store", late_steps(world)),
    ):
        for label, after in steps:
            yield f"{who} {label}", after


def explore(bounds: Bounds, rules: Rules | None = None, states_max: int = 3_000_000) -> int:
    """Every reachable state, breadth first; how many. `Violation` comes with a shortest way to it."""
    rules = rules or Rules()
    left = (bounds.merges, bounds.trims, bounds.sweeps, bounds.late_requests, bounds.crashes)
    first = World(relays=(Party(),) * len(bounds.relays), left=left)
    parents: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        try:
            check(world)
            for label, after in successors(world, bounds, rules):
                if after not in parents:
                    parents[after] = world, label
                    waiting.append(after)
        except Violation as violation:
            raise Violation(f"{violation}; it came to this so:\n{_trace(parents, world)}") from None
        assert len(parents) <= states_max, f"more than {states_max} states: tighten the bounds"
    return len(parents)


def _trace(parents: dict[World, tuple[World, str] | None], world: World) -> str:
    steps = []
    while (came := parents[world]) is not None:
        world, label = came
        steps.append(label)
    return "\n".join(reversed(steps))
