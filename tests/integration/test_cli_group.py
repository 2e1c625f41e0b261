"""`outbox group`, as a user has it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import program
from outbox.errors import GroupMissing, UsageError
from stream_store import Group
from tests.program import start
from tests.streams import write_stream


@pytest.fixture
def url(make_stream: Callable[..., str]) -> str:
    return make_stream(*({"subject": f"s{n % 3}", "data": {"n": n}} for n in range(1, 11)))


def succeed(*arguments: str, **variables: str) -> str:
    """Run a command here, without the second that a process of its own takes; its stdout."""
    done = CliRunner().invoke(program, arguments, env=variables)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def report(*arguments: str, **variables: str) -> Any:
    return json.loads(succeed(*arguments, "--json", **variables))


def test_the_life_of_a_group(url: str) -> None:
    made = report(
        "group", "create", "mailer", "--stream", url, "--order", "subject", "--from", "3", "--types", "order.*"
    )
    assert (made["name"], made["head"], made["lag"], made["settings"]["order"]) == ("mailer", 2, 8, "subject")
    lines = succeed("group", "consume", "mailer", "--stream", url, "--batch-rows", "3").splitlines()
    events = [json.loads(line) for line in lines]
    assert sorted(int(event["id"]) for event in events) == list(range(3, 11))
    assert (events[0]["previd"], events[0]["source"], events[0]["data"]) == ("2", "/tests", {"n": 3})
    assert succeed("group", "consume", "mailer", "--stream", url) == ""
    (listed,) = report("group", "list", "--stream", url)["groups"]
    assert (listed["name"], listed["lag"], listed["through"], listed["paused"]) == ("mailer", 0, 10, False)
    assert "mailer" in succeed("group", "list", "--stream", url)
    assert report("group", "pause", "mailer", "--stream", url)["paused"] is True
    assert report("group", "reset", "mailer", "--stream", url, "--to", "earliest")["lag"] == 10
    assert succeed("group", "consume", "mailer", "--stream", url) == ""
    assert report("group", "resume", "mailer", "--stream", url)["paused"] is False
    assert len(succeed("group", "consume", "mailer", "--stream", url).splitlines()) == 10
    assert "done through" in succeed("group", "show", "mailer", "--stream", url)
    assert report("group", "delete", "mailer", "--stream", url, "--yes") == {"group": "mailer", "deleted": True}
    with pytest.raises(GroupMissing, match="outbox group create"):
        succeed("group", "show", "mailer", "--stream", url)
    assert "none" in succeed("group", "list", "--stream", url)


def test_dead_letters_are_listed_redriven_and_dropped(url: str) -> None:
    with Group.create(url, "g", max_tries=1) as group:
        for delivery in group.consume(wait_seconds=0):
            delivery.nack("no stock") if delivery.event.id in (2, 5) else delivery.ack()
    found = report("group", "dlq", "list", "g", "--stream", url)
    assert found["count"] == 2
    assert [(each["id"], each["reason"], each["event"]["data"]) for each in found["letters"]] == [
        (2, "no stock", {"n": 2}),
        (5, "no stock", {"n": 5}),
    ]
    assert "no stock" in succeed("group", "dlq", "list", "g", "--stream", url)
    with pytest.raises(UsageError, match="--all"):
        succeed("group", "dlq", "redrive", "g", "--stream", url)
    assert report("group", "dlq", "redrive", "g", "--stream", url, "--id", "5") == {"group": "g", "redriven": 1}
    assert json.loads(succeed("group", "consume", "g", "--stream", url))["id"] == "5"
    assert report("group", "dlq", "drop", "g", "--stream", url, "--all") == {"group": "g", "dropped": 1}
    assert report("group", "dlq", "list", "g", "--stream", url)["count"] == 0


def test_consume_follows_until_it_is_told_to_stop(url: str) -> None:
    succeed("group", "create", "g", "--stream", url)
    process = start("group", "consume", "g", "--stream", url, "--follow")
    assert process.stdout is not None
    found = [json.loads(process.stdout.readline())["id"] for _ in range(10)]
    write_stream(url, [{}])
    found.append(json.loads(process.stdout.readline())["id"])
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, found) == (0, [str(n) for n in range(1, 12)]), said
    status = report("group", "show", "g", "--stream", url)
    assert (status["lag"], status["members"]) == (0, [])


def test_lines_that_nobody_reads_are_not_acknowledged(url: str) -> None:
    write_stream(url, [{"data": {"x": "y" * 1000}} for _ in range(500)])
    succeed("group", "create", "g", "--stream", url)
    process = start("group", "consume", "g", "--stream", url, "--batch-rows", "100", "--follow")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 1
    status = report("group", "show", "g", "--stream", url)
    assert status["lag"] >= 400
    assert (status["in_flight"], status["members"]) == (0, []), "it has given back what it had"


def test_an_ephemeral_group_leaves_nothing_behind(url: str) -> None:
    lines = succeed("group", "consume", "look", "--ephemeral", "--from", "9", "--stream", url)
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ["9", "10"]
    assert report("group", "list", "--stream", url)["groups"] == []
    with pytest.raises(UsageError, match="group reset"):
        succeed("group", "consume", "look", "--from", "9", "--stream", url)


def test_the_state_may_be_on_a_server_and_its_password_is_not_shown(url: str, postgresql_url: str) -> None:
    state = postgresql_url.replace("postgres@", "postgres:s3cret@")
    assert "s3cret" not in succeed("group", "create", "g", "--stream", url, OUTBOX_GROUP_STATE=state)
    assert report("group", "list", "--stream", url, "--state", postgresql_url)["groups"][0]["lag"] == 10
