"""Tables of every mode on one stream, held against what the plain model makes of the same events.

They are read back by delta-rs, which shares no code with what wrote them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.spec import TableSpec
from spark_sink.table_sink import SinkOptions
from stream_store import open_stream
from tests.model.sink_model import Event, materialize
from tests.streams import write_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

SCHEMA = "order string, total double"
TABLES = ("append", "typed", "upsert", "scd2")
_DESCRIBED: dict[str, dict[str, Any]] = {
    "append": {},
    "typed": {"schema": SCHEMA},
    "upsert": {"schema": SCHEMA, "mode": "upsert"},
    "scd2": {"schema": SCHEMA, "mode": "scd2"},
}


def order(key: str | None, total: object, **more: object) -> dict[str, object]:
    return {"subject": key, "data": {"order": key, "total": total}, **more}


def tombstone(key: str | None, **more: object) -> dict[str, object]:
    return {"subject": key, **more}


def spec(path: Path | str, **more: Any) -> TableSpec:
    return TableSpec(TableName.parse(str(path)), **more)


def read(path: Path | str, *columns: str, order_by: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of a table, by delta-rs, in the order of their event ID."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    order_by = order_by or ("_event_id" if "_event_id" in table.column_names else "id")
    table = table.sort_by(order_by)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def run(spark: SparkSession, url: str, *specs: TableSpec, through: int | None = None, **options: Any) -> list[int]:
    """A sink that begins, goes to the tail and ends; the bookmarks then."""
    with Materializer(spark, url, specs, SinkOptions(**options)) as materializer:
        materializer.run_once(through)
        return [sink.bookmark() for sink in materializer.sinks]


class SinkCase:
    """One stream, and tables of the modes that are asked for."""

    def __init__(self, spark: SparkSession, folder: Path, *tables: str) -> None:
        self.spark = spark
        self.folder = folder
        self.url = f"file://{folder / 'stream'}"
        self.tables = tables or TABLES

    def emit(self, *events: dict[str, Any], **options: Any) -> int:
        """Extend the stream; its tail."""
        return write_stream(self.url, events, **options)

    def path(self, table: str) -> Path:
        return self.folder / table

    def specs(self, *tables: str) -> list[TableSpec]:
        return [spec(self.path(table), **_DESCRIBED[table]) for table in tables or self.tables]

    def open(self, *tables: str, **options: Any) -> Materializer:
        return Materializer(self.spark, self.url, self.specs(*tables), SinkOptions(**options))

    def run(self, *tables: str, through: int | None = None, **options: Any) -> None:
        run(self.spark, self.url, *self.specs(*tables), through=through, **options)

    def events(self, through: int | None = None) -> list[Event]:
        with open_stream(self.url) as stream:
            return [event for batch in stream.read(0, through) for event in batch.rows.to_pylist()]

    def sql(self, text: str, table: str) -> Any:
        """Run somebody else's statement; `{table}` is the table."""
        return self.spark.sql(text.format(table=f"delta.`{self.path(table)}`")).collect()

    def assert_exact(self, *tables: str, through: int | None = None) -> None:
        """Each table holds what the model says, each row once, and the dead letters hold the rest."""
        expected = materialize(self.events(through))
        for table in tables or self.tables:
            found = DeltaTable(str(self.path(table))).to_pyarrow_table().to_pylist()
            assert_rows(table, found, getattr(expected, table))
            if table in expected.dead:
                assert self.dead(table) == sorted(expected.dead[table]), f"the dead letters of {table}"

    def dead(self, table: str) -> list[int]:
        path = self.path(f"{table}__dead_letters")
        return [event_id for (event_id,) in read(path, "id")] if path.exists() else []

    def versions(self, table: str) -> int:
        return int(DeltaTable(str(self.path(table))).version())


def assert_rows(table: str, found: Iterable[Event], expected: dict[int, Event]) -> None:
    rows = list(found)
    id_column = "id" if table == "append" else "_event_id"
    ids = Counter(row[id_column] for row in rows)
    assert {event_id: count for event_id, count in ids.items() if count > 1} == {}, f"{table}: doubled"
    assert sorted(ids) == sorted(expected), f"{table}: events"
    for row in rows:
        wanted = expected[row[id_column]]
        assert {name: row[name] for name in wanted} == wanted, f"{table}: event {row[id_column]}"
