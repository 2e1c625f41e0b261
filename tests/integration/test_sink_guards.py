"""What others may do to a table, to its stream and to its place: found, named, and how it is mended.

Each is found by the sink that is running and by one that begins, and neither writes anything.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from outbox.errors import EventsTrimmed, TableChanged, TailLost, UsageError, WrongPartner
from spark_sink.modes.append import Append
from stream_store import open_stream
from tests.sink_case import SinkCase, order, read, run, spec, tombstone
from tests.streams import write_stream

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = [order("a", 1), order("b", 2), order("a", 3), order("b", "a lot"), tombstone("a"), order("c", 6)]


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path, "append")


REBUILD = "outbox replay --rebuild --table"
REPLAY = "outbox sink --after-restore replay --table"
ACCEPT = "outbox table accept --table"

DAMAGES = {
    "restore": ("RESTORE TABLE {table} TO VERSION AS OF 1", "is a RESTORE to version 1", REPLAY),
    "overwrite": ("INSERT OVERWRITE {table} SELECT * FROM {table} WHERE id = 1", "is a WRITE", REBUILD),
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
    from spark_sink.materializer import Materializer
    from spark_sink.table_sink import SinkOptions

    table = spec(tmp_path / "t", types=("order.*",))
    url = make_stream(order("a", 1), order("b", 2))
    with Materializer(spark, url, [table], SinkOptions(rows_max=1, after_restore="replay")) as sink:
        sink.run_once()
        make_stream(*[order("x", 0, type="refund.made")] * 3)
        sink._round(5, None)
        spark.sql(f"RESTORE TABLE delta.`{tmp_path / 't'}` TO VERSION AS OF 1")
        sink.run_once()
    assert read(tmp_path / "t", "id") == [(1,), (2,)]


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
