"""`outbox replay`: ranges put right, tables made anew, killed and run again."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from outbox.errors import EventsTrimmed, TableChanged, Trimmed, UsageError
from spark_sink.acceptance import accept
from spark_sink.dead_letters import DeadLetters
from spark_sink.rebuild import Rebuild
from spark_sink.replay import Replay
from spark_sink.table_sink import SinkOptions
from spark_sink.tasks import tell_nobody
from stream_store import open_stream
from tests.killed import Crash, crash_after, run_killed
from tests.program import report
from tests.sink_case import SinkCase, order, read, run, tombstone
from tests.spark import flags
from tests.streams import write_stream

# IDs 1 to 9. In an upsert table `b` is deleted; 5 is a dead letter wherever `total` is a number.
EVENTS = [
    order("a", 1),
    order("b", 2),
    order("a", 3),
    tombstone("b"),
    order("c", "a lot"),
    order("c", 6),
    order("d", 7),
    order("a", 8),
    order("d", 9),
]


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path)


def replay(case: SinkCase, table: str, after: int | None = None, through: int | None = None, **more: Any) -> Any:
    dry, tell = more.pop("dry", False), more.pop("tell", tell_nobody)
    with open_stream(case.url) as stream:
        found = Replay(case.spark, stream, case.specs(table)[0], SinkOptions(**more), tell)
        return found.run(after, through, dry=dry)


def rebuild(case: SinkCase, table: str, described: dict[str, Any] | None = None, **more: Any) -> Any:
    how = {name: more.pop(name) for name in ("dry", "force") if name in more}
    tell = more.pop("tell", tell_nobody)
    wanted = case.specs(table)[0]
    wanted = replace(wanted, **described) if described else wanted
    with open_stream(case.url) as stream:
        return Rebuild(case.spark, stream, wanted, SinkOptions(**more), tell).run(**how)


class Told:
    """How far each step has come, and how far it goes."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[int, int]] = {}

    def __call__(self, done: int, of: int, step: str = "", /) -> None:
        self.steps[step] = (done, of)


def vandalize(case: SinkCase, table: str, key: str = "_event_id") -> None:
    """Remove event 3 or what it left, change 7, and put a row twice: three commits of somebody else."""
    delta = DeltaTable(str(case.path(table)))
    rows = delta.to_pyarrow_table()
    delta.update(predicate=f"{key} >= 7", updates={"subject": "'damaged'"})
    delta.delete(f"{key} = 3")
    last = rows.filter(rows[key].to_numpy() == 6)
    write_deltalake(str(case.path(table)), last, mode="append")


def test_a_range_of_an_append_table_is_put_right_in_pieces(case):
    case.emit(*EVENTS)
    case.run("typed")
    vandalize(case, "typed")
    with pytest.raises(TableChanged, match="that is not ours"):
        case.run("typed")

    found = replay(case, "typed", 1, 8, dry=True).difference
    assert (found.insert, found.insert_ids) == (1, (3,))
    assert (found.update, found.update_ids) == (2, (7, 8))
    assert (found.delete, found.delete_ids) == (1, (6,))
    versions = case.versions("typed")

    done = replay(case, "typed", 1, None, rows_max=4)
    assert (done.first_id, done.last_id, done.bookmark, done.commits, done.resumed_at) == (2, 9, 9, 2, None)
    assert len(done.foreign_versions) == 3
    assert case.versions("typed") == versions + 2
    case.assert_exact("typed")
    assert replay(case, "typed", dry=True).difference.is_none

    # A repair does not say that all is well again: a person does.
    with pytest.raises(TableChanged, match="that is not ours"):
        case.run("typed")
    with open_stream(case.url) as stream:
        table = Replay(case.spark, stream, case.specs("typed")[0]).sink.table
    assert len(accept(table).accepted) == 3
    case.emit(order("e", 10))
    case.run("typed")
    case.assert_exact("typed")


