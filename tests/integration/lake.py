"""A stream and Delta tables of it, made once for many tests, and ways to spoil copies of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.spec import TableSpec
from tests.streams import write_stream

if TYPE_CHECKING:
    import pyarrow as pa

# Each event in a segment of its own, so that a stream can be trimmed anywhere.
OPTIONS = "?segment_bytes=1"


def order(key: str | None, total: object, **more: object) -> dict[str, object]:
    return {"subject": key, "data": {"order": key, "total": total}, **more}


# IDs 1 to 11; 8 and 9 are dead.
EVENTS = [
    order("a", 1),
    order("b", 2),
    order("a", 3),
    {"subject": "b"},
    order("c", "a lot"),
    order("d", 6, type="refund.made"),
    order("a", 7),
    order("e", 8, id=10),
    order("d", 9),
]
MODES = ("append", "upsert", "scd2")


def spec_of(path: Path, **more: Any) -> TableSpec:
    return TableSpec(TableName.parse(str(path)), **more)


@dataclass(frozen=True)
class Lake:
    """A folder with `stream` and a table for each mode, named by it."""

    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder / 'stream'}"

    def table(self, mode: str) -> TableName:
        return TableName.parse(str(self.folder / mode))

    def copy(self, folder: Path) -> Lake:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Lake(folder)


def make_lake(spark: Any, folder: Path) -> Lake:
    """Tables that keep `data` as text: no event is unfit for them."""
    lake = Lake(folder)
    write_stream(lake.url + OPTIONS, EVENTS, frame_rows=1)
    with Materializer(spark, lake.url, [spec_of(folder / mode, mode=mode) for mode in MODES]) as materializer:
        materializer.run_once()
    return lake


class Vandal:
    """Somebody who writes to a table and is not the sink, by another implementation of Delta."""

    def __init__(self, table: TableName) -> None:
        self._path = table.text
        self._delta = DeltaTable(self._path)

    def rows(self, column: str, value: int) -> pa.Table:
        found = self._delta.to_pyarrow_table()
        return found.filter(pc.equal(found[column], value))

    def remove(self, condition: str | None = None) -> None:
        self._delta.delete(condition)

    def change(self, condition: str, **values: str) -> None:
        self._delta.update(predicate=condition, updates=values)

    def add(self, rows: pa.Table, **values: Any) -> None:
        """Add rows, some columns of which are to have other values."""
        for name, value in values.items():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), [[value] * rows.num_rows])
        write_deltalake(self._path, rows, mode="append")
        self._delta.update_incremental()

    def restore(self, version: int) -> None:
        self._delta.restore(version)
