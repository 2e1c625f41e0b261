"""The object-store protocol, explored: sound as it is, and each rule of it needed."""

from __future__ import annotations

import pytest

from tests.model.object_model import Bounds, Rules, Violation, explore

WRITERS = Bounds()
MORE_CHANGES = Bounds(last_id=3, relays=(1,), merges=2, trims=2, sweeps=1, late_requests=0, crashes=1)
READING = Bounds(last_id=3, relays=(1, 2), merges=2, trims=1, sweeps=1, late_requests=0, crashes=0, reader=True)


@pytest.mark.parametrize("bounds", [WRITERS, MORE_CHANGES, READING], ids=["writers", "changes", "reading"])
def test_no_interleaving_of_relays_merges_trims_and_crashes_loses_or_doubles_anything(bounds):
    assert explore(bounds) > 10_000


@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        (Rules(floor_checked_after_create=False), WRITERS),
        (Rules(floor_checked_after_create=False, floor_checked_before_create_instead=True), WRITERS),
        (Rules(conflict_is_compared=False), WRITERS),
        (Rules(state_by_compare_and_set=False), WRITERS),
        (Rules(state_before_delete=False), WRITERS),
        (Rules(states_kept_for_ever=False), MORE_CHANGES),
        (Rules(floor_only_over_what_was_read=False), WRITERS),
        (Rules(sweep_minds_the_number=False), WRITERS),
        (Rules(reader_minds_the_floor=False), READING),
        (Rules(reader_looks_again=False), READING),
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
    ],
)
def test_each_rule_is_needed(rules, bounds):
    with pytest.raises(Violation):
        explore(bounds, rules)
