"""The fence's decisions, one by one; `tests/model` runs them through every interleaving."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.fence import Fence, Holders, Round, admit, observe, settle


def held(*sessions: str, prepared: Sequence[str] = ()) -> Holders:
    return Holders(frozenset(sessions), frozenset(prepared))


# Waiting.


def test_nobody_holds_so_everything_drawn_is_settled() -> None:
    assert observe(Fence(), 7, held()) == Fence(7)


def test_round_waits_for_those_who_held_when_it_began() -> None:
    fence = observe(Fence(3), 7, held("a", "b"))
    assert fence.settled_through == 3
    assert fence.round == Round(7, frozenset({"a", "b"}))
    assert fence.round.waiting_for == {"a", "b"}


def test_holder_seen_absent_once_is_not_waited_for_again() -> None:
    fence = observe(Fence(), 7, held("a", "b"))
    fence = observe(fence, 8, held("b"))
    fence = observe(fence, 9, held("a", "b"))
    assert fence.round is not None
    assert fence.round.waiting_for == {"b"}
    assert observe(fence, 9, held("a")) == Fence(7)


def test_newcomers_are_never_waited_for() -> None:
    fence = observe(Fence(), 7, held("a"))
    assert observe(fence, 9, held("b", "c")) == Fence(7)


def test_round_settles_what_it_began_with_and_not_what_was_drawn_since() -> None:
    fence = observe(Fence(), 7, held("a"))
    assert observe(fence, 100, held()).settled_through == 7


def test_nothing_new_drawn_opens_no_round() -> None:
    assert observe(Fence(7), 7, held("a")) == Fence(7)
    assert observe(Fence(7), 6, held()) == Fence(7)


def test_session_that_turned_into_a_prepared_transaction_is_waited_for() -> None:
    fence = observe(Fence(), 7, held("thread 1"))
    fence = observe(fence, 7, held(prepared=["xa 1"]))
    assert fence.round is not None
    assert fence.round.waiting_for == {"xa 1"}
    fence = observe(fence, 7, held("thread 2", prepared=["xa 1", "xa 2"]))
    assert fence.round is not None
    assert fence.round.waiting_for == {"xa 1"}
    assert observe(fence, 7, held("thread 2", prepared=["xa 2"])) == Fence(7)


def test_prepared_transactions_are_listed_after_the_last_session_was_seen_absent() -> None:
    fence = observe(Fence(), 7, held("thread 1", prepared=["xa 9"]))
    assert fence.round is not None
    assert fence.round.prepared is None
    fence = observe(fence, 7, held(prepared=["xa 1"]))
    assert fence.round is not None
    assert fence.round.prepared == {"xa 1"}


def test_barrier_settles_and_never_unsettles() -> None:
    assert settle(Fence(3, Round(5, frozenset({"a"}))), 9) == Fence(9)
    assert settle(Fence(9), 3) == Fence(9)


LISTING = st.builds(Holders, st.frozensets(st.sampled_from("abc")), st.frozensets(st.sampled_from("xyz")))


@given(st.lists(st.tuples(st.integers(0, 3), LISTING), max_size=12))
def test_settled_only_when_each_first_holder_was_seen_absent(listings: list[tuple[int, Holders]]) -> None:
    fence, bound, seen = Fence(), 0, []
    for more, holders in listings:
        bound += more
        before, fence = fence, observe(fence, bound, holders)
        seen = [*seen, holders] if before.round else [holders]
        assert fence.settled_through >= before.settled_through
        if fence.settled_through > before.settled_through:
            assert fence.round is None
            assert fence.settled_through == (before.round.bound if before.round else bound)
            for holder in seen[0].sessions:
                assert any(holder not in later.sessions for later in seen)
        elif fence.round:
            assert fence.round.waiting_for, "a round without anybody to wait for is over"
            assert fence.round.sessions <= seen[0].sessions


# Admitting.


def row_by_row(fence: Fence, tail: int, deleted_through: int, ids: Sequence[int]) -> int:
    """`admit` as one would write it first: each missing ID on the way must be settled."""
    if deleted_through > tail:
        return 0
    count, last = 0, tail
    for row in ids:
        if any(missing > fence.settled_through for missing in range(last + 1, row)):
            break
        count, last = count + 1, row
    return count


@given(
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sets(st.integers(1, 40)),
)
def test_admit_is_what_row_by_row_would_admit(settled: int, tail: int, deleted: int, ids: set[int]) -> None:
    above = sorted(row for row in ids if row > tail)
    assert admit(Fence(settled), tail, deleted, above) == row_by_row(Fence(settled), tail, deleted, above)


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 30), st.sets(st.integers(1, 30)))
def test_admitting_part_by_part_is_admitting_all_at_once(settled: int, tail: int, size: int, ids: set[int]) -> None:
    above = sorted(row for row in ids if row > tail)
    first, rest = above[:size], above[size:]
    whole = admit(Fence(settled), tail, 0, above)
    count = admit(Fence(settled), tail, 0, first)
    if count == len(first) and rest:
        count += admit(Fence(settled), first[-1] if first else tail, 0, rest)
    assert count == whole


@pytest.mark.parametrize(
    ("settled", "tail", "ids", "count"),
    [
        (0, 0, [], 0),
        (0, 0, [1, 2, 3], 3),
        (0, 0, [2], 0),
        (1, 0, [2], 1),
        (0, 5, [6, 7, 9], 2),
        (8, 5, [7, 9, 10, 12], 3),
        (5, 9, [10, 11], 2),
        (5, 9, [11], 0),
    ],
)
def test_admits_up_to_the_first_gap_that_is_not_settled(settled: int, tail: int, ids: list[int], count: int) -> None:
    assert admit(Fence(settled), tail, 0, ids) == count


def test_an_open_round_settles_nothing() -> None:
    assert admit(Fence(0, Round(9, frozenset({"a"}))), 0, 0, [2, 3]) == 0


def test_nothing_is_admitted_where_another_relay_has_deleted() -> None:
    assert admit(Fence(99), 5, 6, [7, 8]) == 0
    assert admit(Fence(99), 5, 5, [7, 8]) == 2


class Counted(Sequence[int]):
    """IDs that count how often one of them is looked at."""

    def __init__(self, ids: range) -> None:
        self._ids = ids
        self.looks = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, position):
        self.looks += 1
        return self._ids[position]


def test_admit_does_not_look_at_every_row() -> None:
    ids = Counted(range(1, 1_000_001))
    assert admit(Fence(500_000), 0, 0, ids) == 1_000_000
    assert ids.looks < 100


def test_a_barrier_waits_on_for_the_prepared_transactions_behind_it_and_no_others() -> None:
    fence = settle(Fence(), 7, frozenset({"xa:old"}))
    assert fence.settled_through == 0
    fence = observe(fence, 9, Holders(frozenset({"unlisted"}), frozenset({"xa:old", "xa:new"})))
    assert fence.settled_through == 0
    fence = observe(fence, 9, Holders(frozenset({"unlisted"}), frozenset({"xa:new"})))
    assert fence == Fence(settled_through=7)