def test_keys_of_a_range_are_recomputed_and_a_deleted_key_stays_deleted(case):
    case.emit(*EVENTS)
    case.run("upsert")
    delta = DeltaTable(str(case.path("upsert")))
    lost = delta.to_pyarrow_table()
    delta.delete("subject = 'c'")
    delta.update(predicate="subject = 'a'", updates={"total": "99.0"})
    # What event 2 left of `b`, which event 4 has deleted.
    ghost = lost.slice(0, 1)
    for name, value in {"_event_id": 2, "subject": "b", "order": "b", "total": 2.0}.items():
        at = ghost.schema.get_field_index(name)
        ghost = ghost.set_column(at, ghost.schema.field(at), [[value]])
    write_deltalake(str(case.path("upsert")), ghost, mode="append")

    found = replay(case, "upsert", 0, 6, dry=True).difference
    assert (found.insert_ids, found.update_ids, found.delete_ids) == ((6,), (8,), (2,))
    told = Told()
    done = replay(case, "upsert", 0, 6, tell=told)
    assert (done.commits, done.last_id, done.bookmark) == (1, 6, 9)
    [(step, (tasks, of))] = told.steps.items()
    assert step == f"recomputing keys of {case.path('upsert')}"
    assert tasks == of
    case.assert_exact("upsert")


def test_versions_of_an_scd2_table_are_put_right_after_damage(case):
    case.emit(*EVENTS)
    case.run("scd2", rows_max=4)
    delta = DeltaTable(str(case.path("scd2")))
    delta.delete("_event_id = 3")
    delta.update(predicate="_event_id = 6", updates={"total": "0.5", "_is_current": "false"})
    delta.update(predicate="_event_id = 1", updates={"_closed_by": "8"})
    found = replay(case, "scd2", 2, 6, dry=True).difference
    assert (found.insert_ids, found.update_ids, found.delete_ids) == ((3,), (1, 6), ())
    replay(case, "scd2", 2, 6)
    case.assert_exact("scd2")


def test_a_range_is_replayed_while_the_live_sink_runs(case):
    case.emit(*EVENTS)
    case.run("typed", "upsert")
    stop = threading.Event()
    failed: list[BaseException] = []

    def live() -> None:
        try:
            with case.open("typed", "upsert", rows_max=2) as materializer:
                materializer.run(stop, 0.05)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        for number in range(2):
            case.emit(order("a", 10 + number), tombstone("d"), order("e", number))
            replay(case, "typed", 1, 7, rows_max=3)
            replay(case, "upsert", 1, 7)
    finally:
        stop.set()
        thread.join(120)
    assert not failed, failed
    case.run("typed", "upsert")
    case.assert_exact("typed", "upsert")


def test_ranges_that_cannot_be_replayed(case):
    case.emit(*EVENTS)
    case.run("append")
    with pytest.raises(UsageError, match="before it begins"):
        replay(case, "append", 5, 5)
    assert replay(case, "append", 20, 30).commits == 0
    with pytest.raises(TableChanged, match="there is no table"):
        replay(case, "scd2")


@pytest.mark.parametrize("table", ["append", "upsert"])
def test_a_range_does_not_go_beyond_a_bookmark_that_was_put_back_meanwhile(case, monkeypatch, table):
    case.emit(*EVENTS)
    case.run(table, through=4)
    case.run(table)
    span = Replay._range

    def held(*args: Any) -> Any:
        found = span(*args)
        DeltaTable(str(case.path(table))).restore(1)
        case.run(table, through=4, after_restore="replay")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_range", held)
        with pytest.raises(TableChanged, match="its bookmark went back to 4 while the range through 9"):
            replay(case, table)
    case.run(table)
    case.assert_exact(table)


def test_a_replay_that_was_killed_goes_on(case):
    case.emit(*EVENTS)
    case.run("append")
    DeltaTable(str(case.path("append"))).delete("id > 2")
    words = ["replay", "--stream", case.url, "--table", str(case.path("append")), "--batch-rows", "2", *flags()]
    run_killed("spark_sink.table:Table.replace_where", "after", 2, *words)
    assert [row for (row,) in read(case.path("append"), "id")] == [1, 2, 3, 4]
    done = report(*words)
    assert (done["resumed_at"], done["commits"], done["last_id"]) == (4, 3, 9)
    case.assert_exact("append")


