"""What others may do to a table, to its stream and to its place: found, named, and how it is mended.

Each is found by the sink that is running and by one that begins, and neither writes anything.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from outbox.errors import EventsTrimmed, StreamCorrupt, TableChanged, TailLost, UsageError, WrongPartner
from spark_sink.materializer import Materializer
from spark_sink.modes.append import Append
from spark_sink.rebuild import Rebuild
from spark_sink.redrive import Redrive
from spark_sink.replay import Replay
from spark_sink.table_sink import SinkOptions
from stream_store import open_stream
from tests.killed import Crash, crash_after
from tests.sink_case import SCHEMA, SinkCase, order, read, run, spec, tombstone
from tests.streams import write_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVENTS = [order("a", 1), order("b", 2), order("a", 3), order("b", "a lot"), tombstone("a"), order("c", 6)]


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path, "append")


REBUILD = "outbox replay --rebuild --table"
REPLAY = "outbox sink --after-restore replay --table"
ACCEPT = "outbox table accept --table"

DAMAGES = {
    "restore": ("RESTORE TABLE {table} TO VERSION AS OF 1", "is a RESTORE to version 1", REPLAY),
    "overwrite": ("INSERT OVERWRITE {table} SELECT * FROM {table} WHERE id = 1", "is a WRITE (overwrite)", REBUILD),
    "replace": ("CREATE OR REPLACE TABLE {table} USING delta AS SELECT * FROM {table}", "was replaced", REBUILD),
    "truncate": ("TRUNCATE TABLE {table}", "is a TRUNCATE", REBUILD),
    "append": ("INSERT INTO {table} SELECT * FROM {table} WHERE id = 1", "is a WRITE that is not ours", ACCEPT),
    "delete": ("DELETE FROM {table} WHERE id = 1", "is a DELETE that is not ours", ACCEPT),
    "update": ("UPDATE {table} SET type = 'x' WHERE id = 1", "is a UPDATE that is not ours", ACCEPT),
    "merge": (
        "MERGE INTO {table} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "is a MERGE that is not ours",
        ACCEPT,
    ),
    "retention": (
        "ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 days')",
        "Delta would forget the bookmark",
        "UNSET TBLPROPERTIES",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_others_do_to_a_table_is_found_and_named(case, damage):
    statement, what, mend = DAMAGES[damage]
    case.emit(*EVENTS)
    with case.open(rows_max=2) as running:
        running.run_once()
        case.sql(statement, "append")
        version = case.versions("append")
        case.emit(order("d", 7))
        for sink in (running.run_once, case.run):
            with pytest.raises(TableChanged) as found:
                sink()
            assert found.value.exit_code == 4
            assert str(case.path("append")) in str(found.value)
            assert what in str(found.value)
            assert mend in str(found.value)
    assert case.versions("append") == version


def test_what_leaves_the_rows_alone_is_no_damage(case):
    case.emit(*EVENTS)
    case.run(rows_max=2)
    case.sql("OPTIMIZE {table}", "append")
    case.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 90 days')", "append")
    case.sql("ALTER TABLE {table} ADD COLUMNS (remark string)", "append")
    case.emit(order("d", 7))
    case.run()
    case.assert_exact()


def test_a_clone_is_not_taken_for_the_table(case, spark, tmp_path):
    case.emit(*EVENTS)
    case.run()
    case.sql(f"CREATE TABLE delta.`{tmp_path / 'clone'}` SHALLOW CLONE {{table}}", "append")
    with pytest.raises(TableChanged, match="it is a CLONE"):
        run(spark, case.url, spec(tmp_path / "clone"))


def test_a_table_that_was_dropped_is_not_begun_anew_in_silence(case):
    case.emit(*EVENTS)
    with case.open() as running:
        running.run_once()
        shutil.rmtree(case.path("append"))
        case.emit(order("d", 7))
        for sink in (running.run_once, case.run):
            with pytest.raises(TableChanged, match=f"is gone: .*{REBUILD}"):
                sink()
    assert not case.path("append").exists()
    case.run(anew=True)
    case.assert_exact()


def test_dead_letters_that_were_dropped_are_decided_anew_by_a_replay_of_their_table(spark, tmp_path):
    case = SinkCase(spark, tmp_path, "typed")
    case.emit(*EVENTS)
    with case.open() as running:
        running.run_once()
        shutil.rmtree(case.path("typed__dead_letters"))
        case.emit(order("d", 7))
        with pytest.raises(TableChanged, match=f"outbox replay --table {case.path('typed')}`"):
            running.run_once()
        with open_stream(case.url) as stream:
            Replay(spark, stream, *case.specs()).run()
        running.run_once()
    case.assert_exact()


def test_somebody_elses_table_is_left_alone(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1))
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    with pytest.raises(TableChanged, match="was not made by this sink"):
        run(spark, url, spec(tmp_path / "t"))
    assert read(tmp_path / "t", "id") == [(0,), (1,), (2,)]


def test_another_outbox_is_refused(case, spark, tmp_path):
    case.emit(*EVENTS)
    case.run()
    other = f"file://{tmp_path / 'other'}"
    write_stream(other, EVENTS, outbox_id="6f6b4b1e-0000-4000-8000-000000000002")
    with pytest.raises(WrongPartner, match="belongs to outbox 6f6b4b1e-0000-4000-8000-000000000001"):
        run(spark, other, *case.specs())


def test_another_mode_key_or_type_is_refused(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2))
    run(spark, url, spec(tmp_path / "t", mode="upsert", schema="order string, total double"))
    for other, what in [
        ({"mode": "append", "schema": "order string, total double"}, "mode = upsert"),
        ({"mode": "upsert", "key": ("order",), "schema": "order string, total double"}, "key = subject"),
        ({"mode": "upsert", "schema": "order string, total string"}, "the column total is double"),
    ]:
        with pytest.raises(UsageError, match=what) as found:
            run(spark, url, spec(tmp_path / "t", **other))
        assert REBUILD in str(found.value)


@pytest.mark.parametrize("made", [{}, {"schema": "order string, total double"}], ids=["plain", "typed"])
def test_a_schema_that_is_forgotten_or_added_is_refused_because_a_replay_would_double_the_events(
    spark, make_stream, tmp_path, made
):
    """The ID of an append table is `id` or `_event_id`: rows under the one are not found again by the other."""
    url = make_stream(order("a", 1), order("b", 2))
    run(spark, url, spec(tmp_path / "t", **made))
    make_stream(order("c", 3))
    other = {} if made else {"schema": "order string, total double"}
    with pytest.raises(UsageError, match=r"id_column = .*schema or a projection|id_column = .*neither") as found:
        run(spark, url, spec(tmp_path / "t", **other))
    assert REBUILD in str(found.value)
    assert run(spark, url, spec(tmp_path / "t", types=("order.*",), **made)) == [3]
    assert len(read(tmp_path / "t", "type")) == 3


def test_a_stream_that_was_trimmed_or_went_back_is_an_error(case, tmp_path):
    case.url += "?segment_bytes=1"
    case.emit(*EVENTS, frame_rows=1)
    case.run(through=2)
    with open_stream(case.url, "write") as stream:
        stream.trim(4)
    with pytest.raises(EventsTrimmed, match=f"holds events through 2.*{REBUILD}"):
        case.run()
    shutil.rmtree(tmp_path / "stream")
    case.emit(order("a", 1))
    with pytest.raises(TailLost, match="holds events through 2, the stream ends at 1"):
        case.run()


def test_a_new_table_begins_behind_what_was_trimmed_also_after_a_crash(case):
    case.url += "?segment_bytes=1"
    case.emit(*EVENTS, frame_rows=1)
    with open_stream(case.url, "write") as stream:
        stream.trim(2)
    with case.open() as crashed:
        crashed.sinks[0].open()
    case.run()
    assert [event_id for (event_id,) in read(case.path("append"), "id")] == [3, 4, 5, 6]


def test_damage_that_a_worker_of_spark_finds_is_named_and_ends_with_exit_code_4(case, monkeypatch, outbox_here):
    case.url += "?segment_bytes=1"
    case.emit(*EVENTS, frame_rows=1)
    case.run(through=2)
    # Not small: the driver leaves it to the workers.
    monkeypatch.setattr("spark_sink.reading.LOCAL_IDS_MAX", 0)
    segments = sorted((case.folder / "stream").glob("*.log"))
    damage(segments[4])
    with pytest.raises(StreamCorrupt, match="damaged"):
        case.run()
    where = ("--stream", case.url, "--table", str(case.path("append")))
    said = outbox_here("sink", *where, "--once", code=4)
    assert "Traceback" not in said
    # A rebuild goes through the table's bookmark, and no further.
    damage(segments[1])
    assert "Traceback" not in outbox_here("replay", *where, "--rebuild", "--dry-run", code=4)


def damage(segment: Path) -> None:
    bytes_ = bytearray(segment.read_bytes())
    bytes_[len(bytes_) // 2] ^= 255
    segment.write_bytes(bytes_)


# ---- several tables ----------------------------------------------------------------------


def test_a_table_that_cannot_go_on_does_not_hold_up_the_others(spark, tmp_path, outbox_here):
    case = SinkCase(spark, tmp_path, "append", "upsert")
    case.emit(*EVENTS)
    case.run(rows_max=2)
    case.sql(DAMAGES["restore"][0], "append")
    case.emit(order("d", 7))
    # The first of them is broken in another way.
    broken = spec(tmp_path / "broken", expect={"nonsense": "no_such_column > 0"})
    with pytest.raises(TableChanged, match="RESTORE"):
        run(spark, case.url, broken, *case.specs(), rows_max=3)
    case.assert_exact("upsert")
    case.emit(order("e", 8))
    config = tmp_path / "outbox.toml"
    described = "".join(f'[[outbox.table]]\ntable = "{case.path(name)}"\n' for name in case.tables)
    config.write_text(f'[[outbox]]\nstream = "{case.url}"\n{described}mode = "upsert"\nschema = "{SCHEMA}"\n')
    assert "is a RESTORE" in outbox_here("sink", "--config", str(config), "--once", code=4)
    case.assert_exact("upsert")


def test_a_table_that_somebody_has_mended_goes_on_while_the_sink_runs(spark, tmp_path):
    case = SinkCase(spark, tmp_path, "append", "upsert")
    case.emit(*EVENTS)
    case.run(rows_max=2)
    case.sql(DAMAGES["restore"][0], "append")
    tail = case.emit(order("d", 7))
    stop = threading.Event()
    with case.open() as running:
        append, upsert = running.sinks

        def between() -> None:
            if append in running._aside and upsert.bookmark() == tail:
                case.run("append", after_restore="replay")
                # The minute is over.
                running._aside[append] = (running._aside[append][0], 0.0)
            if append not in running._aside:
                stop.set()

        running.run(stop, 0.01, between)
    assert stop.is_set()
    case.assert_exact()


# ---- after a RESTORE ---------------------------------------------------------------------


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_what_a_restore_lost_is_written_again_once(spark, tmp_path, internals):
    """In every mode; and again when the table is restored to before that, to its very beginning."""
    case = SinkCase(spark, tmp_path, "append", "upsert", *(["scd2"] if internals is None else []))
    options: dict[str, Any] = {"internals": internals, "after_restore": "replay"}
    case.emit(*EVENTS)
    case.run(rows_max=3, internals=internals)
    for to in (1, 0):
        for table in case.tables:
            case.sql(f"RESTORE TABLE {{table}} TO VERSION AS OF {to}", table)
        with pytest.raises(TableChanged, match="RESTORE"):
            case.run(internals=internals)
        case.run(rows_max=2, **options)
        case.assert_exact()
        # And then it is as if nothing had happened.
        case.emit(order("a", 8), order("e", 9))
        case.run(internals=internals)
        case.assert_exact()


def test_a_restore_that_named_a_time(spark, tmp_path):
    case = SinkCase(spark, tmp_path, "append", "upsert")
    case.emit(*EVENTS)
    case.run(through=2)
    case.run(through=4)
    for table in case.tables:
        history = case.sql("DESCRIBE HISTORY {table}", table)
        # The time zone that Spark reads it in is not in the table's history.
        case.sql(f"RESTORE TABLE {{table}} TO TIMESTAMP AS OF '{history[-2]['timestamp']}'", table)
    with case.open(after_restore="replay", rows_max=2) as sink:
        sink.run_once()
        case.assert_exact()
        # A sink that is running puts it right, too.
        case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", "append")
        sink.run_once()
    case.assert_exact()


def test_a_table_that_was_restored_and_written_by_others_is_not_put_right_by_guessing(case):
    case.emit(*EVENTS)
    case.run(rows_max=2)
    case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", "append")
    case.sql("INSERT INTO {table} SELECT * FROM {table} WHERE id = 1", "append")
    with pytest.raises(TableChanged, match=f"others have written, too.*{REBUILD}"):
        case.run(after_restore="replay")


def test_passed_over_events_are_read_again_after_a_restore(spark, make_stream, tmp_path):
    """A sink that had found nothing for the table behind its bookmark looks again from the old bookmark."""
    table = spec(tmp_path / "t", types=("order.*",))
    url = make_stream(order("a", 1), order("b", 2))
    with Materializer(spark, url, [table], SinkOptions(rows_max=1, after_restore="replay")) as sink:
        sink.run_once()
        make_stream(*[order("x", 0, type="refund.made")] * 3)
        sink._round(5, None)
        spark.sql(f"RESTORE TABLE delta.`{tmp_path / 't'}` TO VERSION AS OF 1")
        sink.run_once()
    assert read(tmp_path / "t", "id") == [(1,), (2,)]


@pytest.mark.parametrize("how", ["restored", "an older copy", "made anew"])
def test_passed_over_events_are_read_again_when_somebody_else_has_put_the_table_back(spark, make_stream, tmp_path, how):
    """The sink that had passed over events does not see the bookmark go back: it is low when it looks next."""
    path, copy = tmp_path / "t", tmp_path / "copy"
    table = spec(path, types=("order.*",))
    url = make_stream(order("a", 1), order("b", 2), order("c", 3))
    run(spark, url, table, through=1)
    shutil.copytree(path, copy)
    with Materializer(spark, url, [table]) as idle:
        idle.run_once()
        make_stream(*[order("x", 0, type="refund.made")] * 3)
        idle._round(6, None)
        assert idle.sinks[0].bookmark() == 3
        if how == "restored":
            spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
            with Materializer(spark, url, [table], SinkOptions(after_restore="replay")) as other:
                other.sinks[0].open()
        else:
            shutil.rmtree(path)
            if how == "an older copy":
                shutil.copytree(copy, path)
            else:
                run(spark, url, table, through=1, anew=True)
        assert idle.sinks[0].bookmark() == 1
        make_stream(order("d", 7))
        idle.run_once()
        assert idle.sinks[0].bookmark() == 7
    assert read(path, "id") == [(1,), (2,), (3,), (7,)]


@pytest.mark.parametrize("table", ["typed", "upsert", "scd2"])
def test_a_redrive_that_a_restore_has_undone_is_done_again(spark, tmp_path, monkeypatch, table):
    """Its letter is gone: the event would be in neither. Also when the sink that does it is killed in between."""
    case = SinkCase(spark, tmp_path, table)
    case.emit(order("a", 1), order("b", -2), order("a", 3), order("c", 4))
    strict = replace(case.specs()[0], expect={"not below zero": "total >= 0"})
    run(spark, case.url, strict, through=3)
    assert case.dead(table) == [2]
    with open_stream(case.url) as stream:
        assert Redrive(spark, stream, case.specs()[0]).run().taken == 1
    case.run()
    case.assert_exact()
    case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", table)
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.table_sink.write_again")
        with pytest.raises(Crash):
            case.run(after_restore="replay")
    with pytest.raises(TableChanged, match="is a RESTORE"):
        case.run()
    case.run(after_restore="replay")
    case.assert_exact()
    case.emit(order("b", 5))
    case.run()
    case.assert_exact()


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_an_event_that_a_replay_has_made_a_letter_does_not_come_back_by_a_restore(spark, tmp_path, internals):
    case = SinkCase(spark, tmp_path, "typed")
    case.emit(order("a", 1), order("b", -2), order("a", 3))
    case.run(internals=internals)
    strict = replace(case.specs()[0], expect={"not below zero": "total >= 0"})
    with open_stream(case.url) as stream:
        Replay(spark, stream, strict, SinkOptions(internals=internals)).run()
    assert case.dead("typed") == [2]
    case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", "typed")
    assert read(case.path("typed"), "_event_id") == [(1,), (2,), (3,)]
    run(spark, case.url, strict, internals=internals, after_restore="replay")
    assert read(case.path("typed"), "_event_id") == [(1,), (3,)]
    assert case.dead("typed") == [2]


def test_what_a_restore_has_undone_may_need_a_person(spark, tmp_path):
    case = SinkCase(spark, tmp_path, "typed", "upsert")
    case.url += "?segment_bytes=1"
    case.emit(order("a", 1), order("b", -2), order("c", 3), frame_rows=1)
    strict = [replace(each, expect={"not below zero": "total >= 0"}) for each in case.specs()]
    run(spark, case.url, *strict)
    with open_stream(case.url, "write") as stream:
        Redrive(spark, stream, case.specs("typed")[0]).run()
        Rebuild(spark, stream, case.specs("upsert")[0]).run()
        stream.trim(2)
    for table in case.tables:
        case.sql("RESTORE TABLE {table} TO VERSION AS OF 1", table)
    with pytest.raises(
        EventsTrimmed, match=r"a redrive of events behind 1.*RESTORE the table to version 3 or a later one"
    ):
        case.run("typed", after_restore="replay")
    with pytest.raises(TableChanged, match=f"had made the table anew.*{REBUILD}"):
        case.run("upsert", after_restore="replay")
    # Nothing has said that it is all right: the RESTORE is still the last word.
    case.sql("RESTORE TABLE {table} TO VERSION AS OF 3", "typed")
    case.run("typed", after_restore="replay")
    assert read(case.path("typed"), "_event_id", "total") == [(1, 1.0), (2, -2.0), (3, 3.0)]


# ---- in the middle of a batch ------------------------------------------------------------


@pytest.mark.parametrize("statement", [DAMAGES["restore"][0], DAMAGES["overwrite"][0], DAMAGES["append"][0]])
def test_what_comes_between_a_look_and_its_commit_is_found_after_it(case, monkeypatch, statement):
    case.emit(*EVENTS)
    case.run(through=4, rows_max=2)
    apply: Callable[..., None] = Append.apply

    def held(*args: Any) -> None:
        case.sql(statement, "append")
        apply(*args)

    with monkeypatch.context() as patched, case.open() as first:
        patched.setattr(Append, "apply", held)
        with pytest.raises(TableChanged, match="version 3 is a"):
            first.run_once()
        assert first.sinks[0].bookmark() == 6
    # Rows that are ours lie on top: to put the bookmark back would double them.
    with pytest.raises(TableChanged, match=REBUILD):
        case.run(after_restore="replay")
