"""Two joins in one streaming query: a stream with itself, and with a table.

    python examples/spark_join.py file:///var/lib/outbox/shop

Each `order.placed` is joined with its `order.paid` (same subject, at most an hour later), and
with a table of customers. The watermarks let Spark forget orders that can no longer be paid in
time.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom


def events(spark: SparkSession, stream: str, kind: str, schema: str) -> DataFrame:
    """The events of one type, their data as columns."""
    return (
        spark.readStream.format("outbox")
        .option("stream", stream)
        .option("types", kind)
        .option("schema", schema)
        .load()
        .where("_error IS NULL")
    )


def paid_orders(spark: SparkSession, stream: str, customers: DataFrame) -> DataFrame:
    placed = (
        events(spark, stream, "order.placed", "customer string, total decimal(10,2)")
        .select("subject", "customer", "total", F.col("time").alias("placed"))
        .withWatermark("placed", "10 minutes")
        .alias("o")
    )
    paid = (
        events(spark, stream, "order.paid", "method string")
        .select("subject", "method", F.col("time").alias("paid"))
        .withWatermark("paid", "10 minutes")
        .alias("p")
    )
    in_time = F.expr("o.subject = p.subject AND paid BETWEEN placed AND placed + INTERVAL 1 HOUR")
    return placed.join(paid, in_time).join(customers, "customer").select("o.subject", "name", "total", "method")


def main(stream: str) -> None:
    spark = SparkSession.builder.appName("paid orders").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    # In earnest a Delta table: spark.read.table("main.shop.customers"). Each batch sees it as it is then.
    customers = spark.createDataFrame([("c-1", "Ada"), ("c-2", "Grace")], "customer string, name string")
    query = (
        paid_orders(spark, stream, customers)
        .writeStream.format("memory")
        .queryName("paid_orders")
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for row in spark.table("paid_orders").orderBy("subject").collect():
        print(f"{row['subject']}: {row['name']} paid {row['total']} by {row['method']}")


if __name__ == "__main__":
    main(sys.argv[1])
