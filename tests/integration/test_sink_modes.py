"""The materializer in each mode, through Delta's inside and through its public interface."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.spec import TableSpec
from spark_sink.table_sink import SinkOptions
from tests.streams import EPOCH

pytestmark = pytest.mark.compat

SCHEMA = "order string, total double"


def order(key: str | None, total: object, **more: object) -> dict[str, object]:
    return {"subject": key, "data": {"order": key, "total": total}, **more}


def rows(spark, path, *columns, order_by="_event_id"):
    found = spark.read.format("delta").load(str(path)).orderBy(order_by).select(*columns).collect()
    return [tuple(row) for row in found]


@pytest.fixture(params=[None, False], ids=["inside", "public"])
def internals(request):
    return request.param


def run(spark, url, specs, **options):
    with Materializer(spark, url, specs, SinkOptions(**options)) as materializer:
        materializer.run_once()
        return [sink.bookmark() for sink in materializer.sinks]


def spec(path: Path, **more) -> TableSpec:
    return TableSpec(TableName.parse(str(path)), **more)


def test_append_keeps_events_as_they_are(spark, make_stream, tmp_path, internals):
    url = make_stream(order("a", 1), order("b", 2), {"subject": "a"}, order("c", 3))
    assert run(spark, url, [spec(tmp_path / "t")], rows_max=3, internals=internals) == [4]
    make_stream(order("d", 4))
    assert run(spark, url, [spec(tmp_path / "t")], internals=internals) == [5]
    found = rows(spark, tmp_path / "t", "id", "subject", "data", order_by="id")
    assert found == [
        (1, "a", '{"order":"a","total":1}'),
        (2, "b", '{"order":"b","total":2}'),
        (3, "a", None),
        (4, "c", '{"order":"c","total":3}'),
        (5, "d", '{"order":"d","total":4}'),
    ]


def test_upsert_has_the_latest_of_each_key_and_tombstones_delete(spark, make_stream, tmp_path, internals):
    url = make_stream(order("a", 1), order("b", 2), order("a", 3), {"subject": "b"}, order("c", 4), order(None, 5))
    table = spec(tmp_path / "t", mode="upsert", schema=SCHEMA)
    assert run(spark, url, [table], rows_max=4, internals=internals) == [6]
    assert rows(spark, tmp_path / "t", "_event_id", "subject", "total") == [(3, "a", 3.0), (5, "c", 4.0)]
    dead = rows(spark, tmp_path / "t__dead_letters", "id", "reason", order_by="id")
    assert dead == [(6, "its key (subject) is NULL")]


def test_scd2_has_every_version_with_its_interval(spark, make_stream, tmp_path, internals):
    url = make_stream(order("a", 1), order("a", 2), order("b", 3), {"subject": "a"}, order("a", 4))
    table = spec(tmp_path / "t", mode="scd2", schema=SCHEMA)
    assert run(spark, url, [table], rows_max=2, internals=internals) == [5]
    found = rows(spark, tmp_path / "t", "_event_id", "subject", "_is_current", "_closed_by")
    assert found == [(1, "a", False, 2), (2, "a", False, 4), (3, "b", True, None), (5, "a", True, None)]


def test_a_bad_row_goes_to_the_dead_letters_once_and_the_rest_goes_on(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", "a lot"), order("c", 3), order("d", -1))
    table = spec(tmp_path / "t", schema=SCHEMA, expect={"positive total": "total > 0"})
    assert run(spark, url, [table], rows_max=2) == [4]
    assert run(spark, url, [table]) == [4]
    assert rows(spark, tmp_path / "t", "_event_id", "total") == [(1, 1.0), (3, 3.0)]
    dead = rows(spark, tmp_path / "t__dead_letters", "id", "reason", order_by="id")
    assert [event_id for event_id, _ in dead] == [2, 4]
    assert "total" in dead[0][1]
    assert dead[1][1] == "it breaks the expectation 'positive total': total > 0"


def test_routing_and_projection(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2, type="refund.made"), order("c", 3, type="order.sent"))
    table = spec(tmp_path / "t", types=("order.*",), schema=SCHEMA, select=("order AS who", "total * 2 AS twice"))
    other = spec(tmp_path / "o", types=("refund.*",))
    assert run(spark, url, [table, other]) == [3, 3]
    assert rows(spark, tmp_path / "t", "_event_id", "who", "twice") == [(1, "a", 2.0), (3, "c", 6.0)]
    assert rows(spark, tmp_path / "o", "id", order_by="id") == [(2,)]


def test_a_new_field_becomes_a_column_when_the_schema_is_inferred(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1.5), order("b", 2))
    table = spec(tmp_path / "t", schema="infer")
    run(spark, url, [table])
    make_stream({"subject": "c", "data": {"order": "c", "total": 3.5, "city": "Bern"}})
    assert run(spark, url, [table]) == [3]
    assert rows(spark, tmp_path / "t", "_event_id", "total", "city") == [
        (1, 1.5, None),
        (2, 2.0, None),
        (3, 3.5, "Bern"),
    ]


def test_a_table_that_is_added_later_begins_at_the_beginning(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2))
    first, second = spec(tmp_path / "first"), spec(tmp_path / "second", mode="upsert")
    run(spark, url, [first])
    make_stream(order("a", 3))
    assert run(spark, url, [first, second]) == [3, 3]
    assert rows(spark, tmp_path / "second", "_event_id", "subject") == [(2, "b"), (3, "a")]


def test_scd2_is_the_same_however_the_stream_is_cut(spark, make_stream, tmp_path):
    def at(second: int) -> datetime:
        return EPOCH + timedelta(seconds=second)

    url = make_stream(
        order("a", 1, time=at(10)),
        {"subject": "a", "time": at(20)},
        # Deletes nothing: its late time must not move what follows.
        {"subject": "a", "time": at(90)},
        order("a", 2, time=at(15)),
        {"subject": "b", "time": at(90)},
        order("b", 3, time=at(30)),
        order("b", 4, time=at(25)),
    )
    for rows_max in (1, 100):
        table = spec(tmp_path / f"t{rows_max}", mode="scd2", schema=SCHEMA)
        assert run(spark, url, [table], rows_max=rows_max) == [7]
        found = rows(spark, tmp_path / f"t{rows_max}", "_event_id", "_valid_from", "_valid_to", "_closed_by")
        seconds = [
            (event_id, *(value and int((value.astimezone() - EPOCH).total_seconds()) for value in times), closed_by)
            for event_id, *times, closed_by in found
        ]
        assert seconds == [(1, 10, 20, 2), (4, 20, None, None), (6, 30, 30, 7), (7, 30, None, None)], rows_max
