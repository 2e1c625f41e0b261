"""What a table's description can say, beyond its mode: keys, schemas, expectations, transforms, layout, routing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import ExpectationFailed, UsageError
from spark_sink import table_sink
from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from tests.killed import Crash, crash_after
from tests.sink_case import SCHEMA, SinkCase, order, read, run, spec, tombstone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def dead(path) -> list[int]:
    return [event_id for (event_id,) in read(f"{path}__dead_letters", "id")]


def test_a_batch_size_that_changes_from_run_to_run_makes_no_difference(spark, tmp_path):
    case = SinkCase(spark, tmp_path, "append", "scd2")
    for rows_max in (2, 5, 1):
        case.emit(order("a", 1), order("b", "a lot"), tombstone("a"), order("a", 4))
        case.run(rows_max=rows_max)
        case.assert_exact()


def test_a_query_drives_the_tables_and_its_checkpoint_does_not_matter(spark, tmp_path):
    """Batches that come twice, after a lost checkpoint, do no harm, and a table that is added later starts anew."""
    case = SinkCase(spark, tmp_path)

    def drain(*tables: str) -> None:
        with case.open(*tables) as materializer:
            events = spark.readStream.format("outbox").option("stream", case.url).option("maxRowsPerBatch", 4).load()
            query = events.writeStream.foreachBatch(materializer.foreach_batch).trigger(availableNow=True)
            query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    case.emit(order("a", 1), order("b", 2), tombstone("a"), order("a", "a lot"), order("c", 5))
    drain("append", "upsert")
    case.assert_exact("append", "upsert")
    shutil.rmtree(tmp_path / "checkpoint")
    case.emit(order("a", 6), tombstone("b"))
    drain("append", "upsert", "scd2")
    case.assert_exact("append", "upsert", "scd2")


def test_the_bookmark_of_a_table_that_has_no_events_follows(spark, make_stream, tmp_path, monkeypatch):
    refunds, orders = spec(tmp_path / "refunds", types=("refund.*",)), spec(tmp_path / "orders", types=("order.*",))
    url = make_stream(order("a", 1), order("b", 2))
    with Materializer(spark, url, [refunds, orders]) as sink:
        assert sink._round(2, None)
        assert [each.bookmark() for each in sink.sinks] == [0, 2]
        # Not at each look, but in a while; and before the sink goes away.
        monkeypatch.setattr(table_sink, "IDLE_SECONDS_MAX", 0)
        assert sink._round(2, None)
        assert [each.bookmark() for each in sink.sinks] == [2, 2]
    monkeypatch.undo()
    make_stream(order("c", 3))
    assert run(spark, url, refunds, orders) == [3, 3]
    make_stream(order("d", 4, type="refund.made"))
    assert run(spark, url, refunds, orders) == [4, 4]
    assert read(tmp_path / "refunds", "id") == [(4,)]


# ---- expectations ------------------------------------------------------------------------


def test_an_expectation_that_warns_lets_rows_pass(spark, make_stream, tmp_path, capsys):
    url = make_stream(order("a", 1), order("b", -1))
    table = spec(tmp_path / "t", schema=SCHEMA, expect={"positive total": "total > 0"}, on_expect="warn")
    assert run(spark, url, table) == [2]
    assert read(tmp_path / "t", "_event_id") == [(1,), (2,)]
    said = capsys.readouterr()
    assert "positive total" in said.out + said.err


def test_an_expectation_that_stops_writes_nothing_of_the_batch_and_names_the_events(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2), order("c", -1), order("d", 4))
    table = spec(tmp_path / "t", schema=SCHEMA, expect={"positive total": "total > 0"}, on_expect="stop")
    with pytest.raises(
        ExpectationFailed, match=r"'positive total': total > 0; event 3\. Nothing of the batch"
    ) as found:
        run(spark, url, table, rows_max=2)
    assert found.value.exit_code == 4
    assert read(tmp_path / "t", "_event_id") == [(1,), (2,)]
    mended = spec(tmp_path / "t", schema=SCHEMA, expect={"positive total": "total > 0"})
    assert run(spark, url, mended) == [4]
    assert read(tmp_path / "t", "_event_id") == [(1,), (2,), (4,)]
    assert dead(tmp_path / "t") == [3]


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_an_event_is_in_the_table_or_among_the_dead_letters_whatever_an_expectation_says_when_asked_again(
    spark, make_stream, tmp_path, internals
):
    url = make_stream(*(order("a", at) for at in range(60)))
    table = spec(tmp_path / "t", expect={"luck": "rand() > 0.5"})
    run(spark, url, table, rows_max=30, internals=internals)
    alive = [event_id for (event_id,) in read(tmp_path / "t", "id")]
    assert sorted([*alive, *dead(tmp_path / "t")]) == list(range(1, 61))
    assert alive


def test_a_decision_stands_even_if_the_expectation_is_gone_after_a_crash(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", -1, type="order.odd"), order("c", 3))
    strict = spec(tmp_path / "t", expect={"not odd": "type <> 'order.odd'"})
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, "spark_sink.dead_letters:DeadLetters.record")
        with pytest.raises(Crash):
            run(spark, url, strict)
    assert run(spark, url, spec(tmp_path / "t")) == [3]
    assert read(tmp_path / "t", "id") == [(1,), (3,)]
    assert dead(tmp_path / "t") == [2]


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_tables_can_share_their_dead_letters(spark, make_stream, tmp_path, internals):
    url = make_stream(order("a", 1), order("b", "a lot"), order(None, 3))
    letters = TableName.parse(str(tmp_path / "letters"))
    tables = [
        spec(tmp_path / "typed", schema=SCHEMA, dead_letters=letters),
        spec(tmp_path / "upsert", schema=SCHEMA, mode="upsert", dead_letters=letters),
    ]
    run(spark, url, *tables, internals=internals, rows_max=2)
    found = read(tmp_path / "letters", "id", "table", order_by="id")
    assert sorted(found) == [
        (2, str(tmp_path / "typed")),
        (2, str(tmp_path / "upsert")),
        (3, str(tmp_path / "upsert")),
    ]


# ---- keys and deletes --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_a_part_of_a_composite_key_may_be_null_but_not_all_of_it(spark, make_stream, tmp_path, mode):
    def sale(shop: str | None, item: str | None, total: int) -> dict[str, object]:
        return {"data": {"shop": shop, "item": item, "total": total}}

    url = make_stream(
        sale("x", "a", 1), sale(None, "a", 2), sale("x", None, 3), sale(None, None, 4), sale(None, "a", 5),
        sale("x", "a", 6),
    )  # fmt: skip
    table = spec(tmp_path / "t", mode=mode, key=("shop", "item"), schema="shop string, item string, total bigint")
    for rows_max in (2, 10):
        run(spark, url, table, rows_max=rows_max)
        current = [
            row[:3]
            for row in read(tmp_path / "t", "shop", "item", "total", *(["_is_current"] if mode == "scd2" else []))
            if mode == "upsert" or row[3]
        ]
        assert sorted(current, key=lambda row: row[2]) == [("x", None, 3), (None, "a", 5), ("x", "a", 6)]
        assert dead(tmp_path / "t") == [4]


def test_a_condition_says_which_events_delete(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2), order("a", 0, type="order.cancelled"), tombstone("b"))
    table = spec(tmp_path / "t", mode="upsert", schema=SCHEMA, deletes="type = 'order.cancelled'")
    run(spark, url, table)
    # A tombstone is an event like any other here.
    assert read(tmp_path / "t", "_event_id", "subject", "total") == [(4, "b", None)]


# ---- schemas and layout ------------------------------------------------------------------


def test_a_field_that_is_declared_later_becomes_a_column(spark, make_stream, tmp_path):
    url = make_stream({"data": {"order": "a", "city": "Bern"}})
    run(spark, url, spec(tmp_path / "t", schema="order string"))
    make_stream({"data": {"order": "b", "city": "Basel"}}, {"data": {"order": "c", "city": ["not", "text"]}})
    assert run(spark, url, spec(tmp_path / "t", schema="order string, city string")) == [3]
    assert read(tmp_path / "t", "_event_id", "order", "city") == [(1, "a", None), (2, "b", "Basel")]
    assert dead(tmp_path / "t") == [3]


def test_a_declared_schema_may_grow_and_types_that_change_go_to_the_dead_letters(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), {"data": {"order": "b", "total": 2, "note": "x"}})
    table = spec(tmp_path / "t", schema=SCHEMA, evolve=True)
    run(spark, url, table)
    make_stream({"data": {"order": "c", "total": 3, "note": 7}}, {"data": {"order": "d", "total": 4, "note": "y"}})
    run(spark, url, table)
    assert read(tmp_path / "t", "_event_id", "note") == [(1, None), (2, "x"), (4, "y")]
    assert dead(tmp_path / "t") == [3]


def test_a_table_is_partitioned_or_clustered(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", 2), order("a", 3, type="order.sent"))
    parted = spec(tmp_path / "parted", schema=SCHEMA, partition_by=("type",))
    clustered = spec(tmp_path / "clustered", schema=SCHEMA, mode="upsert", cluster_by=("subject",))
    run(spark, url, parted, clustered, rows_max=2)
    assert DeltaTable(str(tmp_path / "parted")).metadata().partition_columns == ["type"]
    assert {path.parent.name for path in (tmp_path / "parted").glob("*/*.parquet")} == {
        "type=order.paid",
        "type=order.sent",
    }
    assert read(tmp_path / "parted", "_event_id", "type") == [(1, "order.paid"), (2, "order.paid"), (3, "order.sent")]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path / 'clustered'}`").collect()[0]
    assert detail["clusteringColumns"] == ["subject"]
    assert read(tmp_path / "clustered", "_event_id") == [(2,), (3,)]


# ---- transforms --------------------------------------------------------------------------


def test_a_transform_makes_rows_of_its_own_and_a_bad_one_takes_its_event_along(spark, make_stream, tmp_path):
    def items(events: DataFrame) -> DataFrame:
        parsed = events.withColumn("item", F.explode(F.from_json("data", "array<struct<name:string,price:int>>")))
        return parsed.select("id", "item.name", "item.price")

    url = make_stream(
        {"data": [{"name": "a", "price": 1}, {"name": "b", "price": 2}]},
        {"data": [{"name": "c", "price": -3}, {"name": "d", "price": -4}, {"name": "e", "price": 5}]},
        {"data": [{"name": "f", "price": 6}]},
    )
    table = spec(tmp_path / "t", transform=items, expect={"price": "price > 0"})
    run(spark, url, table, rows_max=2)
    assert sorted(read(tmp_path / "t", "_event_id", "name")) == [(1, "a"), (1, "b"), (3, "f")]
    assert dead(tmp_path / "t") == [2]


def test_a_transform_must_keep_the_id_and_its_types(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1))
    with pytest.raises(UsageError, match="dropped the column `id`"):
        run(spark, url, spec(tmp_path / "t", transform=lambda events: events.select("type")))
    run(spark, url, spec(tmp_path / "t", transform=lambda events: events.selectExpr("id", "1 AS n")))
    make_stream(order("b", 2))
    with pytest.raises(UsageError, match="the column n is int, and its description makes double"):
        run(spark, url, spec(tmp_path / "t", transform=lambda events: events.selectExpr("id", "1.5D AS n")))
    assert read(tmp_path / "t", "_event_id", "n") == [(1, 1)]
