"""What the shell is told: 0 done, 3 not in order, 4 look first, 75 try again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import connector.supervisor
from connector.options import DeleteAfter
from stream_store import open_stream
from tests.crash.relay_process import At, running, until

if TYPE_CHECKING:
    import pytest

    from tests.crash.outbox_case import OutboxCase

ROOT = Path(__file__).parents[2]


def outbox(case: OutboxCase, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments(case, command, *more), capture_output=True, text=True, cwd=ROOT, check=False)


def arguments(case: OutboxCase, command: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", command, "--database", case.url, "--stream", case.stream, *more]


def test_program_says_0_then_4_then_3_and_after_a_rebase_0_again(sqlite_case: OutboxCase) -> None:
    case = sqlite_case
    case.write(4)
    assert outbox(case, "relay", "--once").returncode == 0
    case.execute("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
    for _ in range(2):  # a restart does not help
        refused = outbox(case, "relay", "--once")
        assert refused.returncode == 4
        assert "outbox rebase" in refused.stderr
    assert outbox(case, "verify").returncode == 3
    assert outbox(case, "rebase", "--dry-run").returncode == 0
    assert outbox(case, "verify").returncode == 3
    assert outbox(case, "rebase", "--yes").returncode == 0
    case.write(2)
    assert outbox(case, "relay", "--once").returncode == 0
    assert outbox(case, "verify").returncode == 0
    case.assert_exactly_once()


def test_program_says_75_while_another_relay_leads(sqlite_case: OutboxCase) -> None:
    case = sqlite_case
    case.write(4)
    with running(case.orders(once=False, lease_seconds=30.0)) as relay:
        until(lambda: "leading" in relay.said(), relay.said)
        case.execute("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
        relay.send(signal.SIGSTOP)
        assert outbox(case, "rebase", "--yes").returncode == 75


def test_program_drains_on_sigterm_and_says_0(sqlite_case: OutboxCase) -> None:
    case = sqlite_case
    case.write(4)
    relay = subprocess.Popen(arguments(case, "relay"), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: case.deleted_through() == max(case.committed))
        relay.terminate()
        assert relay.wait(60) == 0
    finally:
        relay.kill()
        relay.wait()
    case.assert_exactly_once()


def test_sigterm_does_not_wait_for_all_leftovers(case: OutboxCase) -> None:
    case.write(20)
    assert case.relay_once(delete_after=DeleteAfter.parse("never")) == 0
    with running(case.orders(At("start/append", "after", 2), act="hold", once=False)) as relay:
        relay.wait_until_reached()
        relay.send(signal.SIGTERM)
        relay.go_on()
        assert relay.wait() == 0, relay.said()
        assert "leading" not in relay.said()
    assert case.deleted_through() == 0
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_once_gives_up_with_75_on_what_does_not_pass(sqlite_case: OutboxCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector.supervisor, "ONCE_PATIENCE_SECONDS", 0.3)
    case = sqlite_case
    case.write(4)
    with open_stream(case.stream, "write"):
        assert case.relay_once() == 75
    assert case.relay_once() == 0
    database = Path(case.database.path)
    database.rename(database.with_suffix(".away"))
    assert case.relay_once() == 75
    database.with_suffix(".away").rename(database)
    assert case.relay_once() == 0
    case.assert_exactly_once()
