"""Dead letters: events that a table could not take, with the reason, in a Delta table beside it.

Their commit comes before the main one and is the decision: what is in it is not in the table.
After a crash between the two, the main commit leaves out what the dead letters hold.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from spark_sink.fields import EVENT_COLUMNS
from spark_sink.note import Note
from spark_sink.shape import REASON
from spark_sink.spec import EVENT_ID
from spark_sink.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.spans import Span
    from spark_sink.spec import TableSpec

COLUMNS = (
    StructType()
    .add("id", LongType())
    .add("table", StringType())
    .add("reason", StringType())
    .add("recorded_at", TimestampType())
    .add("type", StringType())
    .add("subject", StringType())
    .add("time", TimestampType())
    .add("data", StringType())
    .add("data_bytes", BinaryType())
    .add("datacontenttype", StringType())
    .add("headers", StringType())
)


class DeadLetters:
    """The dead letters of one table. Their own bookmark is the last batch that had any."""

    def __init__(
        self, spark: SparkSession, spec: TableSpec, outbox_id: str, *, internals: bool | None, lock: bool
    ) -> None:
        self._spec = spec
        self.table = Table(
            spark,
            spec.dead_letter_table,
            outbox_id,
            role=f"dead letters of {spec.table}",
            internals=internals,
            lock=lock,
        )
        self._exists: bool | None = None

    def exists(self) -> bool:
        if not self._exists:
            self._exists = self.table.exists()
        return self._exists

    def held(self, span: Span) -> DataFrame | None:
        """The IDs of a span that are dead letters by an earlier decision; None when there can be none."""
        if not self.exists() or self.table.peek().bookmark <= span.after:
            return None
        found = (
            self.rows().where(F.col("id").between(span.after + 1, span.through)).select(F.col("id").alias("_dead_id"))
        )
        return None if found.isEmpty() else found

    def rows(self) -> DataFrame:
        return self.table.rows().where(F.col("table") == str(self._spec.table))

    def count(self) -> int:
        return self.rows().count() if self.exists() else 0

    def record(self, events: DataFrame, shaped: DataFrame, span: Span) -> None:
        """Put the rows that have a reason among the dead letters, once."""
        id_column = self._spec.id_column
        bad = shaped.where(F.col(REASON).isNotNull()).select(
            F.col(id_column).alias(EVENT_ID), F.col(REASON).alias("reason")
        )
        with self.table.locked():
            if not self.exists():
                self.table.create(COLUMNS, {})
            state = self.table.peek()
            rows = (
                events.select(*EVENT_COLUMNS)
                .join(bad, F.col("id") == F.col(EVENT_ID), "inner")
                .drop(EVENT_ID)
                .withColumn("table", F.lit(str(self._spec.table)))
                .withColumn("recorded_at", F.lit(datetime.now(UTC)))
            )
            if state.bookmark > span.after:
                known = self.rows().select(F.col("id").alias("_known"))
                rows = rows.join(known, F.col("id") == F.col("_known"), "left_anti")
            through = max(state.bookmark, span.through)
            note = Note(state.app_id, through, span.after, span.through, role="dead letters")
            self.table.append(rows.select(*COLUMNS.names), state, note)
            self.table.make_durable(self.table.peek())
