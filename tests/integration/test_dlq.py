"""`outbox dlq`: dead letters listed, taken up again exactly once, and dropped for good."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outbox.errors import EventsTrimmed
from spark_sink.rebuild import Rebuild
from spark_sink.redrive import Redrive
from spark_sink.replay import Replay
from stream_store import open_stream
from tests.killed import Crash, crash_after, run_killed
from tests.program import report
from tests.sink_case import SinkCase, order, read, run, tombstone
from tests.spark import flags
from tests.streams import write_stream

# Letters at first: 2, 3, 5, whose total is no number, and 8, which has no fields at all.
EVENTS = [
    order("a", "1"),
    order("b", "a lot"),
    order("a", "more"),
    order("a", "4"),
    order("c", "some"),
    tombstone("c"),
    order("d", "7"),
    {"subject": "d", "data": "[8]"},
]
SCHEMA = "order string, total string"


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path)


def redrive(case: SinkCase, spec: Any, *ids: int, **more: Any) -> Any:
    with open_stream(case.url) as stream:
        return Redrive(case.spark, stream, spec).run(ids, **more)


def reasons(case: SinkCase, table: str) -> dict[int, str]:
    return dict(read(case.path(f"{table}__dead_letters"), "id", "reason", order_by="id"))


def begin(case: SinkCase, table: str, *, trimmable: bool = False) -> Any:
    """A table whose letters wait, and a milder description of it, in which all but one are fine."""
    write_stream(case.url + "?segment_bytes=1" if trimmable else case.url, EVENTS, frame_rows=1)
    mild = replace(case.specs(table)[0], schema=SCHEMA)
    strict = replace(mild, expect={"a number": "total RLIKE '^[0-9]+$'"})
    run(case.spark, case.url, strict)
    assert case.dead(table) == [2, 3, 5, 8]
    return mild


def test_letters_go_into_an_append_table_once_whatever_crashes(case, monkeypatch):
    mild = begin(case, "typed")
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.redrive:Redrive._insert")
        with pytest.raises(Crash):
            redrive(case, mild)
    assert case.dead("typed") == [2, 3, 5, 8]
    done = redrive(case, mild)
    assert (done.taken, done.failed) == (3, 1)
    assert [event_id for event_id, _ in done.still_failing] == [8]
    assert read(case.path("typed"), "_event_id", "total") == [
        (1, "1"), (2, "a lot"), (3, "more"), (4, "4"), (5, "some"), (6, None), (7, "7"),
    ]  # fmt: skip
    assert "expectation" not in reasons(case, "typed")[8]
    # Nothing is left to do, and a replay agrees with what was done.
    assert redrive(case, mild).taken == 0
    with open_stream(case.url) as stream:
        assert Replay(case.spark, stream, mild).run(dry=True).difference.is_none
    case.emit(order("e", "9"))
    run(case.spark, case.url, mild)
    assert len(read(case.path("typed"), "_event_id")) == 8


@pytest.mark.parametrize("table", ["upsert", "scd2"])
def test_a_later_event_wins_and_a_deleted_key_stays_deleted(case, table, monkeypatch):
    mild = begin(case, table)
    assert redrive(case, mild, 2).taken == 1
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.redrive:Redrive._recompute")
        with pytest.raises(Crash):
            redrive(case, mild)
    assert redrive(case, mild).taken == 2
    found = read(case.path(table), "_event_id", "subject", "total")
    if table == "upsert":
        assert found == [(2, "b", "a lot"), (4, "a", "4"), (7, "d", "7")]
    else:
        assert found == [
            (1, "a", "1"),
            (2, "b", "a lot"),
            (3, "a", "more"),
            (4, "a", "4"),
            (5, "c", "some"),
            (7, "d", "7"),
        ]
        closed = read(case.path(table), "_event_id", "_closed_by", "_is_current")
        assert closed == [
            (1, 3, False),
            (2, None, True),
            (3, 4, False),
            (4, None, True),
            (5, 6, False),
            (7, None, True),
        ]
    assert list(reasons(case, table)) == [8]
    with open_stream(case.url) as stream:
        assert Replay(case.spark, stream, mild).run(dry=True).difference.is_none


def test_a_letter_from_before_what_the_stream_holds_needs_force(case):
    mild = begin(case, "upsert", trimmable=True)
    with open_stream(case.url, "write") as stream:
        stream.trim(3)
    with pytest.raises(EventsTrimmed, match="--force"):
        redrive(case, mild)
    assert redrive(case, mild, force=True).taken == 3
    assert read(case.path("upsert"), "_event_id", "subject") == [(2, "b"), (4, "a"), (7, "d")]


def test_dropped_letters_stay_out_of_the_table_for_good(case):
    mild = begin(case, "typed")
    with open_stream(case.url) as stream:
        letters = Redrive(case.spark, stream, mild).sink.dead_letters
        assert letters.drop(reason="no such reason") == 0
        assert letters.drop([3, 4]) == 1
        assert letters.count() == 3
        assert redrive(case, mild).taken == 2
        Replay(case.spark, stream, mild).run()
        assert [event_id for (event_id,) in read(case.path("typed"), "_event_id")] == [1, 2, 4, 5, 6, 7]
        rebuild = Rebuild(case.spark, stream, mild)
        assert rebuild.run(dry=True).difference.is_none
        rebuild.run()
    assert [event_id for (event_id,) in read(case.path("typed"), "_event_id")] == [1, 2, 4, 5, 6, 7]
    found = {event_id: (data, at is not None) for event_id, data, at in _letters(case, "typed")}
    assert found == {3: (None, True), 8: ("[8]", False)}


def _letters(case: SinkCase, table: str) -> list[tuple[Any, ...]]:
    return read(case.path(f"{table}__dead_letters"), "id", "data", "dropped_at", order_by="id")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "when"),
    [
        ("spark_sink.redrive:Redrive._insert", "before"),
        ("spark_sink.dead_letters:DeadLetters.settle", "before"),
        ("spark_sink.dead_letters:DeadLetters.settle", "after"),
    ],
)
def test_a_redrive_that_was_killed_is_run_again(case, function, when):
    begin(case, "typed")
    path = str(case.path("typed"))
    words = ["dlq", "redrive", "--stream", case.url, "--table", path, "--schema", SCHEMA, *flags()]
    run_killed(function, when, 1, *words)
    report(*words)
    assert [event_id for (event_id,) in read(path, "_event_id")] == [1, 2, 3, 4, 5, 6, 7]
    assert list(reasons(case, "typed")) == [8]


def test_the_commands(case, outbox_here):
    begin(case, "upsert")
    where = ("--table", str(case.path("upsert")))
    found = outbox_here("dlq", "list", *where, "--reason", "breaks*number", "--json")
    assert (found["count"], [letter["id"] for letter in found["letters"]]) == (3, [2, 3, 5])
    assert json.loads(found["letters"][0]["data"]) == {"order": "b", "total": "a lot"}
    assert "a lot" in outbox_here("dlq", "list", *where, "--id", "2")
    assert "say which letters" in outbox_here("dlq", "drop", *where, code=2)
    assert outbox_here("dlq", "drop", *where, "--id", "2", "--json")["dropped"] == 1
    redriven = outbox_here(
        "dlq", "redrive", "--stream", case.url, *where, "--mode", "upsert", "--schema", SCHEMA, "--json"
    )
    assert (redriven["taken"], redriven["failed"]) == (2, 1)
    assert outbox_here("dlq", "list", *where, "--json")["count"] == 1
