"""The group's decisions, case by case; the model in tests/model has the rest."""

from __future__ import annotations

import itertools

import pytest

from stream_store.groups import decision
from stream_store.groups.decision import Window, give
from stream_store.groups.events_text import decode, encode
from stream_store.groups.state import Lot, Member, Order, Settings, State

LEASE_US = 100


class Bench:
    """A group, a clock and a stream of dense IDs, for calls in few words."""

    def __init__(self, tail: int, **settings: object) -> None:
        self.state = State(Settings(**settings), 0)
        self.tail = tail
        self.now_us = 0
        self.tokens = itertools.count(1)

    def ask(
        self, name: str, limit: int = 100, held: tuple[int, ...] = (), tried: tuple[int, ...] = ()
    ) -> decision.Given:
        ids = range(self.state.head + 1, self.tail + 1)
        given = give(
            self.state,
            now_us=self.now_us,
            member=Member(name, 0, LEASE_US),
            max_in_flight=limit,
            window=Window(self.state.head, self.tail, ids, [1 + i % 3 for i in ids]),
            held_tokens=held,
            tokens=self.tokens,
            tried_tokens=tried,
        )
        self.state = given.state
        return given


def test_a_claim_whose_answer_was_lost_is_no_try() -> None:
    """The events were delivered to nobody, and would be dead letters at once."""
    bench = Bench(3, max_tries=1)
    assert bench.ask("a").lot is not None
    for _ in range(3):
        given = bench.ask("a")
        assert given.letters == ()
        assert given.lot is not None
        assert (given.lot.ids, given.lot.tries) == ((1, 2, 3), 1)


def test_a_delivery_whose_own_acknowledgement_was_undone_is_a_try() -> None:
    bench = Bench(3, max_tries=1)
    lot = bench.ask("a").lot
    assert lot is not None
    given = bench.ask("a", tried=(lot.token,))
    assert [letter.id for letter in given.letters] == [1, 2, 3]


def test_only_what_kills_its_members_becomes_a_dead_letter() -> None:
    """Members die at event 5 of what they have, after acknowledging the events before it."""
    bench = Bench(10, max_tries=3)
    letters = []
    done = []
    for life in range(60):
        bench.now_us += 2 * LEASE_US
        given = bench.ask(f"life {life}")
        letters += [letter.id for letter in given.letters]
        while given.lot is not None:
            before = tuple(itertools.takewhile(lambda event_id: event_id != 5, given.lot.ids))
            died = 5 in given.lot.ids
            left = given.lot.only(set(given.lot.ids) - set(before), given.lot.token)
            settled = decision.settle(bench.state, given.lot.token, left)
            assert settled is not None
            bench.state = settled
            done += before
            if died:
                break
            given = bench.ask(f"life {life}")
            letters += [letter.id for letter in given.letters]
        else:
            if not bench.state.lots:
                break
    assert letters == [5]
    assert sorted(done) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_the_last_try_of_a_suspect_is_made_by_a_member_that_has_nothing_else() -> None:
    bench = Bench(6, max_tries=2)
    assert len(bench.ask("dies", 4).lot.ids) == 4
    other = bench.ask("lives", 1).lot
    bench.now_us = LEASE_US + 1
    bench.state = decision._joined(bench.state, Member("lives", bench.now_us + LEASE_US, LEASE_US))
    assert bench.ask("lives", 100, (other.token,)).lot is None
    assert bench.ask("idle", 100).lot.ids == (1,)
    assert bench.ask("idle", 100, tuple(lot.token for lot in bench.state.lots)).lot is None


def test_a_claim_whose_answer_never_came_is_taken_back_by_its_member() -> None:
    bench = Bench(4)
    lost = bench.ask("a", 2).lot
    again = bench.ask("a", 2, held=()).lot
    assert again.ids == lost.ids
    assert again.token != lost.token
    assert decision.settle(bench.state, lost.token, None) is None


def test_a_window_from_elsewhere_is_stale_and_one_that_is_used_up_is_not() -> None:
    state = State(Settings(), 10)
    asked = {
        "now_us": 0,
        "member": Member("a", 0, 1),
        "max_in_flight": 1,
        "held_tokens": (),
        "tokens": itertools.count(1),
    }
    assert give(state, window=Window(3, 8, [4, 8]), **asked).stale
    assert give(state, window=Window(12, 14, [13]), **asked).stale
    assert not give(state, window=Window(5, 10, [6, 10]), **asked).stale
    assert give(state, window=Window(5, 12, [6, 12]), **asked).lot.ids == (12,)


def test_the_head_stops_where_too_much_would_have_to_be_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "PARKED_MAX", 2)
    bench = Bench(100, order=Order.SUBJECT)
    assert bench.ask("a", 3).lot.ids == (1, 2, 3)
    assert bench.ask("b", 3).lot is None
    assert (bench.state.head, bench.state.waiting) == (5, 2)


def test_what_is_redriven_after_a_reset_is_not_there_twice() -> None:
    state = State(Settings(), 3, lots=(Lot(1, (2,)),))
    redriven = decision.redrive(state, {1: 7, 2: 7, 9: 7}, 5)
    assert [lot.ids for lot in redriven.lots] == [(2,), (1,)]
    assert decision.redrive(state, {2: 7, 9: 7}, 5) == state


@pytest.mark.parametrize(
    ("ids", "keys", "text"),
    [
        ((7,), (), "7-7"),
        ((1, 2, 3), (), "1-3"),
        ((1, 2, 5, 7, 8), (), "1-2,5-5,7-8"),
        ((1, 5), (9, 0), "1:9,5:0"),
    ],
)
def test_events_as_text(ids: tuple[int, ...], keys: tuple[int, ...], text: str) -> None:
    assert encode(ids, keys) == text
    assert decode(text) == (ids, keys)