def test_a_restored_table_is_made_anew(case):
    case.emit(*EVENTS)
    case.run("upsert", through=4)
    DeltaTable(str(case.path("upsert"))).restore(0)
    with pytest.raises(TableChanged, match="RESTORE"):
        case.run("upsert")
    with pytest.raises(TableChanged, match="a range is not enough"):
        replay(case, "upsert")
    assert rebuild(case, "upsert", dry=True).difference.insert == 1
    told = Told()
    done = rebuild(case, "upsert", tell=told)
    assert (done.bookmark, done.resumed_at) == (4, None)
    assert list(told.steps) == ["", f"putting the new {case.path('upsert')} in place"]
    assert told.steps[""] == (4, 4)
    case.assert_exact("upsert", through=4)
    assert not case.path("upsert__rebuild").exists()
    case.run("upsert")
    case.assert_exact("upsert")
    assert case.dead("upsert") == [5]


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_a_table_is_made_anew_with_another_description(case, internals):
    case.emit(*EVENTS)
    case.run("typed")
    assert case.dead("typed") == [5]
    described = {"mode": "upsert", "schema": "order string"}
    with pytest.raises(UsageError, match="was made with mode"):
        run_as(case, "typed", described)
    rebuild(case, "typed", described, internals=internals)
    assert read(case.path("typed"), "_event_id", "subject", "order") == [(6, "c", "c"), (8, "a", "a"), (9, "d", "d")]
    assert "total" not in DeltaTable(str(case.path("typed"))).to_pyarrow_table().column_names
    assert case.dead("typed") == []
    case.emit(tombstone("a"))
    run_as(case, "typed", described, internals=internals)
    assert read(case.path("typed"), "_event_id") == [(6,), (9,)]


def run_as(case: SinkCase, table: str, described: dict[str, Any], **options: Any) -> None:
    run(case.spark, case.url, replace(case.specs(table)[0], **described), **options)


def test_a_live_sink_notices_that_the_table_is_described_otherwise(case):
    case.emit(*EVENTS)
    with case.open("append") as live:
        live.run_once()
        rebuild(case, "append", {"types": ("refund.*",)})
        case.emit(order("e", 10))
        with pytest.raises(TableChanged, match="described otherwise by now"):
            live.run_once()


@pytest.mark.parametrize("how", ["dropped", "replaced", "foreign"])
def test_a_table_that_is_no_longer_ours_is_made_anew(case, how):
    case.emit(*EVENTS)
    path = str(case.path("typed"))
    if how == "foreign":
        write_deltalake(path, pa.table({"one": [1]}))
    else:
        case.run("typed")
        if how == "replaced":
            case.sql("CREATE OR REPLACE TABLE {table} USING delta AS SELECT 1 AS one", "typed")
        else:
            shutil.rmtree(path)
    if how != "dropped":
        with pytest.raises(TableChanged, match="--rebuild"):
            case.run("typed")
    assert rebuild(case, "typed").bookmark == 9
    case.assert_exact("typed")
    case.emit(order("e", 10))
    case.run("typed")
    case.assert_exact("typed")


STEPS = [
    ("spark_sink.table_sink:TableSink._finish", 2),
    ("spark_sink.dead_letters:DeadLetters.adopt", 1),
    ("spark_sink.table:Table.replace", 1),
    ("spark_sink.table:Table.drop", 1),
]


