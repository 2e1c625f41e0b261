"""`outbox inbox`: the whole way of a consumer through the program."""

from __future__ import annotations

import pytest

from stream_store import open_stream
from tests import killed, program
from tests.inbox_case import InboxCase
from tests.streams import OUTBOX_ID

HANDLERS = "tests.crash.inbox_handlers"


@pytest.fixture
def case(sqlite_url, stream_url):
    return InboxCase(sqlite_url, stream=stream_url)


def run(case, handler, *more):
    words = ["--database", case.url, "--stream", case.stream, "--consumer", "billing", "--once", "--tries", "1"]
    return program.run("inbox", "run", *words, "--handler", f"{HANDLERS}:{handler}", *more)


def test_consumer_parks_redrives_and_drops(case, capsys, monkeypatch):
    case.write(*({"subject": subject} for subject in "abba"))
    assert run(case, "refuse_second").returncode == 0
    place = ["--database", case.url]
    of = [*place, "--consumer", "billing"]
    # In this process from here on: a new one takes a second each.
    assert call(capsys, "inbox", "status", *place)["consumers"][0]["parked"] == 2
    listed = call(capsys, "inbox", "parked", *of)["parked"]
    assert [(each["id"], each["state"], each["error"]) for each in listed] == [
        (2, "failed", "ValueError: not this one"),
        (3, "waiting", None),
    ]
    assert call(capsys, "inbox", "redrive", *of, "--id", "3", code=2) is None
    assert call(capsys, "inbox", "redrive", *of, "--id", "2") == {"consumer": "billing", "redriven": 1}
    assert run(case, "take").returncode == 0
    assert case.effects() == [1, 4, 2, 3]
    assert call(capsys, "inbox", "drop", *of, "--all") == {"consumer": "billing", "dropped": 0}
    assert call(capsys, "inbox", "drop", *of, code=2) is None
    forgotten = call(capsys, "inbox", "forget", *of, "--outbox-id", OUTBOX_ID, "--stream", case.stream)
    assert forgotten["reached"] == 4
    with open_stream(case.stream) as stream:
        assert stream.readers() == []
    assert call(capsys, "inbox", "status", *place)["consumers"] == []


def call(capsys, *words, code=0):
    import json

    from cli.main import run as run_here

    capsys.readouterr()
    found = run_here([*words, "--json"])
    said = capsys.readouterr()
    assert found == code, (words, said)
    if code:
        return None
    return json.loads(said.out)


def test_forget_is_refused_while_events_are_parked(case, capsys):
    case.write({"subject": "a"})
    case.consume(lambda given, event: 1 / 0, tries=1)
    words = ["inbox", "forget", "--database", case.url, "--consumer", "billing", "--outbox-id", OUTBOX_ID]
    assert call(capsys, *words, code=2) is None
    call(capsys, "inbox", "drop", "--database", case.url, "--consumer", "billing", "--subject", "a")
    assert call(capsys, *words)["forgotten"]


def test_tables_for_people(case, capsys):
    from cli.main import run as run_here

    case.write({"subject": "order-17"}, {"subject": "order-17"})
    case.consume(lambda given, event: 1 / 0, tries=1)
    assert run_here(["inbox", "status", "--database", case.url]) == 0
    assert "billing" in capsys.readouterr().out
    assert run_here(["inbox", "parked", "--database", case.url, "--consumer", "billing"]) == 0
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said
    assert "waiting" in said


def test_run_with_batches_and_a_session(case):
    case.write(*({} for _ in range(5)))
    done = run(case, "take_many", "--batches", "--session", "--batch-events", "2")
    assert done.returncode == 0, done.stderr
    assert case.effects() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("handler", "message"),
    [("no_such", "cannot be loaded"), ("CONSUMER", "cannot be loaded"), ("__name__", "is not a function")],
)
def test_handler_that_cannot_be_found_is_a_usage_error(case, capsys, handler, message):
    from cli.main import run as run_here

    words = ["--database", case.url, "--stream", case.stream, "--consumer", "c", "--handler", f"{HANDLERS}:{handler}"]
    assert run_here(["inbox", "run", *words]) == 2
    assert message in capsys.readouterr().err


def test_init_makes_prints_and_is_idempotent(sqlite_url, capsys):
    from cli.main import run as run_here

    assert run_here(["inbox", "init", "--database", sqlite_url, "--print"]) == 0
    assert "CREATE TABLE IF NOT EXISTS" in capsys.readouterr().out
    first = call(capsys, "inbox", "init", "--database", sqlite_url)
    again = call(capsys, "inbox", "init", "--database", sqlite_url)
    assert (first["created"], again["created"]) == (True, False)
    assert first["inbox_id"] == again["inbox_id"]


def test_program_killed_between_effect_and_commit_loses_and_doubles_nothing(case):
    case.write(*({} for _ in range(5)))
    words = ["--database", case.url, "--stream", case.stream, "--consumer", "billing", "--once", "--batch-events", "2"]
    command = ["inbox", "run", *words, "--handler", f"{HANDLERS}:take"]
    killed.run_killed("outbox.inbox.consumption._commit", "before", 2, *command)
    assert case.effects() == [1, 2]
    program.succeed(*command)
    assert case.effects() == [1, 2, 3, 4, 5]
