"""`append`: every event is a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_sink.mode import DELETE, EVENT_TIME

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_sink.mode import Change
    from spark_sink.spec import TableSpec
    from spark_sink.table import State, Table


class Append:
    def columns(self, rows: StructType) -> StructType:
        return rows

    def apply(self, table: Table, state: State, spec: TableSpec, change: Change) -> None:  # noqa: ARG002 - the seam's
        table.append(change.rows.drop(DELETE, EVENT_TIME), state, change.note)

    def repair(self, table: Table, state: State, spec: TableSpec, change: Change, through: int) -> None:
        """The range's rows in the place of what the table has there, in one commit."""
        rows = change.rows.drop(DELETE, EVENT_TIME)
        column = f"`{spec.id_column}`"
        table.replace_where(rows, state, change.note, f"{column} > {change.after} AND {column} <= {through}")
