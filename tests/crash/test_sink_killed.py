"""The sink, ended at each of its steps, and begun again with another batch size: what the tables hold is exact.

Most of the crashes are a BaseException in this process, thrown where a kill would end it. For
what is on the disk that is the same: between two calls into Java nothing is under way there,
and on its way out the sink lets go of memory, settings of its session and the table's lock,
and writes nothing. Where Java itself is at work, and for one of each kind, it is a SIGKILL.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_sink.delta import java_file
from spark_sink.lock import table_lock
from spark_sink.maintenance import optimize
from stream_store import open_stream
from stream_store.readers import TABLE, reached
from tests.crash.sink_process import SinkProcess, is_running
from tests.killed import Crash, crash_after, run_killed
from tests.sink_case import SCHEMA, SinkCase, order, read, run, spec, tombstone
from tests.spark import flags

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUR = [order("a", 1), order("b", "a lot"), tombstone("a"), order("b", 4)]
ALL = ("typed", "upsert", "scd2")

# The sink's way, in its order: the function whose nth return is the end, and the tables.
STEPS = [
    ("the dead letters are decided, the rows are not written", "dead_letters:DeadLetters.record", 1, ("typed",)),
    ("the same before a MERGE", "dead_letters:DeadLetters.record", 1, ("upsert",)),
    ("the files are written, the commit is not", "delta:Transaction.mark", 2, ("typed",)),
    ("the commit of the dead letters landed and did not return", "delta:Transaction.commit", 1, ("typed",)),
    ("the commit landed and did not return", "delta:Transaction.commit", 2, ("typed",)),
    ("the MERGE of an upsert landed and did not return", "modes.upsert:Upsert.apply", 1, ("upsert",)),
    ("the MERGE of an scd2 landed and did not return", "modes.scd2:Scd2.apply", 1, ("scd2",)),
    ("before it is made durable", "table_sink:TableSink._checked", 1, ("typed",)),
    ("before the stream is told", "table:Table.make_durable", 3, ("typed",)),
    ("after table 1 of 3", "table_sink:TableSink.step", 1, ALL),
    ("after table 2 of 3", "table_sink:TableSink.step", 2, ALL),
]


@pytest.fixture(scope="module")
def case(spark, tmp_path_factory) -> Iterator[SinkCase]:
    """One stream and its tables for all crashes: each comes on top of those before."""
    made = SinkCase(spark, tmp_path_factory.mktemp("killed"), *ALL)
    made.emit(*FOUR)
    made.run()
    return made


@pytest.mark.parametrize(("function", "nth", "tables"), [step[1:] for step in STEPS], ids=[step[0] for step in STEPS])
def test_ended_there_and_begun_again_the_tables_are_exact(case, monkeypatch, function, nth, tables):
    case.emit(*FOUR, order("c", 5))
    with monkeypatch.context() as patch:
        crash_after(patch, f"spark_sink.{function}", nth)
        with pytest.raises(Crash):
            case.run(*tables, rows_max=4)
    case.run(*tables, rows_max=3)
    case.assert_exact(*tables)
    with open_stream(case.url) as stream:
        assert [reached(stream.readers(), TABLE, str(case.path(table))) for table in tables] == [stream.tail()] * len(
            tables
        )


def test_a_crash_after_the_last_commit_is_made_known_though_nothing_is_left_to_commit(case, monkeypatch):
    case.emit(*FOUR)
    case.run("typed", through=case.emit() - 1)
    with monkeypatch.context() as patch:
        crash_after(patch, "spark_sink.delta:Transaction.commit", 1)
        with pytest.raises(Crash):
            case.run("typed")
    with open_stream(case.url) as stream:
        assert reached(stream.readers(), TABLE, str(case.path("typed"))) == stream.tail() - 1
        case.run("typed")
        assert reached(stream.readers(), TABLE, str(case.path("typed"))) == stream.tail()


@pytest.mark.parametrize("step", ["table:Table.create", "table_sink:TableSink._begin"])
def test_ended_while_the_table_is_made(spark, make_stream, tmp_path, monkeypatch, step):
    url = make_stream(*FOUR)
    table = spec(tmp_path / "t", schema=SCHEMA)
    with monkeypatch.context() as patch:
        crash_after(patch, f"spark_sink.{step}")
        with pytest.raises(Crash):
            run(spark, url, table)
    assert run(spark, url, table, rows_max=3) == [4]
    assert read(tmp_path / "t", "_event_id") == [(1,), (3,), (4,)]
    assert read(tmp_path / "t__dead_letters", "id") == [(2,)]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_ended_while_the_schema_grows(spark, make_stream, tmp_path, monkeypatch, nth):
    """After the schema is kept, after one of two columns, and after both."""
    url = make_stream(order("a", 1))
    table = spec(tmp_path / "t", schema="infer")
    run(spark, url, table)
    make_stream({"data": {"order": "b", "city": "Bern", "zip": 3000}}, order("c", 3))
    with monkeypatch.context() as patch:
        # ALTER TABLE once for the schema, and once for each column.
        crash_after(patch, "pyspark.sql.session:SparkSession.sql", nth)
        with pytest.raises(Crash):
            run(spark, url, table)
    assert run(spark, url, table, rows_max=1) == [3]
    assert read(tmp_path / "t", "_event_id", "city", "zip") == [(1, None, None), (2, "Bern", 3000), (3, None, None)]


def test_ended_after_optimize(case, monkeypatch):
    case.run(*ALL)
    with case.open("typed") as sink, monkeypatch.context() as patch:
        (table,) = [each.table for each in sink.sinks]
        crash_after(patch, "spark_sink.maintenance.files_of", 2)
        with pytest.raises(Crash):
            optimize(table)
    case.emit(*FOUR)
    case.run("typed")
    case.assert_exact("typed")


# ---- SIGKILL -----------------------------------------------------------------------------


def sink_of(case: SinkCase, table: str, *more: str) -> list[str]:
    mode = {"typed": "append"}.get(table, table)
    return [
        "--stream", case.url, "--table", str(case.path(table)), "--mode", mode, "--schema", SCHEMA, "--once", *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "function", "nth"),
    [
        ("typed", "spark_sink.delta:Transaction.commit", 2),
        ("upsert", "spark_sink.dead_letters:DeadLetters.record", 1),
        ("scd2", "spark_sink.modes.scd2:Scd2.apply", 1),
    ],
)
def test_killed_there_and_begun_again(spark, tmp_path, table, function, nth):
    case = SinkCase(spark, tmp_path, table)
    case.emit(*FOUR)
    case.run()
    case.emit(*FOUR, *FOUR)
    run_killed(function, "after", nth, "sink", *sink_of(case, table, "--batch-rows", "5"), *flags())
    case.run(rows_max=3)
    case.assert_exact()


def parquet_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet") if path.stat().st_size}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_killed_while_java_writes_files(spark, tmp_path, mode):
    """Some of a batch's files are there and others are not: none of them is part of the table."""
    case = SinkCase(spark, tmp_path)
    keys = [f"k-{at}" for at in range(40)]
    case.emit(*(order(key, 1) for key in keys))
    # The second half of the rows takes for ever, so that the first task's file is there before the other's.
    slow = "CASE WHEN total > 1.5 AND id % 2 = 0 THEN reflect('java.lang.Thread', 'sleep', 1000L) END AS nap"
    given = [
        "--stream", case.url, "--table", str(tmp_path / "t"), "--mode", mode, "--schema", SCHEMA,
        "--select", "subject", "--select", "total", "--select", slow, "--once",
    ]  # fmt: skip
    table = spec(tmp_path / "t", mode=mode, schema=SCHEMA, select=("subject", "total", slow))
    run(spark, case.url, table)
    before = parquet_files(tmp_path / "t")
    case.emit(*(order(key, 2) for key in keys))
    with SinkProcess(*given) as sink:
        sink.wait_until(lambda: bool(parquet_files(tmp_path / "t") - before))
        sink.kill()
    quick = spec(tmp_path / "t", mode=mode, schema=SCHEMA, select=("subject", "total", "CAST(NULL AS STRING) AS nap"))
    assert run(spark, case.url, quick, rows_max=7) == [80]
    found = read(tmp_path / "t", "_event_id", "subject", "total")
    expected = [(40 + at + 1, key, 2.0) for at, key in enumerate(keys)]
    if mode == "append":
        expected = [(at + 1, key, 1.0) for at, key in enumerate(keys)] + expected
    assert found == expected


