"""The object-store protocol, explored: sound as it is, and each rule of it needed."""

from __future__ import annotations

import pytest

from tests.model.object_model import Bounds, Rules, Violation, explore

RACING = Bounds(merges=1, trims=1, sweeps=0, late_requests=0, crashes=0)
CRASHING = Bounds(merges=1, trims=0, sweeps=1, late_requests=0, crashes=2)
LATE = Bounds(merges=1, trims=0, sweeps=1, late_requests=1, crashes=0)
CHANGES = Bounds(relays=(1,), merges=1, trims=2, sweeps=1, late_requests=0, crashes=1)
READING = Bounds(last_id=2, merges=1, trims=1, sweeps=0, late_requests=0, crashes=0, reader=True)
ALL = {"racing": RACING, "crashing": CRASHING, "late requests": LATE, "changes": CHANGES, "reading": READING}


@pytest.mark.parametrize("bounds", ALL.values(), ids=ALL)
def test_no_interleaving_of_relays_merges_trims_and_crashes_loses_or_doubles_anything(bounds):
    assert explore(bounds) > 2_000


@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        (Rules(floor_checked_after_create=False), RACING),
        (Rules(floor_checked_after_create=False, floor_checked_before_create_instead=True), RACING),
        (Rules(conflict_is_compared=False), RACING),
        (Rules(state_by_compare_and_set=False), RACING),
        (Rules(state_before_delete=False), CRASHING),
        (Rules(states_kept_for_ever=False), CHANGES),
        (Rules(floor_only_over_what_was_read=False), RACING),
        (Rules(sweep_minds_the_number=False), CRASHING),
        (Rules(reader_minds_the_floor=False, reader_checks_the_floor_afterwards=False), READING),
        (Rules(reader_looks_again=False), READING),
        (Rules(reader_checks_the_floor_afterwards=False), READING),
    ],
    ids=[
        "floor not checked after the create",
        "floor checked before the create",
        "conflict taken for success",
        "state overwritten",
        "deleted before the floor is raised",
        "numbers of states freed",
        "floor raised over what was not read",
        "sweep takes a merge under way for garbage",
        "reader takes a batch below the floor",
        "reader takes a merged object for lost",
        "reader takes what a late relay put under a freed name",
    ],
)
def test_each_rule_is_needed(rules, bounds):
    with pytest.raises(Violation):
        explore(bounds, rules)
