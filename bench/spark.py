"""One Spark session for the scenes of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.session import open_session
from spark_sink.spec import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The fields of the events that bench.fill.json_of makes.
SCHEMA = "order bigint, customer string, total string, currency string, token string, paid boolean"


def bench_session() -> SparkSession:
    return open_session(master="local[*]", conf={"spark.driver.memory": "4g"}, app="outbox bench")


def spec_of(table: str, **more: Any) -> TableSpec:
    return TableSpec(TableName.parse(table), **more)


def sink_once(spark: SparkSession, url: str, *tables: TableSpec) -> None:
    with Materializer(spark, url, tables) as materializer:
        materializer.run_once()
