"""Members killed by SIGKILL while they hold events: nothing is lost, and only what was unacknowledged comes again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stream_store import Group
from tests.program import ROOT, command, environment
from tests.streams import write_stream

EVENTS, BATCH_ROWS = 40, 10
# Dead soon, for a test; but a busy machine must still get a heartbeat of the living through.
LIFE = ("--heartbeat", "200ms", "--missed", "15")
STORE = "stream_store.groups.sql:SqlStore"
DEADLINE_SECONDS = 60


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'groups.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def url(folder: Path) -> str:
    made = f"file://{folder / 'stream'}"
    write_stream(made, [{"data": {"n": n}} for n in range(EVENTS)])
    return made


def consuming(url: str, state: str, *more: str) -> list[str]:
    return ["group", "consume", "g", "--stream", url, "--state", state, "--batch-rows", str(BATCH_ROWS), *LIFE, *more]


def ids_in(lines: bytes) -> list[int]:
    return [int(json.loads(line)["id"]) for line in lines.splitlines() if line.endswith(b"}")]


def consume_killed(url: str, state: str, function: str, when: str, nth: int) -> list[int]:
    """What a member wrote before it was killed at a call."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", function, when, str(nth), *consuming(url, state)],
        capture_output=True,
        cwd=ROOT,
        env=environment(),
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr)
    return ids_in(done.stdout)


def drain(group: Group) -> list[int]:
    """Everything that is left, as soon as the dead are known to be dead."""
    found: list[int] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while group.status().lag:
        assert time.monotonic() < deadline, group.status()
        for delivery in group.consume_batches(BATCH_ROWS, wait_seconds=0.05):
            with delivery:
                found += delivery.batch.ids.to_pylist()
    return found


@pytest.mark.parametrize(
    ("function", "when", "nth", "written", "again"),
    [
        # The first transaction of a member reads the state, the second is its first claim.
        (f"{STORE}.transact", "before", 3, 10, 0),
        (f"{STORE}.transact", "after", 3, 10, 0),
        (f"{STORE}.settle", "before", 2, 20, 10),
        (f"{STORE}.settle", "after", 2, 20, 0),
    ],
    ids=["before a claim", "between claim and delivery", "before an ack", "after an ack"],
)
def test_a_killed_members_events_go_to_another(
    url: str, state: str, function: str, when: str, nth: int, written: int, again: int
) -> None:
    with Group.create(url, "g", state=state) as group:
        first = consume_killed(url, state, function, when, nth)
        assert first == list(range(1, written + 1))
        rest = drain(group)
        assert sorted({*first, *rest}) == list(range(1, EVENTS + 1)), "nothing is lost"
        assert sorted(set(first) & set(rest)) == first[len(first) - again :], (
            "only what was not acknowledged comes again"
        )
        assert len(rest) == len(set(rest))
        status = group.status()
        assert (status.through, status.dead_letters) == (EVENTS, 0)


@pytest.mark.parametrize(
    ("function", "when"),
    [(f"{STORE}.create", "after"), ("stream_store.file.stream:FileStream.report", "after")],
    ids=["before it is reported", "after it is reported"],
)
def test_a_killed_create_can_be_repeated(url: str, folder: Path, function: str, when: str) -> None:
    from tests.killed import run_killed

    state = f"sqlite:///{folder / 'groups.db'}"
    run_killed(function, when, 1, "group", "create", "g", "--stream", url, "--state", state)
    with Group.create(url, "g", state=state, exist_ok=True) as group:
        assert len(drain(group)) == EVENTS


def test_a_killed_delete_can_be_repeated(url: str, folder: Path) -> None:
    from stream_store import open_stream
    from tests.killed import run_killed
    from tests.program import succeed

    state = f"sqlite:///{folder / 'groups.db'}"
    Group.create(url, "g", state=state).close()
    deleting = ("group", "delete", "g", "--yes", "--stream", url, "--state", state)
    run_killed(f"{STORE}.delete", "after", 1, *deleting)
    with open_stream(url) as stream:
        assert [reader.name.split(":")[0] for reader in stream.readers()] == ["g"], "kept too much, not too little"
        succeed(*deleting)
        assert stream.readers() == []


def test_two_processes_compete_and_one_is_killed(url: str, state: str, folder: Path) -> None:
    tail = EVENTS
    with Group.create(url, "g", state=state, order="none") as group:
        outputs = [folder / "one", folder / "two"]
        processes = []
        for path in outputs:
            with path.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command(*consuming(url, state, "--follow")),
                        stdout=output,
                        stderr=subprocess.PIPE,
                        cwd=ROOT,
                        env=environment(),
                    )
                )
        victim, survivor = processes
        try:
            # More and more, so that the first one to start does not have it all.
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not all(path.stat().st_size for path in outputs):
                assert time.monotonic() < deadline, group.status()
                tail = write_stream(url, [{} for _ in range(20)])
                time.sleep(0.02)
            tail = write_stream(url, [{} for _ in range(500)])
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait(DEADLINE_SECONDS)
            tail = write_stream(url, [{} for _ in range(200)])
            wait_for(lambda: group.status().lag == 0, group)
        finally:
            survivor.send_signal(signal.SIGTERM)
            _, said = survivor.communicate(timeout=DEADLINE_SECONDS)
            victim.kill()
            _, said_before = victim.communicate()
        assert survivor.returncode == 0, said
        # A machine too busy for heartbeats makes members late: they say so, and only then is more doubled.
        late = (said + said_before).count(b"given to another member")
        one, two = (ids_in(path.read_bytes()) for path in outputs)
        assert sorted({*one, *two}) == list(range(1, tail + 1)), "nothing is lost"
        doubled = len(one) + len(two) - len({*one, *two})
        assert doubled <= BATCH_ROWS * (1 + late), "at most the victim's last batch comes again"


def wait_for(condition, group: Group) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, group.status()
        time.sleep(0.02)
