"""`format("outbox")` in Spark: batch and streaming queries over file streams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import datasource

from spark_sink import reading
from spark_sink.reading import as_dataframe, read_local
from spark_sink.source_stream import HAS_LIMITS
from spark_sink.spans import Span
from spark_sink.spark_types import from_spark, to_spark
from spark_sink.typed import schema_from_ddl
from stream_store import open_stream
from tests.streams import EPOCH, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.compat

MakeStream = Callable[..., str]

DDL = (
    "s string, i int, l bigint, b boolean, d double, f float, m decimal(10,2), t timestamp, n timestamp_ntz, day date, "
    "x binary, o struct<k:bigint,a:array<string>>, p map<string,int>"
)
ROW = {
    "s": "é", "i": 1, "l": 2**40, "b": True, "d": 1.5, "f": 0.5, "m": "12.50", "t": "2026-03-01T12:00:00.5+02:00",
    "n": "2026-03-01T12:00:00", "day": "2026-03-01", "x": "AP8=", "o": {"k": 1, "a": ["x", None]}, "p": {"y": 1},
}  # fmt: skip


def orders(count: int, pad: int = 0) -> list[dict[str, Any]]:
    kinds = ("order.paid", "order.sent", "user.made")
    return [
        {"type": kinds[n % 3], "subject": f"o-{n}", "data": {"total": n / 2, "n": n, "pad": "x" * pad}}
        for n in range(1, count + 1)
    ]


def ids(frame: DataFrame) -> list[int]:
    """In the order of the partitions."""
    return [row["id"] for row in frame.select("id").collect()]


def load(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("outbox").option("stream", url)
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), str(value))
    return reader.load()


def run_available(frame: DataFrame, checkpoint: Path, name: str) -> list[tuple[int, list[int]]]:
    """Run a streaming query to the end of what there is; (batch, IDs) of each of its batches."""
    batches: list[tuple[int, list[int]]] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, number: batches.append((number, ids(rows))))
        .option("checkpointLocation", str(checkpoint))
        .queryName(name)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    return batches


def stream_ids(batches: list[tuple[int, list[int]]]) -> list[int]:
    return [event_id for _, batch in batches for event_id in batch]


# Reading through as_dataframe, as the sink does.


@pytest.mark.parametrize("local", [True, False])
def test_dataframe_is_the_same_by_both_ways(spark, make_stream: MakeStream, monkeypatch, local):
    url = make_stream(
        {"data": ROW}, {"data": {"s": 1}}, {}, {"data_bytes": b"\x01"}, *orders(300, pad=1000), frame_rows=50
    )
    monkeypatch.setattr(reading, "LOCAL_IDS_MAX", 1000 if local else 0)
    schema = schema_from_ddl(DDL)
    frame = as_dataframe(spark, url, Span(0, 304), 4, schema=schema, prev_id=True)
    expected = read_local(url, Span(0, 304), schema=schema, prev_id=True)
    assert frame.schema == to_spark(expected.schema)
    assert from_spark(frame.schema) == expected.schema
    assert frame.rdd.getNumPartitions() > 1 or local
    assert frame.toArrow().cast(expected.schema).equals(expected)
    assert ids(frame) == list(range(1, 305))


def test_dataframe_of_nothing_has_its_columns(spark, make_stream: MakeStream):
    url = make_stream(*orders(3))
    frame = as_dataframe(spark, url, Span(0, 0), 4, schema=schema_from_ddl("total double"))
    assert frame.columns[-2:] == ["total", "_error"]
    assert frame.count() == 0
    assert as_dataframe(spark, url, Span(0, 3), 4, types=["none"]).count() == 0


# Batch queries.


def test_source_is_found_without_a_register_call_and_reads_everything_in_order(spark, make_stream: MakeStream):
    url = make_stream(*orders(500), frame_rows=40)
    frame = spark.read.format("outbox").load(url)
    assert frame.columns == [
        "id", "prev_id", "type", "subject", "time", "data", "data_bytes", "datacontenttype", "headers",
    ]  # fmt: skip
    assert ids(frame) == list(range(1, 501))
    row = frame.where("id = 7").first()
    assert (row["prev_id"], row["type"], row["subject"], json.loads(row["data"])["n"]) == (6, "order.sent", "o-7", 7)
    assert row["time"].timestamp() == (EPOCH + timedelta(seconds=7)).timestamp()


def test_range_is_split_by_frames_into_partitions_in_order(spark, tmp_path):
    url = f"file://{tmp_path}/stream"
    write_stream(url, orders(2000, pad=500), frame_rows=100)
    frame = load(spark, url, pieces=4)
    assert frame.rdd.getNumPartitions() == 4
    assert ids(frame) == list(range(1, 2001))


def test_from_and_to_are_inclusive_ids_or_times(spark, make_stream: MakeStream):
    url = make_stream(*orders(100))
    assert ids(load(spark, url, from_=10, to=12)) == [10, 11, 12]
    at = (EPOCH + timedelta(seconds=50)).isoformat()
    assert ids(load(spark, url, from_=at, to=(EPOCH + timedelta(seconds=52)).isoformat())) == [50, 51, 52]
    assert ids(load(spark, url, from_="latest")) == []
    assert ids(load(spark, url, from_=99, to=1000)) == [99, 100]
    assert ids(load(spark, url, from_=500)) == []


def test_types_columns_and_schema(spark, make_stream: MakeStream):
    url = make_stream(*orders(30), {"type": "order.paid", "data": {"total": "much"}})
    frame = load(spark, url, types="order.paid, user.*", columns="id,type", schema="total double, n int")
    assert frame.columns == ["id", "type", "total", "n", "_error"]
    rows = frame.collect()
    assert {row["type"] for row in rows} == {"order.paid", "user.made"}
    assert rows[0].asDict() == {"id": 2, "type": "user.made", "total": 1.0, "n": 2, "_error": None}
    assert rows[-1]["_error"] == 'total: "much" is not a number (double)'


def test_declared_columns_are_the_only_ones_read(spark, make_stream: MakeStream):
    url = make_stream(*orders(10))
    frame = spark.read.format("outbox").schema("type string, id bigint").option("stream", url).load()
    assert [tuple(row) for row in frame.limit(2).collect()] == [("order.sent", 1), ("user.made", 2)]
    with pytest.raises(Exception, match="no column 'total'"):
        spark.read.format("outbox").schema("total double").option("stream", url).load().collect()
    with pytest.raises(Exception, match="cast it afterwards"):
        spark.read.format("outbox").schema("id int").option("stream", url).load().collect()


def test_several_streams_are_told_apart(spark, make_stream: MakeStream, tmp_path):
    first, second = make_stream(*orders(5), name="shop-a"), make_stream(*orders(3), name="shop-b")
    expected = {first: 5, second: 3}
    for option in (f"{first},{second}", json.dumps([first, second]), f"file://{tmp_path}/shop-*"):
        frame = load(spark, option)
        assert frame.columns[:2] == ["stream", "id"]
        assert {row["stream"]: row["count"] for row in frame.groupBy("stream").count().collect()} == expected
    assert load(spark, f"file://{tmp_path}/shop-a*").columns[0] == "stream"


@pytest.mark.skipif(not hasattr(datasource, "Filter"), reason="Spark 4.0 pushes no conditions to Python sources")
def test_conditions_narrow_what_is_read_where_spark_allows_it(spark, make_stream: MakeStream):
    url = make_stream(*orders(300), frame_rows=20)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, url, pushdown=True, pieces=50)
        assert ids(frame.where("id >= 100 AND id < 110")) == list(range(100, 110))
        assert frame.where("id >= 100 AND id < 110").rdd.getNumPartitions() == 1
        assert ids(frame.where("type = 'order.paid' AND id <= 9")) == [3, 6, 9]
        assert ids(frame.where(f"time >= '{(EPOCH + timedelta(seconds=299)).isoformat()}'")) == [299, 300]
        assert ids(frame.where("type LIKE 'user.%' AND id < 9")) == [2, 5, 8]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert ids(load(spark, url).where("id = 7")) == [7]


def test_errors_reach_the_user_with_their_words(spark, tmp_path):
    with pytest.raises(Exception, match="no option 'form'"):
        load(spark, f"file://{tmp_path}/none", form=1)
    with pytest.raises(Exception, match="no stream matches"):
        load(spark, f"file://{tmp_path}/no*").collect()


def test_trimmed_start_and_damage_are_clear_errors(spark, tmp_path):
    url = f"file://{tmp_path}/stream?segment_bytes=20000"
    write_stream(url, orders(2000), frame_rows=50)
    with open_stream(url, "write") as stream:
        stream.trim(1000)
        kept = stream.info().trimmed_through
    assert kept > 0
    assert ids(load(spark, url, from_="earliest")) == list(range(kept + 1, 2001))
    with pytest.raises(Exception, match="trimmed through ID"):
        load(spark, url, from_=1).collect()
    victim = sorted(Path(f"{tmp_path}/stream").glob("*.log"))[1]
    damaged = bytearray(victim.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    victim.write_bytes(damaged)
    with pytest.raises(Exception, match="is damaged at offset"):
        load(spark, url).collect()


# Streaming queries.


def stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("outbox").option("stream", url)
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), str(value))
    return reader.load()


def test_query_goes_on_from_its_checkpoint_in_batches_of_the_limit(spark, make_stream: MakeStream, tmp_path):
    url = make_stream(*orders(95), frame_rows=7)
    frame = stream(spark, url, maxRowsPerBatch=40, columns="id")
    batches = run_available(frame, tmp_path / "checkpoint", "limited")
    assert [len(batch) for _, batch in batches] == ([40, 40, 15] if HAS_LIMITS else [95])
    make_stream(*orders(20), {"id": 5_000_000}, frame_rows=7)
    batches = run_available(frame, tmp_path / "checkpoint", "limited again")
    assert stream_ids(batches) == [*range(96, 116), 5_000_000]
    assert run_available(frame, tmp_path / "checkpoint", "nothing new") == []
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))[-1].read_text()
    with open_stream(url) as opened:
        assert json.loads(offsets.splitlines()[-1]) == {opened.stream_id: 5_000_000}


def test_available_now_ends_at_the_tail_as_it_was(spark, make_stream: MakeStream, tmp_path):
    url = make_stream(*orders(30))
    seen: list[int] = []

    def take(rows: DataFrame, _: int) -> None:
        seen.extend(ids(rows))
        make_stream(*orders(10))

    query = (
        stream(spark, url, maxRowsPerBatch=10, columns="id")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    assert seen == list(range(1, 31))


def test_query_starts_where_it_is_told_and_streams_may_join_a_glob_later(spark, make_stream: MakeStream, tmp_path):
    make_stream(*orders(10), name="shop-a")
    frame = stream(spark, f"file://{tmp_path}/shop-*", from_=8, columns="id", to=12)
    assert stream_ids(run_available(frame, tmp_path / "checkpoint", "one")) == [8, 9, 10]
    make_stream(*orders(2), name="shop-b")
    make_stream(*orders(5), name="shop-a")
    assert stream_ids(run_available(frame, tmp_path / "checkpoint", "two")) == [11, 12, 1, 2]
    with pytest.raises(Exception, match="is a time"):
        run_available(stream(spark, f"file://{tmp_path}/shop-*", to="2026-01-01"), tmp_path / "other", "three")


def test_checkpoint_of_another_stream_is_refused(spark, make_stream: MakeStream, tmp_path):
    url = make_stream(*orders(10))
    frame = stream(spark, url, columns="id")
    run_available(frame, tmp_path / "checkpoint", "before")
    shutil.move(tmp_path / "stream", tmp_path / "moved")
    assert (
        run_available(stream(spark, f"file://{tmp_path}/moved", columns="id"), tmp_path / "checkpoint", "moved") == []
    )
    make_stream(*orders(20))
    with pytest.raises(Exception, match="none of file"):
        run_available(frame, tmp_path / "checkpoint", "another")


def test_stream_that_was_trimmed_or_went_back_is_refused(spark, tmp_path):
    url = f"file://{tmp_path}/stream?segment_bytes=20000"
    write_stream(url, orders(100), frame_rows=50)
    frame = stream(spark, url, columns="id")
    run_available(frame, tmp_path / "checkpoint", "before")
    shutil.copytree(tmp_path / "stream", tmp_path / "old")
    write_stream(url, orders(2000), frame_rows=50)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old checkpoint")
    with open_stream(url, "write") as opened:
        opened.trim(1000)
    with pytest.raises(Exception, match=r"stands at ID 100 .* were trimmed"):
        run_available(frame, tmp_path / "old checkpoint", "trimmed")
    shutil.rmtree(tmp_path / "stream")
    shutil.copytree(tmp_path / "old", tmp_path / "stream")
    write_stream(url, orders(20), frame_rows=50)
    run_available(frame, tmp_path / "checkpoint", "further")
    shutil.rmtree(tmp_path / "stream")
    shutil.copytree(tmp_path / "old", tmp_path / "stream")
    with pytest.raises(Exception, match="went back in time"):
        run_available(frame, tmp_path / "checkpoint", "back")
