"""`outbox table`: a table shown, optimized, vacuumed, and what others did to it accepted."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from outbox.errors import TableChanged
from tests.sink_case import SinkCase, order

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
