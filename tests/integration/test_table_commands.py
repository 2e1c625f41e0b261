"""`outbox table`: a table shown, optimized, vacuumed, and what others did to it accepted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from outbox.errors import TableChanged
from spark_sink.maintenance import Maintenance, files_of, last_optimized
from tests.sink_case import SinkCase, order

if TYPE_CHECKING:
    from spark_sink.table_sink import TableSink

EVENTS = [order("a", 1), order("b", 2), order("a", 3)]


@pytest.fixture
def case(spark, tmp_path):
    return SinkCase(spark, tmp_path)


def test_a_table_is_shown_and_its_files_are_joined(case, outbox_here):
    case.emit(*EVENTS)
    case.run("append", rows_max=1)
    where = ("--table", str(case.path("append")))
    found = outbox_here("table", "show", *where, "--json")
    assert (found["ok"], found["bookmark"], found["files"]) == (True, 3, 3)
    assert [commit["role"] for commit in found["commits"]] == ["batch"] * 3
    done = outbox_here("table", "optimize", *where, "--json")
    assert (done["before"]["files"], done["after"]["files"]) == (3, 1)
    assert "unused for 8d" in outbox_here("table", "vacuum", *where, "--unused-for", "8d")
    assert "--unused-for" in outbox_here("table", "vacuum", *where, "--unused-for", "1h", code=2)
    assert "ok: as the sink left it" in outbox_here("table", "show", *where)
    case.emit(order("c", 4))
    case.run("append")
    case.assert_exact("append")


def test_a_table_is_optimized_when_its_own_history_says_that_it_is_time(case, monkeypatch):
    case.emit(*EVENTS)
    with case.open("append", "upsert", rows_max=1) as sink:
        sink.run_once()
        append, upsert = sink.sinks
        made = last_optimized(append.table)
        assert made == case.sql("DESCRIBE HISTORY {table}", "append")[-1]["timestamp"].timestamp()

        def run_at(seconds: float, *failed: TableSink) -> int:
            """A sink that begins then; the files that it leaves."""
            monkeypatch.setattr(time, "time", lambda: made + seconds)
            Maintenance(sink.sinks, 3600, None).run_due(failed)
            return files_of(append.table).files

        assert run_at(3599) == 3
        assert run_at(3700, append) == 3
        # One that fails does not end the others.
        monkeypatch.setattr(upsert.table, "exists", lambda: 1 / 0)
        assert run_at(3700) == 1
        assert last_optimized(append.table) > made
    case.run("append")
    case.assert_exact("append")


def test_a_time_that_delta_would_refuse_is_refused_when_the_sink_begins(case, outbox_here):
    case.emit(*EVENTS)
    where = ("--stream", case.url, "--table", str(case.path("append")))
    often = ("--optimize-every", "1h", "--vacuum-after")
    assert "below 168 hours" in outbox_here("sink", *where, "--once", *often, "2d", code=2)
    assert not case.path("append").exists()
    case.run("append")
    case.sql(
        "ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 days')", "append"
    )
    outbox_here("sink", *where, "--once", *often, "2d")
    assert "below 24 hours" in outbox_here("sink", *where, "--once", *often, "12h", code=2)


def test_what_others_wrote_is_accepted_by_a_person(case, outbox_here):
    case.emit(*EVENTS)
    case.run("upsert")
    where = ("--table", str(case.path("upsert")))
    assert "nobody else has written" in outbox_here("table", "accept", *where)
    DeltaTable(str(case.path("upsert"))).delete("subject = 'b'")
    with pytest.raises(TableChanged, match="outbox table accept"):
        case.run("upsert")
    assert "written by others" in outbox_here("table", "show", *where)
    assert [each["operation"] for each in outbox_here("table", "accept", *where, "--json")["accepted"]] == ["DELETE"]
    case.emit(order("c", 4))
    case.run("upsert")
    found = DeltaTable(str(case.path("upsert"))).to_pyarrow_table()
    assert sorted(found["subject"].to_pylist()) == ["a", "c"]

    DeltaTable(str(case.path("upsert"))).restore(1)
    assert "--after-restore replay" in outbox_here("table", "accept", *where, code=4)


def test_tables_that_are_not_there_or_not_ours(case, outbox_here, tmp_path):
    assert "there is no Delta table" in outbox_here("table", "show", "--table", str(tmp_path / "none"), code=1)
    assert "say which table" in outbox_here("table", "show", code=2)
    case.spark.range(1).write.format("delta").save(str(tmp_path / "theirs"))
    assert "--rebuild" in outbox_here("table", "optimize", "--table", str(tmp_path / "theirs"), code=1)
