"""What people write by hand in Spark instead of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def parquet_to_delta(spark: SparkSession, parquet: str, table: str) -> None:
    """The same rows from parquet files into a new Delta table: no exactly-once, no stream."""
    spark.read.parquet(parquet).write.format("delta").mode("append").save(table)


def bare_append(spark: SparkSession, rows: pa.Table, table: str) -> None:
    """A few rows that are in memory already, appended without any transaction option."""
    spark.createDataFrame(rows).write.format("delta").mode("append").save(table)


def append_by_options(spark: SparkSession, rows: pa.Table, table: str, version: int) -> None:
    """The same with Delta's options for idempotent writes."""
    frame = spark.createDataFrame(rows)
    frame.write.format("delta").mode("append").option("txnAppId", "bench").option("txnVersion", version).save(table)


def from_json_job(spark: SparkSession, parquet: str, schema: str, table: str, version: int) -> None:
    """A foreachBatch body as tutorials have it: from_json, then an append with the idempotent-write options."""
    from pyspark.sql import functions

    events: DataFrame = spark.read.parquet(parquet)
    typed = events.select("id", "type", "subject", "time", functions.from_json("data", schema).alias("fields"))
    rows = typed.select(functions.col("id").alias("_event_id"), "type", "subject", "time", "fields.*")
    rows.write.format("delta").mode("append").option("txnAppId", "bench").option("txnVersion", version).save(table)
