"""`upsert`: one row per key, as its latest event left it.

The guard by event ID makes the MERGE idempotent: a batch that another sink has applied in
part, or whole, changes nothing that is newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from spark_sink.keys import quoted, same_key
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from spark_sink.mode import Change
    from spark_sink.spec import TableSpec
    from spark_sink.table import State, Table


class Upsert:
    def columns(self, rows: StructType) -> StructType:
        return rows

    def apply(self, table: Table, state: State, spec: TableSpec, change: Change) -> None:
        self._merge(table, state, spec, change, f"s.{EVENT_ID} > t.{EVENT_ID}")

    def repair(self, table: Table, state: State, spec: TableSpec, change: Change, through: int) -> None:  # noqa: ARG002
        """The same, but what is there under the same event is written anew.

        A row that the table has of a later event than the stream has for its key stays: there
        is none, unless somebody else wrote it, and then `verify` names it.
        """
        self._merge(table, state, spec, change, f"s.{EVENT_ID} >= t.{EVENT_ID}")

    def _merge(self, table: Table, state: State, spec: TableSpec, change: Change, newer: str) -> None:
        rows = change.rows.drop(EVENT_TIME)
        latest = (
            rows.groupBy(*(quoted(name) for name in spec.key))
            .agg(F.max_by(F.struct("*"), F.col(EVENT_ID)).alias("_outbox_latest"))
            .select("_outbox_latest.*")
        )
        values: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in rows.columns if name != DELETE}
        with table.merging(state, change.note) as target:
            (
                target.alias("t")
                .merge(latest.alias("s"), same_key("t", "s", spec.key))
                .whenMatchedDelete(condition=f"s.{DELETE} AND {newer}")
                .whenMatchedUpdate(condition=newer, set=values)
                .whenNotMatchedInsert(condition=f"NOT s.{DELETE}", values=values)
                .execute()
            )