def test_a_rebuild_that_ends_anywhere_goes_on(case, monkeypatch):
    case.emit(*EVENTS)
    case.run("scd2")
    DeltaTable(str(case.path("scd2"))).delete("_event_id < 8")
    for place, nth in STEPS:
        with monkeypatch.context() as patch:
            crash_after(patch, place, nth)
            with pytest.raises(Crash):
                rebuild(case, "scd2", rows_max=3)
    done = rebuild(case, "scd2", rows_max=3)
    assert done.resumed_at is not None or not case.path("scd2__rebuild").exists()
    case.assert_exact("scd2")
    case.emit(order("b", 10))
    case.run("scd2")
    case.assert_exact("scd2")


def test_a_rebuild_that_was_killed_goes_on_and_says_so(case):
    case.emit(*EVENTS)
    case.run("append")
    DeltaTable(str(case.path("append"))).delete()
    words = ["replay", "--rebuild", "--stream", case.url, "--table", str(case.path("append")), "--batch-rows", "4"]
    run_killed("spark_sink.table_sink:TableSink._finish", "after", 3, *words, *flags())  # when opened, then by batch
    done = report(*words, *flags())
    assert (done["resumed_at"], done["bookmark"]) == (8, 9)
    case.assert_exact("append")


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_a_rebuild_without_a_lock_begins_again_where_the_live_sink_has_come_to(case, monkeypatch, internals):
    """The live sink commits rows and dead letters while the letters are exchanged and the rows are not."""
    case.emit(*EVENTS)
    case.run("typed")
    tail = case.emit(order("e", 10), order("f", "a lot"), order("g", 12))
    adopt, times = DeadLetters.adopt, []

    def held(*args: Any, **named: Any) -> None:
        adopt(*args, **named)
        times.append(args)
        if len(times) == 1:
            case.run("typed", lock=False, internals=internals)

    monkeypatch.setattr(DeadLetters, "adopt", held)
    assert rebuild(case, "typed", lock=False, internals=internals).bookmark == tail
    assert len(times) == 2
    case.assert_exact("typed")
    case.emit(order("h", 13))
    case.run("typed")
    case.assert_exact("typed")


def test_a_shadow_that_is_ahead_of_the_table_brings_its_bookmark_along(case, monkeypatch):
    case.emit(*EVENTS)
    case.run("typed", through=4)
    case.run("typed")
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.dead_letters:DeadLetters.adopt")
        with pytest.raises(Crash):
            rebuild(case, "typed")
    DeltaTable(str(case.path("typed"))).restore(1)
    case.run("typed", through=4, after_restore="replay")
    done = rebuild(case, "typed")
    assert (done.resumed_at, done.bookmark) == (9, 9)
    case.assert_exact("typed")
    case.emit(order("e", 10))
    case.run("typed")
    case.assert_exact("typed")


def test_a_stream_that_is_trimmed_while_a_rebuild_begins_stops_it(case, monkeypatch):
    write_stream(case.url + "?segment_bytes=1", EVENTS, frame_rows=1)
    case.run("append")
    versions = case.versions("append")
    takes_drops = Rebuild._takes_drops

    def held(*args: Any) -> bool:
        with open_stream(case.url, "write") as stream:
            stream.trim(4)
        return takes_drops(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Rebuild, "_takes_drops", held)
        with pytest.raises(EventsTrimmed, match="trimmed through ID 4 while the rebuild"):
            rebuild(case, "append")
    assert case.versions("append") == versions
    assert not case.path("append__rebuild").exists()


def test_a_trimmed_stream_is_not_rebuilt_from_without_force(case):
    write_stream(case.url + "?segment_bytes=1", EVENTS, frame_rows=1)
    case.run("append")
    with open_stream(case.url, "write") as stream:
        stream.trim(4)
    with pytest.raises(Trimmed, match="replay from ID 5"):
        replay(case, "append", 2)
    assert replay(case, "append", dry=True).difference.is_none
    with pytest.raises(EventsTrimmed, match="--force"):
        rebuild(case, "append")
    assert rebuild(case, "append", dry=True).difference.delete_ids == (1, 2, 3, 4)
    assert rebuild(case, "append", force=True).trimmed_through == 4
    assert [event_id for (event_id,) in read(case.path("append"), "id")] == [5, 6, 7, 8, 9]
