"""A Delta table through Delta's public interface alone, for places where delta.py cannot go.

The bookmark is read from our notes in the table's history. An append becomes a MERGE that
inserts only the IDs which are not there yet: idempotent by itself, and slower.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_sink.delta import Commit
from spark_sink.note import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from spark_sink.names import TableName

_PAGE = 50


class PublicLog:
    """The history of one table, as SQL shows it."""

    def __init__(self, spark: SparkSession, name: TableName) -> None:
        self._spark = spark
        self._name = name

    def snapshot(self) -> PublicSnapshot:
        newest = next(self.commits(None), None)
        return PublicSnapshot(self._spark, self._name, self, -1 if newest is None else newest.version)

    def commits(self, newest: int | None, oldest: int = 0) -> Iterator[Commit]:
        limit = _PAGE
        seen: int | None = None
        while True:
            rows = self._spark.sql(f"DESCRIBE HISTORY {self._name.sql} LIMIT {limit}").collect()
            for row in rows:
                version = int(row["version"])
                if (newest is None or version <= newest) and version >= oldest and (seen is None or version < seen):
                    seen = version
                    yield Commit(
                        version, str(row["operation"]), dict(row["operationParameters"] or {}), row["userMetadata"]
                    )
            if len(rows) < limit:
                return
            limit *= 10


class PublicSnapshot:
    """The table as it is now; what it says may be of a later version than `version`."""

    java: Any = None

    def __init__(self, spark: SparkSession, name: TableName, log: PublicLog, version: int) -> None:
        self._spark = spark
        self._name = name
        self._log = log
        self.version = version

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @cached_property
    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {self._name.sql}").collect()[0]

    def marker(self, app_id: str) -> int | None:
        for commit in self._log.commits(self.version):
            note = Note.decode(commit.metadata)
            if note is not None and note.app_id == app_id and not note.is_aside:
                return note.bookmark
        return None

    @property
    def table_id(self) -> str:
        return str(self._detail["id"])

    @property
    def schema_json(self) -> str:
        return json.dumps(self._spark.table(self._name.sql).schema.jsonValue())

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._detail["partitionColumns"] or ())

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._detail["properties"] or {})

    @property
    def files(self) -> int:
        return int(self._detail["numFiles"] or 0)

    @property
    def size_bytes(self) -> int:
        return int(self._detail["sizeInBytes"] or 0)
