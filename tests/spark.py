"""Spark for tests: tiny tables, many commits, short lives."""

from __future__ import annotations

MASTER = "local[2]"

# Also for sinks that a test starts as processes of their own: see `flags`.
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Without the optimizing compiler a session starts, and writes its first table, in half the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def flags() -> list[str]:
    """The same for a command line: --master and --conf."""
    return ["--master", MASTER, *(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))]
