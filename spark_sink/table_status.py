"""Where a Delta table stands: its bookmark, how far it is behind, what it takes up.

A table of this machine is read by `deltalake`, in milliseconds and without starting Spark;
one with a catalog's name, or on an object store, by Spark, which has what it takes to find it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from outbox.errors import OutboxError, Trimmed
from spark_sink.delta import Commit
from spark_sink.guard import judge, operation_of
from spark_sink.names import TableName
from spark_sink.note import app_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from outbox.batch import EventBatch
    from stream_store import Stream

# Our last commit is nearly always the last of all; upkeep may stand above it.
HISTORY_COMMITS = 100


@dataclass
class TableStatus:
    """What `outbox status` shows of a table; the fields are a contract of `--json`."""

    table: str
    mode: str | None = None
    bookmark: int | None = None
    # From the bookmark to the stream's tail: IDs, and seconds by the events' own times.
    behind: int | None = None
    behind_seconds: float | None = None
    # By the clock: how long ago the first event happened that the table has not passed yet.
    oldest_waiting_seconds: float | None = None
    # By the statistics of the files; None where one has none.
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    version: int | None = None
    last_commit_at: datetime | None = None
    # Those that nobody has redriven or dropped.
    dead_letters: int | None = None
    problems: list[str] = field(default_factory=list)


class Sight(Protocol):
    """One look at a table, by either of two readers."""

    properties: Mapping[str, str]
    table_id: str
    version: int

    def marker(self, app_id: str) -> int | None: ...

    def history(self) -> Iterator[tuple[Commit, datetime]]:
        """The last commits, newest first."""

    def size(self) -> tuple[int | None, int, int]:
        """Rows, files, bytes."""

    def count_letters(self, letters: TableName, of: str) -> int:
        """Dead letters of a table that are still waiting."""


def table_status(name: TableName, stream: Stream | None, open_spark: Callable[[], SparkSession]) -> TableStatus:
    """Look at a table once, without disturbing anybody. `open_spark` is called when nothing less will do."""
    result = TableStatus(str(name))
    try:
        if name.folder is not None and find_spec("deltalake") is not None:
            sight: Sight | None = look_by_rust(name)
        else:
            sight = look_by_spark(name, open_spark())
        if sight is None:
            result.problems.append(f"there is no Delta table {name}: `outbox sink --table {name}` makes it")
        else:
            _take(result, name, sight)
        if stream is not None and result.bookmark is not None:
            _measure(result, stream, result.bookmark)
    except OutboxError as error:
        result.problems.append(str(error))
    except Exception as error:
        # Of two readers and several storages: whatever it is, the other tables are looked at.
        result.problems.append(f"{name} cannot be read: {str(error).strip().splitlines()[0]}")
    return result


def _take(result: TableStatus, name: TableName, sight: Sight) -> None:
    result.version = sight.version
    result.rows, result.files, result.size_bytes = sight.size()
    owner = sight.properties.get("outbox.outbox_id")
    if owner is None:
        result.problems.append(f"{name} is a Delta table that this product did not make")
        return
    result.mode = sight.properties.get("outbox.mode")
    app_id = app_id_of(owner, sight.table_id, sight.properties)
    commits = list(sight.history())
    result.last_commit_at = commits[0][1] if commits else None
    verdict = judge((commit for commit, _ in commits), app_id)
    result.bookmark = sight.marker(app_id)
    if result.bookmark is None and verdict.note is not None:
        result.bookmark = verdict.note.bookmark
    if result.bookmark is None and result.rows:
        result.problems.append(f"{name} holds rows and no bookmark: it is a CLONE, or it was replaced")
    result.bookmark = result.bookmark or 0
    stops = [verdict.rewound] if verdict.rewound else list(verdict.foreign)
    if stops:
        first = stops[-1]
        result.problems.append(
            f"version {first.version} is a {operation_of(first)} that is not ours: the sink stops at it, "
            f"`outbox verify --table {name}` says what it did"
        )
    kept = json.loads(sight.properties.get("outbox.spec", "{}")).get("dead_letters")
    letters = TableName.parse(kept) if kept else name.beside("dead_letters")
    result.dead_letters = sight.count_letters(letters, sight.properties.get("outbox.name", name.identity))


def _measure(result: TableStatus, stream: Stream, bookmark: int) -> None:
    """How far the table is behind the stream."""
    facts = stream.info()
    result.behind = facts.tail - bookmark
    if result.behind < 0:
        result.problems.append(
            f"the table holds events through {bookmark}, the stream ends at {facts.tail}: it went back in time"
        )
        return
    try:
        first = next(stream.read(bookmark, facts.tail), None)
        if first is None:
            result.behind_seconds = 0.0
            return
        cuts = stream.cuts(bookmark, facts.tail)
        *_, last = stream.read(cuts[-2].id if len(cuts) > 1 else bookmark, facts.tail)
    except Trimmed as error:
        result.problems.append(f"the stream was trimmed past what the table holds: {error}")
        return
    waiting = _time(first, 0)
    # What the table has last; of a stream that was trimmed up to there, the next best.
    had = stream.read(first.prev_id - 1, first.prev_id) if first.prev_id > facts.trimmed_through else iter(())
    reached = next((_time(batch, -1) for batch in had), waiting)
    result.behind_seconds = max(0.0, (_time(last, -1) - reached).total_seconds())
    result.oldest_waiting_seconds = max(0.0, (datetime.now(UTC) - waiting).total_seconds())


def _time(batch: EventBatch, position: int) -> datetime:
    times = batch.rows.column("time")
    found: datetime = times[len(times) - 1 if position < 0 else position].as_py()
    return found


def look_by_rust(name: TableName) -> Sight | None:
    from deltalake import DeltaTable

    place = str(name.folder)
    return _RustSight(DeltaTable(place)) if DeltaTable.is_deltatable(place) else None


class _RustSight:
    """A table as the Rust implementation of Delta sees it."""

    def __init__(self, delta: Any) -> None:
        self._delta = delta
        metadata = delta.metadata()
        self.properties: Mapping[str, str] = metadata.configuration
        self.table_id = str(metadata.id)
        self.version = int(delta.version())

    def marker(self, app_id: str) -> int | None:
        found: int | None = self._delta.transaction_version(app_id)
        return found

    def history(self) -> Iterator[tuple[Commit, datetime]]:
        for each in self._delta.history(HISTORY_COMMITS):
            commit = Commit(
                int(each["version"]),
                str(each.get("operation")),
                each.get("operationParameters") or {},
                each.get("userMetadata"),
            )
            yield commit, datetime.fromtimestamp(each.get("timestamp", 0) / 1000, UTC)

    def size(self) -> tuple[int | None, int, int]:
        files = pa.table(self._delta.get_add_actions(flatten=True))
        records = files["num_records"] if "num_records" in files.column_names else pa.nulls(files.num_rows, pa.int64())
        rows = None if records.null_count else pc.sum(records).as_py() or 0
        return rows, files.num_rows, pc.sum(files["size_bytes"]).as_py() or 0

    def count_letters(self, letters: TableName, of: str) -> int:
        from deltalake import DeltaTable

        if letters.folder is None or not DeltaTable.is_deltatable(str(letters.folder)):
            return 0
        rows = DeltaTable(str(letters.folder)).to_pyarrow_dataset()
        waiting = pc.field("table") == of
        if "dropped_at" in rows.schema.names:
            waiting &= pc.field("dropped_at").is_null()
        return int(rows.count_rows(filter=waiting))


def look_by_spark(name: TableName, spark: SparkSession) -> Sight | None:
    from spark_sink.table import Table

    table = Table(spark, name, "", role="look")
    return _SparkSight(table) if table.exists() else None


class _SparkSight:
    """A table as Spark sees it."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._snapshot = table.peek().snapshot
        self.properties: Mapping[str, str] = self._snapshot.properties
        self.table_id = str(self._snapshot.table_id)
        self.version = int(self._snapshot.version)

    def marker(self, app_id: str) -> int | None:
        found: int | None = self._snapshot.marker(app_id)
        return found

    def history(self) -> Iterator[tuple[Commit, datetime]]:
        name = self._table.name.sql
        for row in self._table.spark.sql(f"DESCRIBE HISTORY {name} LIMIT {HISTORY_COMMITS}").collect():
            commit = Commit(
                int(row["version"]), row["operation"], row["operationParameters"] or {}, row["userMetadata"]
            )
            yield commit, row["timestamp"].astimezone(UTC)

    def size(self) -> tuple[int | None, int, int]:
        return self._table.rows().count(), self._snapshot.files, self._snapshot.size_bytes

    def count_letters(self, letters: TableName, of: str) -> int:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        from spark_sink.table import Table

        table = Table(self._table.spark, letters, "", role="look")
        if not table.exists():
            return 0
        rows = table.rows().where(F.col("table") == of)
        return int((rows.where("dropped_at IS NULL") if "dropped_at" in rows.columns else rows).count())
