"""`outbox dlq`: dead letters listed, taken up again exactly once, and dropped for good."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import EventsTrimmed, TableChanged
from spark_sink import verification
from spark_sink.dead_letters import open_letters
from spark_sink.names import TableName
from spark_sink.rebuild import Rebuild
from spark_sink.redrive import Redrive
from spark_sink.replay import Replay
from spark_sink.table_sink import SinkOptions
from spark_sink.table_status import table_status
from spark_sink.verification import _Proof, verify_tables
from stream_store import open_stream
from tests.killed import Crash, crash_after, run_killed
from tests.program import report
from tests.sink_case import SinkCase, order, read, run, tombstone
from tests.spark import flags
from tests.streams import write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def test_a_proof_that_sees_a_redrive_between_its_two_commits_looks_again(case, monkeypatch):
    mild = begin(case, "typed")
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.redrive:Redrive._insert")
        with pytest.raises(Crash):
            redrive(case, mild)
    [found] = verify_tables(case.spark, case.url, [mild])
    assert (found.ok, found.extra_ids) == (False, [2, 3, 5])
    look, looks = verification._look, []

    def held(*args: Any) -> Any:
        looks.append(args)
        return look(*args)

    with monkeypatch.context() as patch:
        patch.setattr(verification, "_look", held)
        settled = _Proof._settled
        patch.setattr(_Proof, "_settled", lambda proof: (settled(proof), looks[1:] or redrive(case, mild))[0])
        [found] = verify_tables(case.spark, case.url, [mild])
    assert (found.ok, len(looks)) == (True, 2), found


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


def test_dropped_letters_stay_out_of_a_table_of_plain_events_whatever_the_batch(case):
    """Its description cannot refuse anything any more, and the letters are far behind the first batch."""
    case.emit(*(order("a", number) for number in range(6)), order("b", 7, type="order.odd"), order("c", 8))
    plain = case.specs("append")[0]
    run(case.spark, case.url, replace(plain, expect={"not odd": "type <> 'order.odd'"}))
    kept = [(event_id,) for event_id in (1, 2, 3, 4, 5, 6, 8)]
    with open_stream(case.url) as stream:
        assert Redrive(case.spark, stream, plain).sink.dead_letters.drop() == 1
        Rebuild(case.spark, stream, plain, SinkOptions(rows_max=2)).run()
    assert read(case.path("append"), "id") == kept


def test_a_running_sink_does_not_bring_a_letter_back_that_came_behind_it(case):
    """It had seen that there are none, and has to ask again when the bookmark goes back."""
    case.emit(*(order("a", number) for number in range(1, 6)))
    plain = case.specs("append")[0]
    with case.open("append", rows_max=2, after_restore="replay") as running, open_stream(case.url) as stream:
        running.run_once()
        Replay(case.spark, stream, replace(plain, expect={"not the fourth": "id <> 4"})).run()
        assert case.dead("append") == [4]
        case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", "append")
        running.run_once()
        assert running.sinks[0].bookmark() == 5
    assert read(case.path("append"), "id") == [(1,), (2,), (3,), (5,)]


def test_letters_are_those_of_the_table_however_it_is_called_and_wherever_it_is_moved(case, tmp_path):
    mild = begin(case, "typed")
    strict = replace(mild, expect={"a number": "total RLIKE '^[0-9]+$'"})
    path = case.path("typed")
    names = [f"file://{path}", f"{tmp_path}/x/../typed", str(tmp_path / "elsewhere" / "typed")]
    for number, name in enumerate(names):
        if "elsewhere" in name:
            (tmp_path / "elsewhere").mkdir()
            for folder in (path, case.path("typed__dead_letters")):
                folder.rename(tmp_path / "elsewhere" / folder.name)
            path = tmp_path / "elsewhere" / "typed"
        table = replace(strict, table=TableName.parse(name))
        letters = open_letters(case.spark, table)
        assert letters.drop([(2, 3, 5)[number]]) == 1
        assert table_status(table.table, None, lambda: case.spark).dead_letters == letters.count() == 3 - number
        case.emit(order("e", "more"))
        run(case.spark, case.url, table)
        with open_stream(case.url) as stream:
            Replay(case.spark, stream, table).run()
        assert verify_tables(case.spark, case.url, [table.table])[0].problems == []
        assert letters.drop([9 + number]) == 1
        # Nobody is known to the stream by two names of one place.
        with open_stream(case.url) as stream:
            assert len(stream.readers()) == 1 + number // 2
    with open_stream(case.url) as stream:
        Rebuild(case.spark, stream, replace(mild, table=TableName.parse(str(path)))).run()
    assert read(path, "_event_id") == [(1,), (4,), (6,), (7,)]
    assert verify_tables(case.spark, case.url, [TableName.parse(str(path))])[0].problems == []


def test_letters_of_a_table_with_a_short_name_are_those_of_its_long_one(case):
    case.emit(order("a", 1), order("b", "a lot"))
    table = replace(case.specs("typed")[0], table=TableName.parse("letters_of"))
    try:
        run(case.spark, case.url, table)
        for name in ("letters_of", "default.letters_of", "spark_catalog.`default`.letters_of"):
            run(case.spark, case.url, replace(table, table=TableName.parse(name)))
            assert verify_tables(case.spark, case.url, [TableName.parse(name)])[0].problems == []
            assert open_letters(case.spark, replace(table, table=TableName.parse(name))).count() == 1
        with open_stream(case.url) as stream:
            assert [reader.name for reader in stream.readers()] == ["spark_catalog.default.letters_of"]
    finally:
        for name in ("letters_of", "letters_of__dead_letters"):
            case.spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_letter_that_is_dropped_while_it_is_redriven_is_one_or_the_other(case, monkeypatch):
    """With the lock the drop waits, and finds nothing left. Without one it is found out, and a replay puts it right."""
    mild = begin(case, "typed")
    drops: list[threading.Thread] = []
    insert = Redrive._insert

    def held(redriving: Redrive, *args: Any) -> None:
        insert(redriving, *args)
        letters = open_letters(case.spark, mild)
        drops.append(threading.Thread(target=letters.drop, args=([2, 8],)))
        drops[-1].start()
        drops[-1].join(2)

    with monkeypatch.context() as patch, open_stream(case.url) as stream:
        patch.setattr(Redrive, "_insert", held)
        assert Redrive(case.spark, stream, mild).run([2, 3]).taken == 2
        drops[-1].join()
        assert [event_id for event_id, _, at in _letters(case, "typed") if at is not None] == [8]
        patch.setattr(Redrive, "_insert", lambda *args: (insert(*args), open_letters(case.spark, mild).drop([5])))
        patch.setattr("spark_sink.table.table_lock", lambda *_: nullcontext())
        with pytest.raises(TableChanged, match=r"somebody has dropped 5 .*--from 5 --to 5"):
            Redrive(case.spark, stream, mild).run([5])
        Replay(case.spark, stream, mild).run(4, 5)
    assert [event_id for (event_id,) in read(case.path("typed"), "_event_id")] == [1, 2, 3, 4, 6, 7]
    assert verify_tables(case.spark, case.url, [mild.table])[0].problems == []


def test_one_bad_row_of_several_keeps_the_letter(case):
    def items(events: DataFrame) -> DataFrame:
        found = F.explode(F.from_json("data", "array<int>"))
        return events.select("id", found.alias("price"))

    case.emit({"data": [1, -2, 3]}, {"data": [4]}, {"data": [5, 6]})
    table = replace(case.specs("append")[0], transform=items, expect={"price": "price > 4"})
    run(case.spark, case.url, table)
    assert case.dead("append") == [1, 2]
    mended = replace(table, expect={"price": "price > 0"})
    done = redrive(case, mended)
    assert (done.taken, done.failed) == (1, 1)
    assert sorted(read(case.path("append"), "_event_id", "price")) == [(2, 4), (3, 5), (3, 6)]
    assert case.dead("append") == [1]


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_a_column_that_somebody_has_added_is_in_nobodys_way(case, internals):
    mild = begin(case, "typed")
    case.sql("ALTER TABLE {table} ADD COLUMNS (remark string)", "typed")
    case.emit(order("e", "9"))
    run(case.spark, case.url, mild, internals=internals)
    with open_stream(case.url) as stream:
        options = SinkOptions(internals=internals)
        assert Redrive(case.spark, stream, mild, options).run().taken == 3
        Replay(case.spark, stream, mild, options).run()
    assert [event_id for (event_id,) in read(case.path("typed"), "_event_id")] == [1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize("when", ["before it goes on", "while it ends"])
@pytest.mark.parametrize("table", ["typed", "upsert"])
def test_letters_that_are_dropped_during_a_rebuild_stay_out_of_the_new_table(case, monkeypatch, table, when):
    """The new description takes them, and the new table had them already."""
    mild = begin(case, table)
    with open_stream(case.url) as stream, monkeypatch.context() as patch:
        letters = Redrive(case.spark, stream, mild).sink.dead_letters
        if when == "while it ends":
            swap, drops = Rebuild._swap, [[2], [8]]
            patch.setattr(
                Rebuild, "_swap", lambda *args: (letters.drop(drops.pop(0) if drops else [0]), swap(*args))[1]
            )
        else:
            with pytest.MonkeyPatch.context() as crashed:
                crash_after(crashed, "spark_sink.rebuild:Rebuild._catch_up")
                with pytest.raises(Crash):
                    Rebuild(case.spark, stream, mild).run()
            assert letters.drop([2, 8]) == 2
        Rebuild(case.spark, stream, mild).run()
    left = [1, 3, 4, 5, 6, 7] if table == "typed" else [4, 7]
    assert [event_id for (event_id,) in read(case.path(table), "_event_id")] == left
    assert {event_id: at is not None for event_id, _, at in _letters(case, table)} == {2: True, 8: True}


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
