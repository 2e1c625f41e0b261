"""What Spark looks for when a query says `format("outbox")`: a module `pyspark_…` with a `DefaultSource`."""

from spark_sink.source import DefaultSource

__all__ = ["DefaultSource"]
