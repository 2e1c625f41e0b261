"""SIGKILL of a consumer before and after each of its steps, on every kind of database; and of two at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from stream_store import open_stream
from tests import forked, inbox_case
from tests.crash.conftest import SERVERS, database_of
from tests.inbox_case import InboxCase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEDGER = "outbox.inbox.ledger:Ledger"
COMMIT = "outbox.inbox.consumption._commit"
# The consumer's way, in its order. With four events and two in a transaction there are two rounds.
STEPS = [
    (f"{LEDGER}.begin", "before", 1),
    (f"{LEDGER}.begin", "after", 1),
    ("stream_store.file.stream:FileStream.report", "before", 1),
    ("stream_store.file.stream:FileStream.report", "after", 1),
    (f"{LEDGER}.load", "after", 1),
    (f"{LEDGER}.claim", "before", 2),
    (f"{LEDGER}.claim", "after", 2),
    ("tests.inbox_case.record", "before", 3),
    ("tests.inbox_case.record", "after", 3),
    ("tests.inbox_case.record", "after", 4),
    (f"{LEDGER}.move", "before", 2),
    (f"{LEDGER}.move", "after", 2),
    (COMMIT, "before", 2),
    (COMMIT, "after", 2),
    ("stream_store.file.stream:FileStream.report", "before", 2),
    ("stream_store.file.stream:FileStream.report", "after", 2),
]
# Event 1 fails twice and is parked: a batch that fails, a try that is counted, the parking; then
# event 3 of its subject is parked behind it.
PARKING_STEPS = [
    (f"{LEDGER}.fail", "before", 1),
    (f"{LEDGER}.fail", "after", 1),
    (COMMIT, "after", 1),
    (f"{LEDGER}.park", "before", 1),
    (f"{LEDGER}.park", "after", 1),
    (COMMIT, "before", 2),
    (COMMIT, "after", 2),
    (f"{LEDGER}.park", "before", 2),
    (f"{LEDGER}.park", "after", 2),
    ("outbox.inbox.connections:Work.commit", "after", 6),
]
REDRIVE_STEPS = [
    ("outbox.inbox.parking._lock", "after", 1),
    ("outbox.inbox.parking._change_each", "after", 1),
    ("outbox.inbox.connections:Work.commit", "before", 1),
    ("outbox.inbox.connections:Work.commit", "after", 1),
    (f"{LEDGER}.ready", "after", 1),
    ("tests.inbox_case.record", "after", 1),
    (f"{LEDGER}.unpark", "before", 1),
    (f"{LEDGER}.unpark", "after", 1),
    (COMMIT, "before", 1),
    (COMMIT, "after", 1),
    (f"{LEDGER}.load", "before", 2),
]
EVENTS = [{"subject": subject} for subject in "abab"]


@pytest.fixture(params=[*SERVERS, "sqlite"])
def case(request: pytest.FixtureRequest, folder: Path) -> Iterator[InboxCase]:
    url = database_of(request, request.param, folder)
    with contextlib.closing(InboxCase(url, stream=f"file://{folder / 'stream'}")) as made:
        yield made


def name(step: tuple[str, str, int]) -> str:
    function, when, nth = step
    return f"{when}-{function.rsplit('.', 1)[1]}-{nth}"


def consume(case: InboxCase, refused: set[int] = frozenset(), pause_seconds: float = 0.0, **options: object) -> None:  # type: ignore[assignment]
    def handle(given, event):
        time.sleep(pause_seconds)
        # By its module, so that a child can be killed there.
        inbox_case.record(given, event)
        if event.id in refused:
            raise ValueError("not this one")

    case.consume(handle, **{"batch_events": 2, "tries": 2, **options})


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_consumer_killed_at_any_step_loses_and_doubles_nothing(case, step):
    case.write(*EVENTS)
    forked.run_killed(lambda: consume(case), *step)
    consume(case)
    assert case.effects() == [1, 2, 3, 4]
    with open_stream(case.stream) as stream:
        assert [reader.through for reader in stream.readers()] == [4]


@pytest.mark.parametrize("step", PARKING_STEPS, ids=name)
def test_consumer_killed_while_it_parks_loses_and_doubles_nothing(case, step):
    case.write(*EVENTS)
    forked.run_killed(lambda: consume(case, {1}), *step)
    consume(case, {1})
    assert case.effects() == [2, 4]
    assert case.parked() == {1: "failed", 3: "waiting"}


@pytest.mark.parametrize("step", REDRIVE_STEPS, ids=name)
def test_consumer_killed_while_it_redrives_loses_and_doubles_nothing(case, step):
    case.write(*EVENTS)
    consume(case, {1})

    def redrive():
        case.inbox().redrive(everything=True)
        consume(case)

    forked.run_killed(redrive, *step)
    # Nobody knows whether the first one was committed: to ask again does no harm.
    case.inbox().redrive(everything=True)
    consume(case)
    assert case.effects() == [2, 4, 1, 3]
    assert case.parked() == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_drop_that_is_killed_is_done_or_not(case, when):
    case.write(*EVENTS)
    consume(case, {1})
    forked.run_killed(lambda: case.inbox().drop([1]), "outbox.inbox.connections:Work.commit", when)
    assert case.parked() == ({1: "failed", 3: "waiting"} if when == "before" else {3: "waiting"})
    consume(case)
    assert case.effects() == ([2, 4] if when == "before" else [2, 4, 3])


def test_two_processes_of_a_consumer_killed_again_and_again_take_each_event_once(case):
    chance = random.Random(5)
    count, refused = 240, {17, 40, 41, 120}
    case.write(*({"subject": f"s{number % 7}"} for number in range(1, count + 1)))
    children = {forked.fork(lambda: consume(case, refused, 0.002, batch_events=3)) for _ in range(2)}
    kills = 0
    while children:
        time.sleep(chance.uniform(0.005, 0.08))
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                assert os.waitstatus_to_exitcode(status) == 0
        if children and kills < 20:
            victim = chance.choice(sorted(children))
            os.kill(victim, signal.SIGKILL)
            assert forked.join(victim) in (0, -signal.SIGKILL)
            children.remove(victim)
            kills += 1
            batch_events = chance.randint(1, 9)
            children.add(forked.fork(lambda: consume(case, refused, 0.002, batch_events=batch_events)))  # noqa: B023 - called at once
    consume(case, refused)
    held = {f"s{number % 7}": number for number in sorted(refused, reverse=True)}
    behind = {number for number in range(1, count + 1) if number >= held.get(f"s{number % 7}", count + 1)}
    assert set(case.parked()) == behind
    case.assert_exactly_once(set(range(1, count + 1)) - behind)
    case.inbox().redrive(everything=True)
    consume(case)
    case.assert_exactly_once(range(1, count + 1))
