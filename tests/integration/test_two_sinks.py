"""Two sinks on one table: held transactions, different batch sizes, with the lock and without it.

The lock is for the local disk alone. Everything here but one test runs without it: what keeps
the tables exact is that a commit depends on the bookmark it was computed from.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from spark_sink.maintenance import optimize
from spark_sink.materializer import Materializer
from spark_sink.modes import scd2
from tests.sink_case import SinkCase, order, tombstone

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_sink.table_sink import TableSink

# Each six events insert, change, delete and bring back keys, and have one that is bad.
SIX = [
    order("a", 1),
    order("b", 2),
    tombstone("a"),
    order("a", 3),
    order("b", "a lot"),
    tombstone("b"),
]


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path)


class Hold:
    """Runs something once, in the middle of a sink's step."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.done = False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self._meanwhile()


def hold_after_look(monkeypatch: Any, sink: TableSink, hold: Hold) -> None:
    """The bookmark is read, and nothing is written."""
    write = sink._write

    def held(*args: Any) -> None:
        hold()
        write(*args)

    monkeypatch.setattr(sink, "_write", held)


def hold_before_commit(monkeypatch: Any, sink: TableSink, hold: Hold) -> None:
    """As late as it gets: the files are written, or the MERGE is about to begin."""
    if sink.spec.mode == "append" and sink.table.uses_internals:
        log = sink.table._log
        begin = log.begin

        def begun(snapshot: Any) -> Any:
            transaction = begin(snapshot)
            commit = transaction.commit
            transaction.commit = lambda metadata: (hold(), commit(metadata))[1]
            return transaction

        monkeypatch.setattr(log, "begin", begun)
    elif sink.spec.mode == "scd2":
        # Its source reads the table that it merges into.
        source = scd2._source
        monkeypatch.setattr(scd2, "_source", lambda *args: (source(*args), hold())[0])
    else:
        open_table = sink.table.delta_table
        monkeypatch.setattr(sink.table, "delta_table", lambda: (open_table(), hold())[0])


@pytest.mark.parametrize(
    ("table", "internals"),
    [("append", None), ("append", False), ("typed", None), ("upsert", None), ("scd2", None), ("upsert", False)],
    ids=lambda value: "public" if value is False else value or "inside",
)
def test_a_batch_that_was_held_up_does_not_land_on_what_another_sink_committed(case, monkeypatch, table, internals):
    """The other sink has committed a part of the batch, or the batch and more: each is read and written once."""
    for at, (place, others_through) in enumerate(
        [(hold_after_look, 4), (hold_before_commit, 10), (hold_before_commit, 24)]
    ):
        tail = case.emit(*SIX, *(SIX if at == 2 else ()))
        with case.open(table, rows_max=6, lock=False, internals=internals) as first, monkeypatch.context() as patched:
            (sink,) = first.sinks
            sink.open()
            hold = Hold(lambda to=others_through: case.run(table, through=to, rows_max=4, lock=False))
            place(patched, sink, hold)
            first.run_once()
            assert hold.done
            assert sink.bookmark() == tail
        case.assert_exact(table)


@pytest.mark.parametrize("lock", [True, False], ids=["lock", "no-lock"])
def test_two_sinks_at_once_with_different_batch_sizes(case, lock):
    case.emit(*SIX, *SIX, *SIX)
    failed: list[BaseException] = []

    def work(rows_max: int, internals: bool | None) -> None:
        try:
            case.run(rows_max=rows_max, lock=lock, internals=internals)
        except BaseException as error:
            failed.append(error)

    sinks = [threading.Thread(target=work, args=args) for args in [(5, None), (7, None)]]
    for each in sinks:
        each.start()
    for each in sinks:
        each.join()
    assert failed == []
    case.assert_exact()


def test_two_sinks_may_both_take_a_new_field_into_the_schema(spark, make_stream, tmp_path, monkeypatch):
    """The one that was held up while the other grew the table writes no event of the other's again."""
    from tests.sink_case import read, run, spec

    table = spec(tmp_path / "t", schema="infer")
    url = make_stream(order("a", 1))
    run(spark, url, table)
    make_stream(order("b", 2), {"subject": "c", "data": {"order": "c", "total": 3, "city": "Bern"}}, order("d", 4))
    from spark_sink.table_sink import SinkOptions

    with Materializer(spark, url, [table], SinkOptions(lock=False)) as first:
        (sink,) = first.sinks
        sink.open()
        grow = sink._grow
        hold = Hold(lambda: run(spark, url, table, rows_max=2, through=3, lock=False))
        monkeypatch.setattr(sink, "_grow", lambda *args: (hold(), grow(*args))[1])
        first.run_once()
        assert hold.done
    assert read(tmp_path / "t", "_event_id", "city") == [(1, None), (2, None), (3, "Bern"), (4, None)]


def test_upkeep_and_changed_descriptions_that_meet_a_commit_of_another_are_tried_again(case, monkeypatch):
    """As Delta refuses them: nothing of them is done."""
    case.emit(*SIX)
    case.run("append", rows_max=2)
    sql = SparkSession.sql
    refused: list[str] = []

    def once_refused(session: Any, text: str, *args: Any, **named: Any) -> Any:
        kind = text.split(maxsplit=1)[0]
        if kind in ("ALTER", "OPTIMIZE") and kind not in refused:
            refused.append(kind)
            raise RuntimeError(
                "io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED] The metadata has changed"
            )
        return sql(session, text, *args, **named)

    monkeypatch.setattr(SparkSession, "sql", once_refused)
    with Materializer(case.spark, case.url, [replace(case.specs("append")[0], types=("order.*",))]) as sink:
        sink.run_once()
        before, after = optimize(sink.sinks[0].table)
    assert sorted(refused) == ["ALTER", "OPTIMIZE"]
    assert before.files > after.files == 1
    case.assert_exact("append")
