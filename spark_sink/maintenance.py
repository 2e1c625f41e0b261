"""Upkeep between batches: OPTIMIZE, and VACUUM when asked for, outside of the commit path.

In the sink's own process and under the table's lock: beside a MERGE they conflict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import UsageError
from spark_sink.conflicts import retrying
from spark_sink.worker_errors import in_short

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark_sink.table import Table
    from spark_sink.table_sink import TableSink

log: Any = structlog.get_logger()

# Newer versions of Delta take RETAIN for a table's property unless they are told not to.
_HEED_RETAIN = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_RETENTION = "delta.deletedFileRetentionDuration"
RETENTION_SECONDS = 7 * 24 * 3600.0
# How far back to look for the last OPTIMIZE; one that is older is due by any measure.
HISTORY_COMMITS = 1000


@dataclass(frozen=True, slots=True)
class Files:
    """What a table takes up."""

    files: int
    size_bytes: int
    version: int


def files_of(table: Table) -> Files:
    snapshot = table.peek().snapshot
    return Files(snapshot.files, snapshot.size_bytes, snapshot.version)


def optimize(table: Table) -> tuple[Files, Files]:
    """Join small files; what there was before and after."""
    found: tuple[Files, Files] = retrying()(_optimize, table)
    return found


def _optimize(table: Table) -> tuple[Files, Files]:
    # Where there is no lock to be had, a batch may change the files that are being joined.
    with table.locked(), table.conflicting():
        before = files_of(table)
        table.spark.sql(f"OPTIMIZE {table.name.sql}").collect()
        after = files_of(table)
        table.make_durable(table.peek())
    return before, after


def vacuum(table: Table, unused_seconds: float) -> None:
    """Remove files that no version within this time needs."""
    with table.locked(), table.session_settings(_HEED_RETAIN), table.conflicting():
        try:
            table.spark.sql(f"VACUUM {table.name.sql} RETAIN {unused_seconds / 3600:g} HOURS").collect()
        except Exception as error:
            if "retentionDurationCheck" not in str(error):
                raise
            raise UsageError(
                f"{table.name}: Delta refuses to remove files that were needed within its retention time (7 days, or the "
                "table's delta.deletedFileRetentionDuration), because a reader may be at them: give a longer --unused-for, or, "
                f"when nobody reads it, --conf {_RETENTION_CHECK}=false"
            ) from error


def last_optimized(table: Table) -> float:
    """When the table was last optimized, in seconds of the clock; when it was made, if it never was."""
    rows = table.spark.sql(f"DESCRIBE HISTORY {table.name.sql} LIMIT {HISTORY_COMMITS}").collect()
    found = [row["timestamp"] for row in rows if row["operation"] == "OPTIMIZE"]
    return float((found or [row["timestamp"] for row in rows[-1:]])[0].timestamp())


def require_retention(table: Table, made_with: Mapping[str, str], unused_seconds: float) -> None:
    """Refuse at once what Delta would refuse when the first VACUUM is due."""
    if table.spark.conf.get(_RETENTION_CHECK, "true") == "false":
        return
    properties = table.peek(need_bookmark=False).properties if table.exists() else made_with
    kept_seconds = RETENTION_SECONDS
    if _RETENTION in properties:
        moment = "TIMESTAMP'2001-01-01 00:00:00'"
        text = properties[_RETENTION].replace("'", "")
        then = f"unix_seconds({moment} + CAST('{text}' AS INTERVAL)) - unix_seconds({moment})"
        kept_seconds = float(table.spark.sql(f"SELECT {then}").collect()[0][0])
    if unused_seconds < kept_seconds:
        raise UsageError(
            f"{table.name}: to VACUUM what has been unused for {unused_seconds / 3600:g} hours would take files from readers, "
            f"and Delta refuses it below {kept_seconds / 3600:g} hours: give a longer time, or, when nobody reads the table, "
            f"--conf {_RETENTION_CHECK}=false"
        )


class Maintenance:
    """Runs what is due for each table, by the table's own history: also for sinks that never run for long."""

    def __init__(self, sinks: Sequence[TableSink], every_seconds: float | None, vacuum_seconds: float | None) -> None:
        self._sinks = sinks
        self._every_seconds = every_seconds
        self._vacuum_seconds = vacuum_seconds
        # By the clock, as the history has it.
        self._due: dict[TableSink, float] = {}
        if vacuum_seconds is not None:
            for sink in sinks:
                require_retention(sink.table, sink.spec.properties, vacuum_seconds)

    def run_due(self, failed: Collection[TableSink] = ()) -> None:
        """Optimize the tables for which it is time, but for those that cannot go on."""
        if self._every_seconds is None:
            return
        for sink in self._sinks:
            if sink in failed or time.time() < self._due.get(sink, 0.0):
                continue
            try:
                self._run(sink, self._every_seconds)
            except Exception as error:
                # The tables themselves are all right, and so are the others.
                self._due[sink] = time.time() + self._every_seconds
                log.error("a table was not optimized", table=str(sink.spec.table), error=in_short(error))

    def _run(self, sink: TableSink, every_seconds: float) -> None:
        if not sink.table.exists():
            return
        if sink not in self._due:
            self._due[sink] = last_optimized(sink.table) + every_seconds
        if time.time() < self._due[sink]:
            return
        before, after = optimize(sink.table)
        self._due[sink] = time.time() + every_seconds
        log.info("optimized", table=str(sink.spec.table), files_before=before.files, files_after=after.files)
        if self._vacuum_seconds is not None:
            vacuum(sink.table, self._vacuum_seconds)
