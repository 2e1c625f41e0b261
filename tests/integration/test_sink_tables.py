"""What a table's description can say, beyond its mode: keys, schemas, expectations, transforms, layout, routing."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import ExpectationFailed, UsageError
from spark_sink import evolution, table_sink
from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.replay import Replay
from spark_sink.verification import verify_tables
from stream_store import open_stream
from tests.killed import Crash, crash_after
from tests.sink_case import SCHEMA, SinkCase, order, read, run, spec, tombstone
from tests.streams import EPOCH

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
        # A query may come with an old batch: nothing lies behind it.
        make_stream(order("c", 3))
        monkeypatch.undo()
        assert sink._round(3, None)
        monkeypatch.setattr(table_sink, "IDLE_SECONDS_MAX", 0)
        assert not sink._round(1, None)
    monkeypatch.undo()
    assert run(spark, url, refunds, orders) == [3, 3]
    make_stream(order("d", 4, type="refund.made"))
    assert run(spark, url, refunds, orders) == [4, 4]
    assert read(tmp_path / "refunds", "id") == [(4,)]


def test_a_table_whose_schema_waits_for_an_event_looks_at_each_once_and_holds_nothing_back(
    spark, make_stream, tmp_path, monkeypatch
):
    looked: list[tuple[int, int]] = []
    read_local = evolution.read_local

    def reading(url, span, **how):
        looked.append((span.after, span.through))
        return read_local(url, span, **how)

    monkeypatch.setattr(evolution, "read_local", reading)
    path = tmp_path / "t"
    table = spec(path, types=("refund.*",), schema="infer")
    url = make_stream(order("a", 1), order("b", 2))

    def reached() -> dict[str, int]:
        with open_stream(url) as stream:
            return {reader.name: reader.through for reader in stream.readers()}

    with Materializer(spark, url, [table]) as sink:
        assert list(reached().values()) == [0]
        for _ in range(2):
            sink.run_once()
        assert (looked, list(reached().values())) == ([(0, 2)], [2])
        make_stream(order("c", 3), tombstone("c", type="refund.made"))
        sink.run_once()
        # What is for the table is kept for it, though it says nothing about its schema.
        assert (looked, list(reached().values())) == ([(0, 2), (2, 4)], [2])
        assert not path.exists()
    with Materializer(spark, url, [table]) as sink:
        sink.run_once()
        make_stream(order("d", 5))
        sink.run_once()
        assert (looked[2:], list(reached().values())) == ([(2, 4), (4, 5)], [2])
        make_stream(order("e", 6, type="refund.made"))
        sink.run_once()
    assert reached() == {str(path): 6}
    assert read(path, "_event_id", "total") == [(4, None), (6, 6)]


# ---- expectations ------------------------------------------------------------------------


def test_an_expectation_that_warns_lets_rows_pass(spark, make_stream, tmp_path, capsys):
    url = make_stream(order("a", 1), order("b", -1))
    table = spec(tmp_path / "t", schema=SCHEMA, expect={"positive total": "total > 0"}, on_expect="warn")
    assert run(spark, url, table) == [2]
    assert read(tmp_path / "t", "_event_id") == [(1,), (2,)]
    said = capsys.readouterr()
    assert "positive total" in said.out + said.err


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["plain", "typed"])
def test_an_expectation_is_not_asked_of_a_tombstone(spark, make_stream, tmp_path, capsys, schema):
    url = make_stream(order("a", 1), tombstone("a"), order("b", -1))
    expect = {"positive total": "total > 0" if schema else "get_json_object(data, '$.total') > 0"}
    run(spark, url, spec(tmp_path / "t", schema=schema, expect=expect))
    assert read(tmp_path / "t", "_event_id" if schema else "id") == [(1,), (2,)]
    assert dead(tmp_path / "t") == [3]
    run(spark, url, spec(tmp_path / "warned", schema=schema, expect=expect, on_expect="warn"))
    said = capsys.readouterr()
    assert "rows=1" in (said.out + said.err).partition("break an expectation")[2].partition("\n")[0]


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


def test_an_expectation_does_not_stop_at_what_is_a_dead_letter_already(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1), order("b", -1), order("c", 3))
    expect = {"positive total": "total > 0"}
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, "spark_sink.dead_letters:DeadLetters.record")
        with pytest.raises(Crash):
            run(spark, url, spec(tmp_path / "t", schema=SCHEMA, expect=expect))
    strict = spec(tmp_path / "t", schema=SCHEMA, expect=expect, on_expect="stop")
    assert run(spark, url, strict) == [3]
    assert read(tmp_path / "t", "_event_id") == [(1,), (3,)]
    assert dead(tmp_path / "t") == [2]
    make_stream(order("d", -4))
    with pytest.raises(ExpectationFailed, match=r"event 4\."):
        run(spark, url, strict)


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


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_an_event_that_deletes_and_has_only_a_part_of_its_key_is_a_dead_letter(spark, make_stream, tmp_path, mode):
    """It would delete nothing, and nobody would know."""

    def line(subject: str | None, number: int | None, **more: object) -> dict[str, object]:
        return {"subject": subject, "data": {"line": number}, **more}

    url = make_stream(
        line("a", 1), line("a", None), line("b", 1), line(None, 1),
        tombstone("a"), {"subject": "b", "type": "line.gone", "data": "[1]"},
        line("b", 1, type="line.gone"), line("a", None, type="line.gone"), line(None, 1, type="line.gone"),
    )  # fmt: skip
    table = spec(
        tmp_path / "t", mode=mode, key=("subject", "line"), schema="line bigint",
        deletes="type = 'line.gone' OR data IS NULL AND data_bytes IS NULL",
    )  # fmt: skip
    run(spark, url, table)
    assert dead(tmp_path / "t") == [5, 6]
    rows = read(tmp_path / "t", "_event_id", *(["_is_current"] if mode == "scd2" else []))
    assert [row[0] for row in rows if mode == "upsert" or row[1]] == [1]
    reasons = dict(read(tmp_path / "t__dead_letters", "id", "reason"))
    assert "only a part" in reasons[5]
    assert "not a JSON object" in reasons[6]


def test_a_tombstone_deletes_a_key_that_is_not_of_its_data(spark, make_stream, tmp_path):
    url = make_stream(order(None, 1), order("a", 2), tombstone(None), order("b", 4))
    described = {"mode": "upsert", "key": ("type", "subject")}
    plain = spec(tmp_path / "plain", schema=SCHEMA, **described)
    selected = spec(tmp_path / "selected", select=("type", "subject", "data"), **described)
    run(spark, url, plain, selected)
    for table in ("plain", "selected"):
        assert read(tmp_path / table, "_event_id") == [(2,), (4,)]
        assert not (tmp_path / f"{table}__dead_letters").exists()


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


@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
def test_a_new_member_of_an_object_becomes_a_member_of_its_column(spark, make_stream, tmp_path, mode):
    url = make_stream({"subject": "a", "data": {"to": {"city": "Bern"}, "lines": [{"n": 1}]}})
    table = spec(tmp_path / "t", mode=mode, schema="infer")
    run(spark, url, table)
    make_stream(
        {"subject": "b", "data": {"to": {"city": "Basel", "house-no": {"n": 7}}, "lines": [{"n": 2, "sku": "x"}]}},
        {"subject": "c", "data": {"to": {"city": ["not", "text"]}}},
    )
    assert run(spark, url, table) == [3]
    assert read(tmp_path / "t", "_event_id", "to", "lines") == [
        (1, {"city": "Bern", "house-no": None}, [{"n": 1, "sku": None}]),
        (2, {"city": "Basel", "house-no": {"n": 7}}, [{"n": 2, "sku": "x"}]),
    ]
    assert dead(tmp_path / "t") == [3]


def test_a_member_that_is_declared_later_becomes_one(spark, make_stream, tmp_path):
    url = make_stream({"data": {"to": {"city": "Bern", "zip": 3000}}})
    run(spark, url, spec(tmp_path / "t", schema="to struct<city:string>"))
    make_stream({"data": {"to": {"city": "Basel", "zip": 4000}}})
    assert run(spark, url, spec(tmp_path / "t", schema="to struct<city:string,zip:int>")) == [2]
    assert read(tmp_path / "t", "to") == [({"city": "Bern", "zip": None},), ({"city": "Basel", "zip": 4000},)]
    with pytest.raises(UsageError, match="the column to is"):
        run(spark, url, spec(tmp_path / "t", schema="to struct<zip:int>"))


def test_names_that_no_column_can_have_do_not_stop_a_table_and_are_told_of(spark, make_stream, tmp_path, capsys):
    url = make_stream({"subject": "a", "data": {"type": "x", "n": 1}})
    table = spec(tmp_path / "t", mode="scd2", schema="infer")
    run(spark, url, table)
    unfit = {"data_type": 1, "_delete": True, "_valid_from": 2, "_is_current": 3, "_outbox_x": 4, "a b": 5}
    make_stream({"subject": "b", "data": {**unfit, "n": 2, "new": 6}}, {"subject": "c", "data": {**unfit, "n": 3}})
    assert run(spark, url, table, rows_max=1) == [3]
    assert read(tmp_path / "t", "_event_id", "data_type", "n", "new") == [
        (1, "x", 1, None),
        (2, None, 2, 6),
        (3, None, 3, None),
    ]
    said = capsys.readouterr()
    assert (said.out + said.err).count("fields are not in the table") == 1
    for name in unfit:
        assert name in said.out + said.err


@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
def test_fields_may_be_called_as_anybody_likes(spark, make_stream, tmp_path, mode):
    """What a step of the sink calls a column must not be what an event calls one."""
    names = ("_action", "_first", "_last", "_latest", "_reason", "_dead_id", "_bad", "_closed_id", "_known")

    def event(key: str, value: str) -> dict[str, object]:
        return {"subject": key, "data": {"total": 1, **dict.fromkeys(names, value)}}

    url = make_stream(event("a", "1"), event("b", "2"), event("a", "3"), {"subject": "b", "data": {"total": "x"}})
    schema = ", ".join(["total bigint", *(f"{name} string" for name in names)])
    table = spec(tmp_path / "t", mode=mode, schema=schema, expect={"_bad": "total > 0"})
    run(spark, url, table, rows_max=2)
    make_stream(event("b", "5"))
    run(spark, url, table, rows_max=2)
    for name in names:
        found = read(tmp_path / "t", "_event_id", name)
        assert found == [(event_id, str(event_id)) for event_id in ((3, 5) if mode == "upsert" else (1, 2, 3, 5))]
    assert dead(tmp_path / "t") == [4]
    with open_stream(url) as stream:
        assert Replay(spark, stream, table).run(dry=True).difference.is_none
        Replay(spark, stream, table).run()
    assert verify_tables(spark, url, [table])[0].problems == []


def test_columns_of_the_product_cannot_be_made(spark, make_stream, tmp_path):
    url = make_stream(order("a", 1))
    for column in ("_outbox_reason", "_OUTBOX_x", "_error", "_closed_by"):
        with pytest.raises(UsageError, match="is a column of the product"):
            run(spark, url, spec(tmp_path / "t", select=(f"subject AS {column}",)))
    assert not (tmp_path / "t").exists()


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


@pytest.mark.parametrize("internals", [None, False], ids=["inside", "public"])
def test_a_table_stays_partitioned_as_it_was_made_and_finds_its_keys_again(spark, make_stream, tmp_path, internals):
    """Delta makes an empty text in a partition column NULL, also where the description has forgotten the partitions."""
    url = make_stream({"subject": "a", "data": {"region": "", "total": 1}})
    described = {"mode": "upsert", "key": ("subject", "region"), "schema": "region string, total bigint"}
    run(spark, url, spec(tmp_path / "t", partition_by=("region",), **described), internals=internals)
    make_stream({"subject": "a", "data": {"region": "", "total": 2}})
    assert run(spark, url, spec(tmp_path / "t", **described), internals=internals) == [2]
    assert read(tmp_path / "t", "_event_id", "region", "total") == [(2, None, 2)]


def test_the_settings_and_functions_of_a_users_session_reach_the_table_and_its_time_zone_does_not(
    spark, make_stream, tmp_path
):
    """24 hours of events, on two days in New York and on one in UTC."""
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.session.timeZone", "America/New_York")
    theirs.conf.set("spark.sql.shuffle.partitions", "3")
    # Of somebody who writes with Delta's own markers: with it our commit would be skipped as done.
    theirs.conf.set("spark.databricks.delta.write.txnAppId", "theirs")
    theirs.conf.set("spark.databricks.delta.write.txnVersion", "7")
    theirs.udf.register("shout", str.upper)
    url = make_stream(order("a", 1, time=EPOCH), order("b", 2, time=EPOCH + timedelta(hours=23)))
    select = ("shout(subject) AS who", "to_date(time) AS day")
    for mode in ("append", "upsert"):
        table = spec(tmp_path / mode, mode=mode, key=("who",), select=select)
        with Materializer(theirs, url, [table]) as sink:
            assert sink.sinks[0].spark.conf.get("spark.sql.shuffle.partitions") == "3"
            sink.run_once()
        assert read(tmp_path / mode, "who", "day") == [("A", EPOCH.date()), ("B", EPOCH.date())]
    assert theirs.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert theirs.conf.get("spark.databricks.delta.write.txnAppId") == "theirs"


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
