"""How far a stream may be trimmed: the limits, and who holds them back."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import UsageError
from stream_store import Cut, open_stream
from stream_store import memory as memory_streams
from stream_store.readers import GROUP, TABLE, Reader
from stream_store.retention import (
    OUT_TABLE,
    READER_MAX_AGE,
    Hold,
    Policy,
    Watch,
    beyond_bytes,
    choose,
    plan,
    plan_through,
    wanted_through,
)
from tests.crash.stream_events import EPOCH, batch

WEEK_SECONDS = READER_MAX_AGE.total_seconds()
_names = itertools.count()


@pytest.fixture
def stream():
    with open_stream(f"memory://retention-{next(_names)}", "write") as opened:
        yield opened


def holds() -> st.SearchStrategy[Hold]:
    return st.builds(
        Hold,
        kind=st.sampled_from([TABLE, GROUP, OUT_TABLE]),
        name=st.sampled_from("abc"),
        through=st.integers(0, 50),
        silent_seconds=st.one_of(st.none(), st.floats(0, 3 * WEEK_SECONDS)),
    )


@given(st.integers(0, 60), st.integers(0, 40), st.lists(holds()), st.booleans())
def test_nothing_that_somebody_alive_needs_is_trimmed(wanted, trimmed, found, force):
    choice = choose(wanted, trimmed, found, READER_MAX_AGE, force=force)
    assert trimmed <= choice.through <= max(wanted, trimmed)
    for hold in found:
        is_alive = hold.kind == OUT_TABLE or not (force or (hold.silent_seconds or 0) > WEEK_SECONDS)
        if is_alive and hold.through < wanted:
            assert choice.through <= max(hold.through, trimmed)
            assert hold in choice.held_by
        assert (hold in choice.passed_over) == (not is_alive and hold.through < wanted)
    if not choice.held_by:
        assert choice.through == max(wanted, trimmed)


def test_the_furthest_behind_is_named_first():
    found = [Hold(TABLE, "late", 7), Hold(GROUP, "later", 3), Hold(TABLE, "ahead", 99)]
    choice = choose(20, 0, found, READER_MAX_AGE, force=False)
    assert (choice.through, [hold.name for hold in choice.held_by]) == (3, ["later", "late"])


def test_force_ignores_readers_and_never_the_out_table():
    found = [Hold(TABLE, "t", 2), Hold(OUT_TABLE, "rows", 5)]
    choice = choose(20, 0, found, READER_MAX_AGE, force=True)
    assert (choice.through, [hold.kind for hold in choice.held_by]) == (5, [OUT_TABLE])
    assert [hold.name for hold in choice.passed_over] == ["t"]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("30d", Policy(keep_age=timedelta(days=30))),
        ("12h", Policy(keep_age=timedelta(hours=12))),
        ("50GB", Policy(keep_bytes=50 * 10**9)),
        ("1.5 GiB", Policy(keep_bytes=3 * 2**29)),
        ("1000 events", Policy(keep_count=1000)),
        ("30d, 50gb,1000 events", Policy(timedelta(days=30), 50 * 10**9, 1000)),
    ],
)
def test_policies_as_people_write_them(text, policy):
    assert Policy.parse(text) == policy
    assert policy


@pytest.mark.parametrize("bad", ["", "30", "30 fortnights", "d", "30d, 60d", "30d,"])
def test_policy_that_means_nothing_is_refused(bad):
    with pytest.raises(UsageError):
        Policy.parse(bad)
    assert not Policy()


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(0, 200))
def test_bytes_that_are_kept_fit_and_nothing_smaller_would_do(sizes, keep):
    cuts = [Cut(position * 10, size) for position, size in enumerate(sizes, 1)]
    through = beyond_bytes(cuts, keep)
    kept = [cut.size_bytes for cut in cuts if cut.id > through]
    assert sum(kept) <= keep
    dropped = [cut for cut in cuts if cut.id <= through]
    if dropped:
        assert sum(kept) + dropped[-1].size_bytes > keep


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8), keep=st.integers(0, 50), trim=st.integers(0, 30))
def test_exactly_the_newest_events_are_kept(sizes, keep, trim):
    with open_stream(f"memory://retention-{next(_names)}", "write") as stream:
        ids: list[int] = []
        for size in sizes:
            # Every third ID is dead.
            first = (ids[-1] if ids else 0) + 2
            part = [first + position + position // 2 for position in range(size)]
            stream.append(batch(part, prev_id=ids[-1] if ids else 0))
            ids += part
        stream.trim(trim)
        trimmed = stream.info().trimmed_through
        held = [each for each in ids if each > trimmed]
        wanted = wanted_through(stream, Policy(keep_count=keep), datetime.now(UTC))
        assert [each for each in held if each > wanted] == (held[-keep:] if keep else [])


def test_events_that_exceed_any_limit_may_go(stream):
    for first in range(1, 100, 10):
        stream.append(batch(range(first, first + 10)))
    now = EPOCH + timedelta(seconds=100)
    assert wanted_through(stream, Policy(keep_age=timedelta(seconds=40)), now) == 59
    assert wanted_through(stream, Policy(timedelta(seconds=40), keep_count=25), now) == 75
    assert wanted_through(stream, Policy(keep_bytes=10**9), now) == 0
    assert wanted_through(stream, Policy(keep_bytes=1), now) == 100
    assert wanted_through(stream, Policy(keep_age=timedelta(0)), now + timedelta(days=1)) == 100


def tell(stream, kind, name, through, at):
    """A report of another time."""
    store = memory_streams._stores[stream.url.removeprefix("memory://")]
    store.readers[kind, name] = Reader(kind, name, through, at)


def test_dead_reader_does_not_hold_for_ever_and_is_named(stream):
    stream.append(batch(range(1, 11)))
    stream.append(batch(range(11, 21)))
    now = EPOCH + timedelta(days=8)
    tell(stream, GROUP, "gone", 5, EPOCH)
    tell(stream, TABLE, "alive", 14, now - timedelta(hours=1))
    choice = plan_through(stream, 20, now=now)
    assert (choice.through, [hold.name for hold in choice.held_by]) == (14, ["alive"])
    [dead] = choice.passed_over
    assert (dead.name, dead.through) == ("gone", 5)
    assert dead.silent_seconds == pytest.approx(8 * 86400, abs=60)
    assert plan_through(stream, 20, now=now, reader_max_age=timedelta(days=30)).through == 5


def test_reader_of_a_stream_in_which_nothing_happened_is_not_dead(stream):
    """It had nothing to say: what there is to read for it came an hour ago."""
    stream.append(batch([1, 2]))
    now = EPOCH + timedelta(days=300)
    tell(stream, GROUP, "patient", 2, EPOCH)
    stream.append(batch([3, 4], at=now - timedelta(hours=1)))
    assert plan(stream, Policy(keep_count=0), now=now).through == 2
    assert plan(stream, Policy(keep_count=0), now=now + timedelta(days=8)).through == 4


def test_reader_is_passed_over_only_when_it_was_seen_behind_for_as_long(stream):
    """After an outage of the relay old rows arrive at once: their time says nothing of how long they could be read."""
    seconds = 0.0
    watch = Watch(lambda: seconds)
    now = EPOCH + timedelta(days=30)
    stream.append(batch([1, 2]))
    tell(stream, GROUP, "alive", 2, EPOCH)
    stream.append(batch([3, 4], at=EPOCH + timedelta(days=1)))
    keep = {"now": now, "watch": watch}
    assert plan(stream, Policy(keep_count=0), now=now).through == 4, "by the times alone it looks dead"
    assert plan(stream, Policy(keep_count=0), **keep).through == 2
    seconds += WEEK_SECONDS - 1
    assert plan(stream, Policy(keep_count=0), **keep).through == 2
    tell(stream, GROUP, "alive", 4, EPOCH)
    plan(stream, Policy(keep_count=0), **keep)
    stream.append(batch([5]))
    seconds += 2
    assert plan(stream, Policy(keep_count=0), **keep).through == 4, "it was not behind meanwhile"
    seconds += WEEK_SECONDS + 1
    assert plan(stream, Policy(keep_count=0), **keep).through == 5
    assert plan(stream, Policy(keep_count=0), now=now, reader_max_age=None).through == 4


def test_stream_is_never_trimmed_past_the_rows_that_are_left(stream):
    stream.append(batch(range(1, 11)))
    choice = plan(stream, Policy(keep_count=0), deleted_through=4, force=True)
    assert (choice.wanted, choice.through) == (10, 4)
    assert choice.held_by[0].kind == OUT_TABLE
    assert plan_through(stream, 10**9).through == 10
