"""Upkeep between batches: OPTIMIZE, and VACUUM when asked for, outside of the commit path.

In the sink's own process and under the table's lock: beside a MERGE they conflict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_sink.table import Table
    from spark_sink.table_sink import TableSink

log: Any = structlog.get_logger()

# Newer versions of Delta take RETAIN for a table's property unless they are told not to.
_HEED_RETAIN = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


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
    with table.locked():
        before = files_of(table)
        table.spark.sql(f"OPTIMIZE {table.name.sql}").collect()
        after = files_of(table)
        table.make_durable(table.peek())
    return before, after


def vacuum(table: Table, unused_seconds: float) -> None:
    """Remove files that no version within this time needs."""
    with table.locked(), table.session_settings(_HEED_RETAIN):
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


class Maintenance:
    """Runs what is due for each table."""

    def __init__(self, sinks: Sequence[TableSink], every_seconds: float | None, vacuum_seconds: float | None) -> None:
        self._sinks = sinks
        self._every_seconds = every_seconds
        self._vacuum_seconds = vacuum_seconds
        self._due = time.monotonic() + (every_seconds or 0)

    def run_due(self) -> None:
        if self._every_seconds is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every_seconds
        for sink in self._sinks:
            if not sink.table.exists():
                continue
            before, after = optimize(sink.table)
            log.info("optimized", table=str(sink.spec.table), files_before=before.files, files_after=after.files)
            if self._vacuum_seconds is not None:
                vacuum(sink.table, self._vacuum_seconds)
