"""Spark for tests: tiny tables, many commits, short lives."""

from __future__ import annotations

MASTER = "local[2]"

# Also for sinks that a test starts as processes of their own: see `flags`.
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Tables of a few rows: compiling each query, planning it again by what its first stage found, and choosing files
    # by their statistics take a third of the time. The demo, the examples and the cluster run with Spark's own settings.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.stats.skipping": "false",
    # Without the optimizing compiler a session starts, and writes its first table, in half the time. But then Java keeps
    # only 48 MB of compiled code, which Spark fills in minutes: from then on it throws code away and compiles it again.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m -XX:+UseSerialGC"
    ),
}


def flags() -> list[str]:
    """The same for a command line: --master and --conf."""
    return ["--master", MASTER, *(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))]
