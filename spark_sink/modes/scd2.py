"""`scd2`: every version of a key, each with the time from which and to which it was the one.

Order is by event ID. The times of events need not follow it: a version's start is clamped to
the start of the one before it, so that no interval is negative and none overlap. An event
that deletes its key closes the current version and opens none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import BooleanType, LongType, StructType, TimestampType

from spark_sink.keys import quoted, same_key
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.spec import CLOSED_BY, EVENT_ID, IS_CURRENT, VALID_FROM, VALID_TO

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_sink.mode import Change
    from spark_sink.spec import TableSpec
    from spark_sink.table import State, Table

_ACTION, _LAST, _FIRST = "_outbox_action", "_outbox_last", "_outbox_first"
_START, _FLOOR, _OPEN, _COUNTS = "_outbox_start", "_outbox_floor", "_outbox_open", "_outbox_counts"


class Scd2:
    def columns(self, rows: StructType) -> StructType:
        return (
            StructType(list(rows.fields))
            .add(VALID_FROM, TimestampType())
            .add(VALID_TO, TimestampType())
            .add(IS_CURRENT, BooleanType())
            .add(CLOSED_BY, LongType())
        )

    def apply(self, table: Table, state: State, spec: TableSpec, change: Change) -> None:
        with table.merging(state, change.note) as target:
            versions = target.toDF()
            # The MERGE reads the table in its source, too: Delta reads both from the same
            # snapshot, and refuses the commit when either has changed since.
            source = _source(versions, change.rows, spec.key, change.after)
            values: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in versions.columns}
            (
                target.alias("t")
                .merge(source.alias("s"), f"{same_key('t', 's', spec.key)} AND t.{EVENT_ID} = s.{EVENT_ID}")
                .whenMatchedDelete(condition=f"s.{_ACTION} = 'delete'")
                .whenMatchedUpdate(condition=f"s.{_ACTION} = 'put'", set=values)
                .whenNotMatchedInsert(condition=f"s.{_ACTION} = 'put'", values=values)
                .execute()
            )

    def repair(self, table: Table, state: State, spec: TableSpec, change: Change, through: int) -> None:  # noqa: ARG002
        self.apply(table, state, spec, change)


def _source(versions: DataFrame, rows: DataFrame, key: tuple[str, ...], after: int) -> DataFrame:
    """What is to be there above `after` for the keys of `rows`, and what is there and must go."""
    columns = [quoted(name) for name in versions.columns]
    keys = rows.select(*(quoted(name) for name in key)).distinct()
    existing = versions.alias("t").join(F.broadcast(keys).alias("k"), F.expr(same_key("t", "k", key)), "left_semi")
    before = last_before(existing, key, after)
    desired, closed = chain(rows, before, key)
    above = existing.where(F.col(EVENT_ID) > after)
    same = f"{same_key('e', 'd', key)} AND e.{EVENT_ID} = d.{EVENT_ID}"
    stale = above.alias("e").join(desired.alias("d"), F.expr(same), "left_anti")
    puts = desired.unionByName(closed, allowMissingColumns=True).select(*columns)
    return puts.withColumn(_ACTION, F.lit("put")).unionByName(
        stale.select(*columns).withColumn(_ACTION, F.lit("delete"))
    )


def last_before(existing: DataFrame, key: tuple[str, ...], after: int) -> DataFrame:
    """Of each key the last version at or below `after`, as it was when no later event had closed it."""
    older = existing.where(F.col(EVENT_ID) <= after)
    last = (
        older.groupBy(*(quoted(name) for name in key))
        .agg(F.max_by(F.struct("*"), F.col(EVENT_ID)).alias(_LAST))
        .select(f"{_LAST}.*")
    )
    closed_later = F.col(CLOSED_BY) > after
    return (
        last.withColumn(VALID_TO, F.when(closed_later, F.lit(None)).otherwise(F.col(VALID_TO)))
        .withColumn(IS_CURRENT, F.when(closed_later, F.lit(True)).otherwise(F.col(IS_CURRENT)))
        .withColumn(CLOSED_BY, F.when(closed_later, F.lit(None)).otherwise(F.col(CLOSED_BY)))
    )


def chain(rows: DataFrame, before: DataFrame, key: tuple[str, ...]) -> tuple[DataFrame, DataFrame]:
    """The versions that the events make, and the version before them, closed by the first."""
    # What the key had reached: the end of its last version, or the start of one that is open.
    floors = before.select(
        *(quoted(name) for name in key),
        F.coalesce(F.col(VALID_TO), F.col(VALID_FROM)).alias(_FLOOR),
        F.col(CLOSED_BY).isNull().alias(_OPEN),
    )
    by_id = Window.partitionBy(*(quoted(name) for name in key)).orderBy(EVENT_ID)
    joined = rows.alias("r").join(floors.alias("f"), F.expr(same_key("r", "f", key)), "left")
    known = joined.select("r.*", _FLOOR, _OPEN)
    # An event that deletes a key which has no version leaves no trace in the table. So its time must
    # not move what follows either: the next batch could not know of it.
    was_open = F.coalesce(F.lag(~F.col(DELETE)).over(by_id), F.col(_OPEN), F.lit(False))
    counted = known.withColumn(_COUNTS, ~F.col(DELETE) | was_open)
    start = F.greatest(F.col(EVENT_TIME), F.coalesce(F.col(_FLOOR), F.col(EVENT_TIME)))
    running = F.max(F.when(F.col(_COUNTS), start)).over(by_id.rowsBetween(Window.unboundedPreceding, 0))
    dated = counted.withColumn(_START, running).drop(_FLOOR, _OPEN, _COUNTS)
    placed = (
        dated.withColumn(VALID_FROM, F.col(_START))
        .withColumn(VALID_TO, F.lead(_START).over(by_id))
        .withColumn(CLOSED_BY, F.lead(EVENT_ID).over(by_id))
        .withColumn(IS_CURRENT, F.col(CLOSED_BY).isNull())
    )
    desired = placed.where(~F.col(DELETE)).drop(DELETE, EVENT_TIME, _START)
    firsts = dated.groupBy(*(quoted(name) for name in key)).agg(
        F.min_by(F.struct(F.col(_START), F.col(EVENT_ID)), F.col(EVENT_ID)).alias(_FIRST)
    )
    closed = (
        before.where(F.col(CLOSED_BY).isNull())
        .alias("b")
        .join(firsts.alias("n"), F.expr(same_key("b", "n", key)), "inner")
        .select("b.*", _FIRST)
        .withColumn(VALID_TO, F.col(f"{_FIRST}.{_START}"))
        .withColumn(CLOSED_BY, F.col(f"{_FIRST}.{EVENT_ID}"))
        .withColumn(IS_CURRENT, F.lit(False))
        .drop(_FIRST)
    )
    return desired, closed
