"""The group's decisions under random members, crashes and clocks; and that each rule is needed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stream_store.groups import decision
from stream_store.groups.state import Order, State
from tests.model.group_machine import GroupMachine, Rules, Violation

SEARCH = settings(
    max_examples=200,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    # Shrinking a failure is for a person who asks for it, by removing this.
    phases=[Phase.explicit, Phase.generate],
)


def machine(rules: Rules, **narrowed: object) -> type[GroupMachine]:
    return type("Machine", (GroupMachine,), {"decides": rules, **narrowed})


def test_no_promise_is_broken() -> None:
    run_state_machine_as_test(machine(Rules()), settings=SEARCH)


def settle_whoever_has_it(state: State, token: int, left: Any) -> State | None:
    """A late acknowledgement goes by the IDs: it acknowledges what others have by now."""
    settled = decision.settle(state, token, left)
    if settled is not None or not state.lots:
        return settled
    held = next((lot for lot in state.lots if lot.member is not None), None)
    return None if held is None else decision.settle(state, held.token, None)


def keep_the_token(state: State, **given: Any) -> Any:
    """A lot that is delivered again keeps the token of its first delivery."""
    answer = decision.give(state, **given)
    lot = answer.lot
    old = next(
        (each for each in state.lots if lot and each.ids[0] == lot.ids[0] and each.token not in given["held_tokens"]),
        None,
    )
    if old is None or any(each.token == old.token for each in answer.state.lots):
        return answer
    renamed = replace(lot, token=old.token)
    lots = tuple(renamed if each is lot else each for each in answer.state.lots)
    return replace(answer, state=replace(answer.state, lots=lots), lot=renamed)


def forget_the_dead(state: State, now_us: int, tokens: Any) -> State:
    """What a dead member had is behind the head, and so it must be done."""
    dead = {member.name for member in state.members if member.expires_us < now_us}
    return replace(
        state,
        lots=tuple(lot for lot in state.lots if lot.member not in dead),
        members=tuple(member for member in state.members if member.name not in dead),
    )


def take_any_subject(state: State, window: Any, at: int, room: int) -> Any:
    ids, keys = list(window.ids[at : at + room]), list(window.keys[at : at + room])
    return decision._Cut(min(at + room, len(window.ids)), ids, keys)


def room_of_the_member_alone(state: State, name: str, max_in_flight: int) -> int:
    mine = sum(len(lot.ids) for lot in state.lots if lot.member == name)
    busy = state.settings.order is Order.STRICT and state.in_flight
    return 0 if busy else max_in_flight - mine


@dataclass(frozen=True)
class Mutant:
    """One rule weakened: by another set of rules, or by a function of `decision` replaced."""

    breaks: str
    rules: Rules = field(default_factory=Rules)
    replaced: str | None = None
    by: Any = None
    orders: tuple[Order, ...] = tuple(Order)


MUTANTS = {
    "ack without a token check": Mutant("only who has an event|no event is lost", Rules(settle=settle_whoever_has_it)),
    "token kept on redelivery": Mutant("only who has|one lot|one member at a time", Rules(give=keep_the_token)),
    "expiry by the member's clock": Mutant("from a live member", Rules(clock=lambda _, member_us: member_us)),
    "order of subjects ignored": Mutant(
        "earlier ones of its subject|of a subject at a time|had to wait for",
        replaced="_by_subject",
        by=take_any_subject,
        orders=(Order.SUBJECT,),
    ),
    "head moved past outstanding events": Mutant(
        "no event is lost|position is done|delivered in the end",
        replaced="expire",
        by=forget_the_dead,
        orders=(Order.NONE,),
    ),
    "limit of the group ignored": Mutant("max in flight of the group", replaced="_room", by=room_of_the_member_alone),
    "nack leaves later events in hand": Mutant(
        "had to wait for|strict",
        replaced="_behind",
        by=lambda state, lot, refused: frozenset(),
        orders=(Order.SUBJECT, Order.STRICT),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    if mutant.replaced:
        monkeypatch.setattr(decision, mutant.replaced, mutant.by)
    with pytest.raises(Violation, match=mutant.breaks):
        run_state_machine_as_test(machine(mutant.rules, orders=mutant.orders), settings=SEARCH)