@pytest.mark.slow
def test_the_java_of_a_killed_sink_keeps_the_lock_until_it_is_gone(spark, tmp_path):
    """Its commit may still land, on a disk where two commits at once may both succeed."""
    case = SinkCase(spark, tmp_path)
    case.emit(*(order(f"k-{at}", 1) for at in range(4)))
    nap = "reflect('java.lang.Thread', 'sleep', 1000L) AS nap"
    given = ["--stream", case.url, "--table", str(tmp_path / "t"), "--select", "subject", "--select", nap, "--once"]
    with SinkProcess(*given) as sink:
        # Made, and empty: the batch is under way.
        sink.wait_until(lambda: any((tmp_path / "t").glob("*.parquet")))
        left = sink.kill_python()
        assert left
        with table_lock(tmp_path / "t", java_file(spark)):
            assert [pid for pid in left if is_running(pid)] == []
    quick = spec(tmp_path / "t", select=("subject", "CAST(NULL AS STRING) AS nap"))
    assert run(spark, case.url, quick) == [4]
    assert read(tmp_path / "t", "_event_id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "function"),
    [("typed", "spark_sink.delta:Transaction.mark"), ("scd2", "spark_sink.modes.scd2._source")],
)
def test_stopped_while_another_takes_over_and_then_it_goes_on(spark, tmp_path, table, function):
    """Without the lock, which a process that is stopped keeps: what it had in hand is refused, or changes nothing."""
    case = SinkCase(spark, tmp_path, table)
    case.emit(*FOUR)
    case.run()
    case.emit(order("c", 1), *FOUR, *FOUR)
    with SinkProcess(*sink_of(case, table, "--batch-rows", "1", "--no-lock"), stop_after=function) as stopped:
        stopped.wait_until_stopped()
        case.run(rows_max=3, lock=False)
        case.assert_exact()
        code, said = stopped.go_on()
    assert code == 0, said
    case.assert_exact()
    case.emit(*FOUR)
    case.run()
    case.assert_exact()
