"""The seam between the materializer and the modes of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spark_sink.note import Note
    from spark_sink.spec import TableSpec
    from spark_sink.table import State, Table

# Columns that a batch has beside those of the table: they are for the mode alone.
DELETE, EVENT_TIME = "_delete", "_event_time"


@dataclass(frozen=True, slots=True)
class Change:
    """Every event of the table's with after < id, through the new bookmark, as rows of the table.

    `rows` has the table's columns (validity columns excepted), `_delete` and `_event_time`.
    For the keys that occur in it, it holds every event above `after`: what the table has of
    those keys above `after` is put right, too. That makes a batch and a repair the same thing.
    """

    rows: DataFrame
    after: int
    note: Note


class TableMode(Protocol):
    def columns(self, rows: StructType) -> StructType:
        """The table's columns, from those of the rows."""

    def apply(self, table: Table, state: State, spec: TableSpec, change: Change) -> None:
        """One commit, or none when somebody else was first (`TableConflict`)."""

    def repair(self, table: Table, state: State, spec: TableSpec, change: Change, through: int) -> None:
        """Put after < id <= through right, where the table has been before; the bookmark stays."""
