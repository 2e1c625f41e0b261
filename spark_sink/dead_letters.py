"""Dead letters: events that a table could not take, with the reason, in a Delta table beside it.

Their commit comes before the main one and is the decision: what is in it is not in the table.
After a crash between the two, the main commit leaves out what the dead letters hold.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from outbox.errors import TableConflict
from spark_sink.fields import EVENT_COLUMNS
from spark_sink.names import qualified
from spark_sink.note import Note
from spark_sink.shape import REASON
from spark_sink.spec import EVENT_ID
from spark_sink.table import NAME, PROPERTY, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_sink.spans import Span
    from spark_sink.spec import TableSpec

DEAD_ID, _KNOWN_ID = "_outbox_dead_id", "_outbox_known_id"
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
    .add("dropped_at", TimestampType())
)


class DeadLetters:
    """The dead letters of one table. Their own bookmark is the last batch that had any."""

    def __init__(
        self, spark: SparkSession, spec: TableSpec, main: Table, outbox_id: str, *, internals: bool | None, lock: bool
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._main = main
        self._outbox_id = outbox_id
        self._how: dict[str, Any] = {"internals": internals, "lock": lock}
        self._exists: bool | None = None

    @cached_property
    def name(self) -> str:
        """The name under which the letters are: that which the table was made with, however it is called by now."""
        if self._main.exists():
            state = self._main.peek(need_bookmark=False)
            # A CLONE has it from another table, and no bookmark.
            if NAME in state.properties and (state.has_bookmark or not state.snapshot.files):
                return state.properties[NAME]
        return qualified(self._main.spark, self._spec.table)

    @cached_property
    def table(self) -> Table:
        role = f"dead letters of {self.name}"
        mend = (
            f"have the events judged anew with `outbox replay --table {self._spec.table}`: then also those that people have "
            "dropped may be in the table"
        )
        return Table(
            self._spark,
            self._spec.dead_letter_table,
            self._outbox_id,
            role=role,
            row_key=("table",),
            mend=mend,
            **self._how,
        )

    def exists(self) -> bool:
        if not self._exists:
            self._exists = self.table.exists()
        return self._exists

    def reach_beyond(self, after: int) -> bool:
        """Whether there may be any above an ID."""
        return self.exists() and self.table.peek().bookmark > after

    def held(self, span: Span) -> DataFrame | None:
        """The IDs of a span that are dead letters by an earlier decision; None when there can be none."""
        if not self.reach_beyond(span.after):
            return None
        found = self.rows().where(F.col("id").between(span.after + 1, span.through)).select(F.col("id").alias(DEAD_ID))
        return None if found.isEmpty() else found

    def rows(self) -> DataFrame:
        """Every decision that an event is not for the table, also those of people (`dropped_at`)."""
        return self.table.rows().where(self._ours())

    def waiting(self, ids: Sequence[int] = (), reason: str | None = None) -> DataFrame:
        """The letters that nobody has dropped: all, those of these IDs, those whose reason has this in it.

        `*` in a reason stands for anything.
        """
        found = self.rows().where(F.col("dropped_at").isNull())
        if ids:
            found = found.where(F.col("id").isin(list(ids)))
        return found if reason is None else found.where(F.col("reason").rlike(_pattern(reason)))

    def count(self) -> int:
        return self.waiting().count() if self.exists() else 0

    def _ours(self) -> Column:
        return F.col("table") == self.name

    def record(self, events: DataFrame, shaped: DataFrame, span: Span) -> None:
        """Put the rows that have a reason among the dead letters, once."""
        id_column = self._spec.id_column
        bad = shaped.where(F.col(REASON).isNotNull()).select(
            F.col(id_column).alias(EVENT_ID), F.col(REASON).alias("reason")
        )
        if self._spec.transform is not None:
            bad = bad.dropDuplicates([EVENT_ID])  # it may make several rows of an event
        with self.table.locked():
            if not self.exists():
                self.table.create(COLUMNS, {})
            state = self.table.peek()
            rows = (
                events.select(*EVENT_COLUMNS)
                .join(bad, F.col("id") == F.col(EVENT_ID), "inner")
                .drop(EVENT_ID)
                .withColumn("table", F.lit(self.name))
                .withColumn("recorded_at", F.lit(datetime.now(UTC)))
                .withColumn("dropped_at", F.lit(None).cast(TimestampType()))
            )
            if state.bookmark > span.after:
                known = self.rows().select(F.col("id").alias(_KNOWN_ID))
                rows = rows.join(known, F.col("id") == F.col(_KNOWN_ID), "left_anti")
            through = max(state.bookmark, span.through)
            note = Note(state.app_id, through, span.after, span.through, role="dead letters")
            self.table.append(rows.select(*COLUMNS.names), state, note)
            self.table.make_durable(self.table.peek())

    def settle(self, verdicts: DataFrame) -> None:
        """Let go of the letters that have been taken by now, and give the others their new reason.

        `verdicts` has the columns `id` and `reason`, which is NULL for those that were taken. What
        somebody has dropped meanwhile stays as it is: that is a decision.
        """
        with self.table.locked():
            state = self.table.peek()
            note = Note(state.app_id, state.bookmark, 0, state.bookmark, role="redrive")
            with self.table.merging(state, note) as letters:
                (
                    letters.alias("t")
                    .merge(
                        verdicts.alias("s"),
                        f"t.id = s.id AND t.`table` = {_literal(self.name)} AND t.dropped_at IS NULL",
                    )
                    .whenMatchedDelete(condition="s.reason IS NULL")
                    .whenMatchedUpdate(condition="t.reason <> s.reason", set={"reason": "s.reason"})
                    .execute()
                )
            self.table.make_durable(self.table.peek())

    def drop(self, ids: Sequence[int] = (), reason: str | None = None) -> int:
        """Decide that letters will never be in the table: what they hold goes, the decision stays.

        Without it the event would be missing, and every proof and every replay would say so.
        """
        with self.table.locked():
            state = self.table.peek()
            chosen = self.waiting(ids, reason).select("id")
            count = chosen.count()
            if not count:
                return 0
            nothing = F.lit(None)
            note = Note(state.app_id, state.bookmark, 0, state.bookmark, role="redrive", rows=count)
            with self.table.merging(state, note) as letters:
                (
                    letters.alias("t")
                    .merge(chosen.alias("s"), f"t.id = s.id AND t.`table` = {_literal(self.name)}")
                    .whenMatchedUpdate(
                        set={
                            "dropped_at": F.lit(datetime.now(UTC)),
                            "data": nothing.cast(StringType()),
                            "data_bytes": nothing.cast(BinaryType()),
                            "headers": nothing.cast(StringType()),
                        }
                    )
                    .execute()
                )
            self.table.make_durable(self.table.peek())
        return count

    def forget(self) -> None:
        """Somebody has dropped the table."""
        self._exists = None

    def take_drops(self, other: DeadLetters, taken: Span) -> bool:
        """Take over what people have dropped of another table's letters.

        False, and nothing is done, when one of them is within `taken` and no letter here: the
        table has its event.
        """
        # In our own session: the bookmark goes along by settings of the session that writes.
        dropped = self.table.spark.table(other.table.name.sql).where(other._ours() & F.col("dropped_at").isNotNull())
        with self.table.locked():
            if self.exists():
                known = self.rows().select(F.col("id").alias("_known"), F.col("dropped_at").alias("_dropped_at"))
                dropped = dropped.join(known, F.col("id") == F.col("_known"), "left").where("_dropped_at IS NULL")
                if not dropped.where(F.col("_known").isNull() & _within("id", taken.after, taken.through)).isEmpty():
                    return False
            elif not dropped.where(_within("id", taken.after, taken.through)).isEmpty():
                return False
            rows = dropped.withColumn("table", F.lit(self.name)).select(*COLUMNS.names)
            if rows.isEmpty():
                return True
            if not self.exists():
                self.table.create(COLUMNS, {})
            state = self.table.peek()
            through = max(state.bookmark, other.table.peek().bookmark)
            note = Note(state.app_id, through, 0, through, role="rebuild")
            with self.table.merging(state, note) as letters:
                same = f"t.id = s.id AND t.`table` = {_literal(self.name)}"
                merge = letters.alias("t").merge(rows.alias("s"), same)
                merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
            self.table.make_durable(self.table.peek())
        return True

    def adopt(self, other: DeadLetters, after: int, through: int | None = None, *, dropped_only: bool = False) -> None:
        """Take over another table's letters in the place of one's own, after < id <= through; or those that were dropped.

        `TableConflict` when people have dropped letters meanwhile that the other table does not know of.
        """
        source = other if other.exists() else self
        if not source.exists():
            return
        # In our own session: the bookmark goes along by settings of the session that writes.
        rows = self.table.spark.table(source.table.name.sql).where(other._ours() & _within("id", after, through))
        rows = rows.where(F.col("dropped_at").isNotNull()) if dropped_only else rows
        rows = rows.withColumn("table", F.lit(self.name)).select(*COLUMNS.names)
        if not self.exists() and rows.isEmpty():
            return
        with self.table.locked():
            if not self.exists():
                self.table.create(COLUMNS, {})
            state = self.table.peek()
            dropped = self.rows().where(F.col("dropped_at").isNotNull() & _within("id", after, through)).select("id")
            heeded = rows.where(F.col("dropped_at").isNotNull()).select(F.col("id").alias("_heeded"))
            if not dropped.join(heeded, F.col("id") == F.col("_heeded"), "left_anti").isEmpty():
                raise TableConflict(f"{self.table.name}: letters of {self._spec.table} were dropped meanwhile")
            reached = max(state.bookmark, other.table.peek().bookmark if other.exists() else 0)
            note = Note(state.app_id, reached, after, reached, role="rebuild")
            where = f"`table` = {_literal(self.name)} AND id > {after}"
            where += "" if through is None else f" AND id <= {through}"
            self.table.replace_where(rows, state, note, where)
            now = self.table.peek()
            self.table.make_durable(now)
            if now.version != state.version + 1:
                # Where there is no lock to be had, what came between is not among the rows that were looked at.
                raise TableConflict(f"{self.table.name}: somebody else has written dead letters meanwhile")


def open_letters(spark: SparkSession, spec: TableSpec) -> DeadLetters:
    """The dead letters of a table by themselves, as the outbox that they say they belong to."""
    found = Table(spark, spec.dead_letter_table, "", role="look")
    outbox_id = found.peek().properties.get(PROPERTY + "outbox_id", "") if found.exists() else ""
    main = Table(spark, spec.table, outbox_id)
    return DeadLetters(spark, spec, main, outbox_id, internals=None, lock=True)


def _within(column: str, after: int, through: int | None) -> Column:
    above = F.col(column) > after
    return above if through is None else above & (F.col(column) <= through)


def _pattern(reason: str) -> str:
    """A text to be found anywhere, with * for anything, whatever the case of its letters."""
    return "(?is)" + ".*".join(re.escape(part) for part in reason.split("*"))


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
