"""The checker: every state that the parties can reach by any interleaving of their steps.

Breadth first, each state once, so that a violation comes with a shortest trace. A second
pass checks that whatever has happened, a relay left to itself gets everything through.

A relay sees nothing of another but what is in the world. So the worlds and the memories of
relays are numbered, what a relay does in a world is worked out once, and a state is one
integer made of these numbers.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.model.invariants import Violation, broken_invariant
from tests.model.relay_model import append_steps, clean_steps, step
from tests.model.rules import Relay, Rules, disconnected, is_open
from tests.model.world import (
    IDLE,
    Bounds,
    Prepared,
    Promises,
    Session,
    World,
    highest,
    ids_of,
    in_flight,
    is_prepared,
    restart_steps,
    stream_steps,
    through,
    writer_steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBER_BITS = 24
NUMBER_MASK = (1 << NUMBER_BITS) - 1

State = tuple[World, tuple[Relay, ...]]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Explored:
    """How much was looked at."""

    states: int
    transitions: int
    depth: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.depth} steps deep, {self.seconds:.1f} s"
        )


@dataclass
class Checker:
    """One exploration within bounds, by rules."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    promises: Promises = field(default_factory=Promises)
    states_max: int = 20_000_000

    def __post_init__(self) -> None:
        self.worlds: list[World] = []
        self.world_numbers: dict[World, int] = {}
        self.relays: list[Relay] = []
        self.relay_numbers: dict[Relay, int] = {}
        # What happens to a world by itself, and what a relay does in it.
        self.world_moves: dict[int, list[int]] = {}
        self.crash_moves: dict[int, list[int]] = {}
        self.relay_moves: dict[Pair, list[Pair]] = {}
        self.watched_moves: dict[tuple[int, frozenset[str] | None], list[int]] = {}
        self.broken_worlds: dict[int, tuple[str, str]] = {}
        self.broken_pairs: dict[Pair, tuple[str, str]] = {}
        self.parents: dict[int, int] = {}

    # Numbers for worlds and relays, one integer for a state.

    def world_number(self, world: World) -> int:
        number = self.world_numbers.get(world)
        if number is None:
            number = self.world_numbers[world] = len(self.worlds)
            self.worlds.append(world)
            broken = broken_invariant(world)
            if broken:
                self.broken_worlds[number] = broken
        return number

    def relay_number(self, relay: Relay) -> int:
        number = self.relay_numbers.get(relay)
        if number is None:
            number = self.relay_numbers[relay] = len(self.relays)
            self.relays.append(relay)
        return number

    def pack(self, state: State) -> int:
        """Relays are alike: which of two is the first makes no difference."""
        packed = self.world_number(state[0])
        for number in sorted(self.relay_number(relay) for relay in state[1]):
            packed = packed << NUMBER_BITS | number
        return packed

    def unpack(self, packed: int) -> State:
        relays = []
        for _ in range(self.bounds.relays):
            relays.append(self.relays[packed & NUMBER_MASK])
            packed >>= NUMBER_BITS
        return self.worlds[packed], tuple(reversed(relays))

    # The steps of each party, with labels for a trace.

    def initial(self) -> State:
        return World(sessions=(Session(),) * self.bounds.sessions), (Relay(),) * self.bounds.relays

    def around(self, world: World, relay: Relay) -> Iterator[tuple[str, World]]:
        """What writers and the stream do; who is a newcomer depends on the relay's round."""
        waited_for = relay.fence.round if self.bounds.watch_newcomers else None
        yield from writer_steps(world, self.bounds, self.promises, waited_for.waiting_for if waited_for else None)
        yield from stream_steps(world, self.bounds)

    def inside(self, world: World, relay: Relay) -> Iterator[tuple[str, str, World, Relay]]:
        """What one relay does: its loop, its appender, its cleaner, and its crash."""
        taken = step(world, relay, self.bounds, self.rules)
        if taken:
            yield "relay", *taken
        for appended in append_steps(world, relay, self.bounds, self.rules):
            yield "appender", *appended
        if self.bounds.cleaner:
            for cleaned in clean_steps(world, relay, self.rules):
                yield "cleaner", *cleaned
        if self.bounds.crashes and relay != Relay() and relay.at != "stopped":
            yield "relay", "crashes", world, Relay()

    def locked_out(self, relays: tuple[Relay, ...], number: int) -> bool:
        """Whether another relay has the stream open, and nobody else can."""
        others = relays[:number] + relays[number + 1 :]
        return self.bounds.exclusive and relays[number].at == "start" and any(is_open(other) for other in others)

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Each step that any party can take: the plain version of what `run` does with numbers."""
        world, relays = state
        for label, after in self.around(world, relays[0]):
            yield label, (after, relays)
        for label, after in restart_steps(world, self.bounds):
            yield label, (after, tuple(disconnected(relay) for relay in relays))
        for number, relay in enumerate(relays):
            if not self.locked_out(relays, number):
                for who, label, after, moved in self.inside(world, relay):
                    yield f"{who} {number}: {label}", (after, _put(relays, number, moved))

    # The search.

    def run(self) -> Explored:
        """Explore everything; raises `Violation` at the first state that must not be."""
        # Millions of small tuples and not one cycle: the collector would only look at them.
        gc.disable()
        try:
            return self._search()
        finally:
            gc.enable()

    def _search(self) -> Explored:
        began = time.monotonic()
        first = self.pack(self.initial())
        parents = self.parents
        parents[first] = -1
        level, states, transitions, depth = [first], 1, 0, 0
        expand = self._expand_one if self.bounds.relays == 1 else self._expand_two
        while level:
            found: list[int] = []
            for packed in level:
                for after in expand(packed):
                    transitions += 1
                    if after not in parents:
                        parents[after] = packed
                        found.append(after)
                        if self.broken_worlds or self.broken_pairs:
                            self._stop_when_broken(after)
            states += len(found)
            assert states <= self.states_max, f"more than {self.states_max} states: tighten the bounds"
            level = found
            depth += bool(found)
        self.check_progress()
        return Explored(states, transitions, depth, time.monotonic() - began)

    def _expand_one(self, packed: int) -> Iterator[int]:
        world, relay = packed >> NUMBER_BITS, packed & NUMBER_MASK
        moves = self._watched(world, relay) if self.bounds.watch_newcomers else self._world_moves(world)
        for after in moves:
            yield after << NUMBER_BITS | relay
        for after in self._restarts(world):
            yield after << NUMBER_BITS | self.relay_number(disconnected(self.relays[relay]))
        for after, moved in self._relay_moves(world, relay, packed):
            yield after << NUMBER_BITS | moved

    def _expand_two(self, packed: int) -> Iterator[int]:
        world, first, second = packed >> 2 * NUMBER_BITS, packed >> NUMBER_BITS & NUMBER_MASK, packed & NUMBER_MASK
        both = first << NUMBER_BITS | second
        for after in self._world_moves(world):
            yield after << 2 * NUMBER_BITS | both
        for after in self._restarts(world):
            lost = sorted(self.relay_number(disconnected(self.relays[relay])) for relay in (first, second))
            yield (after << NUMBER_BITS | lost[0]) << NUMBER_BITS | lost[1]
        for relay, other in ((first, second), (second, first)):
            if self.bounds.exclusive and self.locked_out((self.relays[relay], self.relays[other]), 0):
                continue
            for after, moved in self._relay_moves(world, relay, packed):
                if moved < other:
                    yield (after << NUMBER_BITS | moved) << NUMBER_BITS | other
                else:
                    yield (after << NUMBER_BITS | other) << NUMBER_BITS | moved
            if first == second:
                break

    def _world_moves(self, number: int) -> list[int]:
        moves = self.world_moves.get(number)
        if moves is None:
            steps = self.around(self.worlds[number], Relay())
            moves = self.world_moves[number] = [self.world_number(after) for _, after in steps]
        return moves

    def _watched(self, number: int, relay: int) -> list[int]:
        current = self.relays[relay].fence.round
        key = number, current.waiting_for if current else None
        moves = self.watched_moves.get(key)
        if moves is None:
            steps = self.around(self.worlds[number], self.relays[relay])
            moves = self.watched_moves[key] = [self.world_number(after) for _, after in steps]
        return moves

    def _restarts(self, number: int) -> list[int]:
        moves = self.crash_moves.get(number)
        if moves is None:
            steps = restart_steps(self.worlds[number], self.bounds)
            moves = self.crash_moves[number] = [self.world_number(after) for _, after in steps]
        return moves

    def _relay_moves(self, number: int, relay_number: int, packed: int) -> list[Pair]:
        pair = number, relay_number
        moves = self.relay_moves.get(pair)
        if moves is None:
            moves = []
            try:
                for _, _, after, moved in self.inside(self.worlds[number], self.relays[relay_number]):
                    found = self.world_number(after), self.relay_number(moved)
                    moves.append(found)
                    if moved.error and not (moved.error == "TAIL_LOST" and after.tail_was_lost):
                        self.broken_pairs[found] = "6 no false alarm", f"a relay stopped with {moved.error}"
            except AssertionError as error:
                raise Violation("2 strictly increasing IDs", str(error), self.trace(packed)) from None
            self.relay_moves[pair] = moves
        return moves

    def _stop_when_broken(self, packed: int) -> None:
        world, relays = self.unpack(packed)
        number = self.world_number(world)
        broken = self.broken_worlds.get(number)
        for relay in relays:
            broken = broken or self.broken_pairs.get((number, self.relay_number(relay)))
        if broken:
            raise Violation(*broken, self.trace(packed))

    # Liveness: what a relay left to itself comes to.

    def check_progress(self) -> None:
        """From every state without a writer in flight, each relay alone gets everything through;
        and with newcomers frozen in flight, an open round ends all the same."""
        arrived: set[Pair] = set()
        for pair in list(self.relay_moves):
            if not in_flight(self.worlds[pair[0]]):
                self._walk(pair, arrived)
        if self.bounds.watch_newcomers:
            served: set[Pair] = set()
            for pair in list(self.relay_moves):
                self._check_patience(pair, served)

    def _walk(self, pair: Pair, arrived: set[Pair]) -> None:
        path: dict[Pair, None] = {}
        while pair not in arrived:
            world, relay = self.worlds[pair[0]], self.relays[pair[1]]
            if self._is_through(world, relay):
                break
            if pair in path:
                missing = world.committed & ~world.stream
                what = (
                    f"{ids_of(missing)} never reaches the stream"
                    if missing
                    else f"{ids_of(world.rows)} is never deleted"
                )
                raise Violation("liveness", what, self._alone_trace(list(path)))
            path[pair] = None
            _, pair = self._alone(pair)
        arrived.update(path)
        arrived.add(pair)

    def _is_through(self, world: World, relay: Relay) -> bool:
        if relay.at == "stopped":
            return True
        if relay.at != "standing" or relay.queue or relay.written or not relay.connected:
            return False
        if world.tail_was_lost and relay.tail > highest(world.stream):
            # It will learn that the tail is lost from its next append, or from its next start.
            return True
        return world.stream == world.committed and not (self.bounds.cleaner and world.rows)

    def _alone(self, pair: Pair) -> tuple[str, Pair]:
        """The next step of a relay that appends at once what it has, and deletes at once what it may."""
        world, relay = self.worlds[pair[0]], self.relays[pair[1]]
        beside = list(append_steps(world, relay, self.bounds, self.rules))
        if not beside and self.bounds.cleaner:
            beside = list(clean_steps(world, relay, self.rules))
        taken = beside[-1] if beside else step(world, relay, self.bounds, self.rules)
        assert taken, relay
        return taken[0], (self.world_number(taken[1]), self.relay_number(taken[2]))

    def _alone_trace(self, path: list[Pair]) -> list[str]:
        """To a state with the first pair of a path, then along the path."""
        world, relay = path[0]
        for packed in self.parents:
            numbers = [packed >> shift * NUMBER_BITS & NUMBER_MASK for shift in range(self.bounds.relays)]
            if packed >> self.bounds.relays * NUMBER_BITS == world and relay in numbers:
                return [*self.trace(packed), *(f"relay alone: {self._alone(pair)[0]}" for pair in path)]
        raise LookupError(path[0])

    def _check_patience(self, pair: Pair, served: set[Pair]) -> None:
        """Nobody who began after a round's list was made is waited for, even if they never end."""
        world, relay = self.worlds[pair[0]], self.relays[pair[1]]
        current = relay.fence.round
        if current is None:
            return
        holds: list[Session | Prepared] = [session for session in world.sessions if session.phase != IDLE]
        holds += world.prepared
        # The second list, of prepared transactions, is made when the first is empty.
        listed_later = current.prepared is None and self.bounds.dialect != "postgresql"
        if not all(held.newcomer and not (listed_later and is_prepared(held)) for held in holds):
            return
        path: dict[Pair, None] = {}
        while pair not in served and self._waits(pair):
            if pair in path:
                what = f"the round waits for {sorted(current.waiting_for)} for ever"
                raise Violation("5 newcomers are never waited for", what, self._alone_trace(list(path)))
            path[pair] = None
            _, pair = self._alone(pair)
        served.update(path)

    def _waits(self, pair: Pair) -> bool:
        """Whether rows wait behind the gap of an open round. A gap may fill while they wait."""
        world, relay = self.worlds[pair[0]], self.relays[pair[1]]
        return relay.fence.round is not None and bool(world.rows & ~through(relay.tail))

    # Traces.

    def trace(self, packed: int) -> list[str]:
        """The labels of the steps to a state, told for the relays as they were numbered first."""
        path = []
        while packed != -1:
            path.append(packed)
            packed = self.parents[packed]
        path.reverse()
        actual, labels = self.initial(), []
        for wanted in path[1:]:
            for label, after in self.successors(actual):
                if self.pack(after) == wanted:
                    labels.append(label)
                    actual = after
                    break
        return labels


def _put(relays: tuple[Relay, ...], number: int, relay: Relay) -> tuple[Relay, ...]:
    return (*relays[:number], relay, *relays[number + 1 :])
