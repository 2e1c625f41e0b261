"""Revenue per minute with a streaming query: event time, late events, windows.

    python examples/spark_windows.py file:///var/lib/outbox/shop

Reads the events `order.paid` of a stream, with their data as columns, and sums `total` by
minutes of the event's own time. Events may be up to two minutes late: a minute is printed when
the watermark has passed its end, and never changes again.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom


def revenue(spark: SparkSession, stream: str) -> DataFrame:
    """Minutes with their number of payments and their sum."""
    paid = (
        spark.readStream.format("outbox")
        .option("stream", stream)
        .option("types", "order.paid")
        .option("schema", "total decimal(10,2)")
        .load()
    )
    minutes = (
        paid.where("_error IS NULL")
        .withWatermark("time", "2 minutes")
        .groupBy(F.window("time", "1 minute"))
        .agg(F.count("*").alias("payments"), F.sum("total").alias("revenue"))
    )
    return minutes.select(F.col("window.start").alias("minute"), "payments", "revenue")


def main(stream: str) -> None:
    spark = SparkSession.builder.appName("revenue").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    # Everything that is there now; `processingTime="10 seconds"` instead goes on for ever. A
    # checkpointLocation makes a query continue where it was stopped.
    query = (
        revenue(spark, stream)
        .writeStream.format("memory")
        .queryName("revenue")
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for row in spark.table("revenue").orderBy("minute").collect():
        print(f"{row['minute']:%H:%M}  {row['payments']:3} payments  {row['revenue']:>10}")


if __name__ == "__main__":
    main(sys.argv[1])
