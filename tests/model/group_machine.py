"""Random members, crashes and clocks around the pure decisions of a group, and what must stay true.

The machine keeps its own books: what was appended, who was handed what, which acknowledgement
was accepted. Nothing of that is read from the group's state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_store.groups import decision
from stream_store.groups.decision import Window
from stream_store.groups.state import NO_KEY, Lot, Member, Order, Settings, State

LEASE_US = 1000
NAMES = ("ann", "ben", "cat")


class Violation(AssertionError):
    """A promise of the group was broken."""


@dataclass(frozen=True)
class Rules:
    """What is under test. A mutant has one of them weakened."""

    give: Callable[..., Any] = decision.give
    settle: Callable[..., Any] = decision.settle
    nack: Callable[..., Any] = decision.nack
    # The time a claim goes by, of the database's and of the member's own.
    clock: Callable[[int, int], int] = lambda database_us, member_us: database_us


@dataclass
class Process:
    """A member as its own process sees it."""

    name: str
    skew_us: int = 0
    max_in_flight: int = 3
    holdings: dict[int, list[int]] = field(default_factory=dict)
    window: Window = field(default_factory=lambda: Window(0, 0))
    stalled: bool = False


class GroupMachine(RuleBasedStateMachine):
    decides = Rules()

    # What a test may narrow, to search where it expects to find something.
    orders: tuple[Order, ...] = tuple(Order)
    group_limits: tuple[int | None, ...] = (None, 1, 4)

    @initialize(
        data=st.data(),
        max_tries=st.sampled_from([None, 1, 2, 3]),
        skews=st.lists(st.sampled_from([-5000, 0, 5000]), min_size=3, max_size=3),
        limits=st.lists(st.integers(1, 4), min_size=3, max_size=3),
        steps=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2)), min_size=1, max_size=8),
    )
    def start(self, data, max_tries, skews, limits, steps):
        order = data.draw(st.sampled_from(self.orders))
        group_limit = data.draw(st.sampled_from(self.group_limits))
        self.settings = Settings(order=order, max_in_flight=group_limit, max_tries=max_tries)
        self.state = State(self.settings, 0)
        self.now_us = 1_000_000
        self.tokens: Iterator[int] = itertools.count(1)
        self.processes = [Process(*each) for each in zip(NAMES, skews, limits, strict=True)]
        # The stream: IDs with their subjects, and its tail.
        self.keys: dict[int, int] = {}
        self.tail = 0
        # The books: who was handed an event and has not settled it, as (member, token).
        self.owner: dict[int, tuple[str, int]] = {}
        self.heard_us: dict[str, int] = {}
        self.acked: set[int] = set()
        self.letters: set[int] = set()
        self.given_count: dict[int, int] = {}
        self.is_broken = False
        self.append(steps)

    def require(self, holds: bool, promise: str, *facts: object) -> None:
        if not holds:
            self.is_broken = True
            raise Violation(f"{promise}: {facts}")

    # What the world does

    @rule(steps=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2)), min_size=1, max_size=5))
    def append(self, steps):
        for step, key in steps:
            self.tail += step
            self.keys[self.tail] = key

    @rule(jump_us=st.sampled_from([1, 300, 900, 1100, 5000, -400, -5000]))
    def let_time_pass(self, jump_us):
        self.now_us += jump_us

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.state = replace(self.state, paused=paused)

    # What members do

    @rule(who=st.integers(0, 2), rows=st.integers(1, 4), is_lost=st.sampled_from([False, False, False, True]))
    def claim(self, who, rows, is_lost):
        self.ask_on(self.processes[who], rows, is_lost=is_lost)

    @rule(who=st.integers(0, 2), data=st.data())
    def claim_and_nack(self, who, data):
        process = self.processes[who]
        self.ask_on(process, 4)
        if process.holdings:
            self.refuse(process, max(process.holdings), data, 0, goes_on=True)

    @rule(who=st.integers(0, 2), other=st.integers(0, 2), rows=st.integers(1, 4))
    def fall_silent(self, who, other, rows):
        """A member takes events and is stopped for longer than its lease, and another comes."""
        self.ask_on(self.processes[who], rows)
        self.processes[who].stalled = True
        self.now_us += LEASE_US + 1
        self.ask_on(self.processes[other], rows)

    @rule(who=st.integers(0, 2))
    def beat(self, who):
        process = self.processes[who]
        known = [each for each in self.state.members if each.name == process.name]
        if process.stalled:
            return
        if not known:
            process.holdings.clear()
            return
        others = tuple(each for each in self.state.members if each.name != process.name)
        self.state = replace(self.state, members=(*others, replace(known[0], expires_us=self.now_us + LEASE_US)))
        self.heard_us[process.name] = self.now_us

    @precondition(lambda self: any(process.holdings for process in self.processes))
    @rule(data=st.data())
    def ack(self, data):
        process, token = self.draw_holding(data)
        self.ack_first(process, token, data.draw(st.integers(1, len(process.holdings[token]))))

    @precondition(lambda self: any(process.holdings for process in self.processes))
    @rule(data=st.data(), delay_us=st.sampled_from([0, 200, 2000]), goes_on=st.booleans())
    def nack(self, data, delay_us, goes_on):
        self.refuse(*self.draw_holding(data), data, delay_us, goes_on)

    def refuse(self, process, token, data, delay_us, goes_on):
        chosen = data.draw(st.sampled_from(process.holdings[token]))
        returned = self.decides.nack(
            self.state, token, [chosen], now_us=self.now_us, delay_us=delay_us, reason="no", tokens=self.tokens
        )
        self.state = returned.state
        if returned.late:
            del process.holdings[token]
            return
        self.bury(returned.letters)
        self.let_go(process, token, [chosen, *returned.pulled_back])
        if goes_on and token in process.holdings:
            self.ack_first(process, token, len(process.holdings[token]))

    @rule(who=st.integers(0, 2))
    def crash(self, who):
        """It comes back under another name, as a process does."""
        old = self.processes[who]
        self.processes[who] = Process(f"{old.name}'", old.skew_us, old.max_in_flight)

    @rule(who=st.integers(0, 2), stalled=st.booleans())
    def stall(self, who, stalled):
        """A member that is stopped, or cut off, sends no heartbeats; it may still try to acknowledge."""
        self.processes[who].stalled = stalled

    @rule(who=st.integers(0, 2))
    def leave(self, who):
        process = self.processes[who]
        if process.stalled:
            return
        for token, ids in process.holdings.items():
            self.state = decision.give_back(self.state, token, ids, tokens=self.tokens, touched=False)
            for event_id in ids:
                if self.owner.get(event_id) == (process.name, token):
                    del self.owner[event_id]
        for lot in self.state.lots:
            if lot.member == process.name:
                self.state = decision.give_back(self.state, lot.token, lot.ids, tokens=self.tokens, touched=False)
        self.state = decision.leave(self.state, process.name)
        process.holdings.clear()

    @precondition(lambda self: self.letters)
    @rule(data=st.data())
    def redrive(self, data):
        ids = data.draw(st.sets(st.sampled_from(sorted(self.letters)), min_size=1))
        self.state = decision.redrive(
            self.state, {event_id: self.keys[event_id] for event_id in ids}, next(self.tokens)
        )
        self.letters -= ids

    # The parts of these

    def draw_holding(self, data):
        process = data.draw(st.sampled_from([process for process in self.processes if process.holdings]))
        return process, data.draw(st.sampled_from(sorted(process.holdings)))

    def read(self, head, rows):
        ids = [event_id for event_id in self.keys if event_id > head]
        through = ids[rows - 1] if len(ids) >= rows else self.tail
        ids = ids[:rows]
        return Window(head, through, ids, [self.keys[event_id] for event_id in ids])

    def ask_on(self, process: Process, rows: int, *, is_lost: bool = False) -> None:
        """Ask until the window begins where the group stands, as members do."""
        for _ in range(3):
            if self.ask(process, rows, is_lost=is_lost) is not None:
                return

    def ask(self, process: Process, rows: int, *, is_lost: bool = False) -> Lot | None:
        if process.stalled:
            return None
        held = sum(len(ids) for ids in process.holdings.values())
        before = self.state
        given = self.decides.give(
            self.state,
            now_us=self.decides.clock(self.now_us, self.now_us + process.skew_us),
            member=Member(process.name, 0, LEASE_US),
            max_in_flight=min(held + rows, process.max_in_flight),
            window=process.window,
            held_tokens=process.holdings,
            tokens=self.tokens,
        )
        self.state = given.state
        self.bury(given.letters)
        for lot in before.lots:
            if lot.member is not None and self.state.lot(lot.token) is None:
                self.check_taken_away(lot, process)
        self.heard_us[process.name] = self.now_us
        process.holdings = {
            token: ids
            for token, ids in process.holdings.items()
            if (lot := self.state.lot(token)) is not None and lot.member == process.name
        }
        if given.lot is not None:
            self.check_given(given.lot, process)
            for event_id in given.lot.ids:
                self.given_count[event_id] = self.given_count.get(event_id, 0) + 1
                if not is_lost:
                    self.owner[event_id] = (process.name, given.lot.token)
            if not is_lost:
                process.holdings[given.lot.token] = list(given.lot.ids)
        elif given.stale or not process.window.reaches_past(self.state.head):
            process.window = self.read(self.state.head, 4)
        return given.lot

    def ack_first(self, process: Process, token: int, count: int) -> None:
        ids = process.holdings[token]
        done, left = ids[:count], ids[count:]
        known = next((lot for lot in self.state.lots if lot.token == token), None)
        keys = tuple(self.keys[event_id] for event_id in left) if self.settings.order is Order.SUBJECT else ()
        rest = Lot(token, tuple(left), keys, process.name, known.tries if known else 1) if left else None
        settled = self.decides.settle(self.state, token, rest)
        if settled is None:
            del process.holdings[token]
            return
        self.state = settled
        for event_id in done:
            self.require(
                self.owner.get(event_id) == (process.name, token),
                "only who has an event acknowledges it",
                event_id,
                process,
            )
            self.check_order_of_ack(event_id)
            self.acked.add(event_id)
        self.let_go(process, token, done)

    def let_go(self, process: Process, token: int, ids: list[int]) -> None:
        for event_id in ids:
            self.owner.pop(event_id, None)
        process.holdings[token] = [event_id for event_id in process.holdings[token] if event_id not in ids]
        if not process.holdings[token]:
            del process.holdings[token]

    def bury(self, letters) -> None:
        for letter in letters:
            self.require(letter.id not in self.acked, "what was acknowledged is no dead letter", letter)
            tries = self.given_count.get(letter.id, 0)
            self.require(tries >= (self.settings.max_tries or 0), "a dead letter had all its tries", letter, tries)
            self.letters.add(letter.id)
            self.owner.pop(letter.id, None)

    # What must be true

    def unfinished(self) -> list[int]:
        return [event_id for event_id in self.keys if event_id not in self.acked and event_id not in self.letters]

    def is_alive(self, name: str) -> bool:
        return name in self.heard_us and self.heard_us[name] + LEASE_US >= self.now_us

    def check_taken_away(self, lot: Lot, by: Process) -> None:
        """Only from the dead, or what the member itself does not know of."""
        name = str(lot.member)
        if name == by.name and lot.token not in by.holdings:
            return
        self.require(not self.is_alive(name), "nothing is taken from a live member", lot, by)
        for event_id in lot.ids:
            if self.owner.get(event_id) == (name, lot.token):
                del self.owner[event_id]

    def check_given(self, lot: Lot, process: Process) -> None:
        for event_id in lot.ids:
            self.require(event_id not in self.acked, "what was acknowledged is not delivered again", event_id)
            self.require(event_id not in self.owner, "an event is with one member at a time", event_id, self.owner)
        held = [each for each in self.state.lots if each.member == process.name]
        self.require(sum(len(each.ids) for each in held) <= process.max_in_flight, "max in flight of a member", held)
        unfinished = self.unfinished()
        if self.settings.order is Order.STRICT:
            self.require(list(lot.ids) == unfinished[: len(lot.ids)], "strict order", lot, unfinished)
        if self.settings.order is Order.SUBJECT:
            for event_id in lot.ids:
                key = self.keys[event_id]
                if key == NO_KEY:
                    continue
                earlier = [each for each in unfinished if each < event_id and self.keys[each] == key]
                self.require(
                    set(earlier) <= set(lot.ids), "an event waits for the earlier ones of its subject", lot, earlier
                )
                others = [each for each in self.owner if self.keys[each] == key and each not in lot.ids]
                self.require(not others, "one delivery of a subject at a time", lot, others)

    def check_order_of_ack(self, event_id: int) -> None:
        if self.settings.order is Order.NONE:
            return
        earlier = [
            each
            for each in self.unfinished()
            if each < event_id
            and (self.settings.order is Order.STRICT or self.keys[each] == self.keys[event_id] != NO_KEY)
        ]
        self.require(not earlier, "an event is done after those that it had to wait for", event_id, earlier)

    @invariant()
    def everything_behind_the_head_is_accounted_for(self):
        if not hasattr(self, "state"):
            return
        outstanding = [event_id for lot in self.state.lots for event_id in lot.ids]
        self.require(len(outstanding) == len(set(outstanding)), "an event is in one lot", self.state)
        behind = {event_id for event_id in self.keys if event_id <= self.state.head}
        done = self.acked | self.letters
        self.require(behind - done <= set(outstanding), "no event is lost", behind - done, self.state)
        self.require(not set(outstanding) & done, "what is done is not outstanding", self.state)
        self.require(
            all(event_id in done for event_id in self.keys if event_id <= self.state.through),
            "everything through the reported position is done",
            self.state,
        )

    @invariant()
    def no_limit_is_exceeded(self):
        if not hasattr(self, "state"):
            return
        held = [lot for lot in self.state.lots if lot.member is not None]
        limit = self.settings.max_in_flight
        self.require(limit is None or self.state.in_flight <= limit, "max in flight of the group", held)
        self.require(self.settings.order is not Order.STRICT or len(held) <= 1, "strict: one delivery at a time", held)

    def teardown(self):
        """However it went: one healthy member that comes late finds everything that is left."""
        if not hasattr(self, "state") or self.is_broken:
            return
        self.state = replace(self.state, paused=False)
        self.now_us = max([self.now_us, *(each.expires_us for each in self.state.members)]) + 10 * LEASE_US
        self.now_us = max([self.now_us, *(lot.not_before_us for lot in self.state.lots)])
        last = Process("last", max_in_flight=4)
        for _ in range(20 * (len(self.keys) + 5)):
            if self.ask(last, 4) is not None:
                for token in list(last.holdings):
                    self.ack_first(last, token, len(last.holdings[token]))
            if self.state.head == self.tail and not self.state.lots:
                break
        self.require(not self.unfinished(), "every event is delivered in the end", self.unfinished(), self.state)
