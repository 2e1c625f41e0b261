"""What a repair would change, without changing it: the rows to insert, to update and to delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import MapType

from spark_sink.keys import quoted, same_key
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.modes import scd2
from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from spark_sink.spans import Span
    from spark_sink.spec import TableSpec

NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """Counts, and the first IDs of each kind."""

    insert: int = 0
    update: int = 0
    delete: int = 0
    insert_ids: tuple[int, ...] = ()
    update_ids: tuple[int, ...] = ()
    delete_ids: tuple[int, ...] = ()
    # Columns that only one side has: a rebuild would add or remove them.
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not (self.insert or self.update or self.delete or self.columns_added or self.columns_removed)


def difference_of_range(there: DataFrame, rows: DataFrame, spec: TableSpec, span: Span) -> Difference:
    """What putting a range right would change. `rows` are as a repair has them."""
    if spec.mode == "append":
        found = there.where(F.col(spec.id_column).between(span.after + 1, span.through))
        return _compare(rows.drop(DELETE, EVENT_TIME), found, [spec.id_column], spec.id_column)
    keys = rows.select(*(quoted(name) for name in spec.key)).distinct()
    of_keys = there.alias("t").join(keys.alias("k"), F.expr(same_key("t", "k", spec.key)), "left_semi")
    if spec.mode == "upsert":
        # A later event than the range knows of is left alone by a repair.
        return _compare(_latest(rows, spec), of_keys, [*spec.key], EVENT_ID)
    opened, closed = scd2.chain(rows, scd2.last_before(of_keys, spec.key, span.after), spec.key)
    wanted = opened.unionByName(closed, allowMissingColumns=True)
    above = of_keys.where(F.col(EVENT_ID) > span.after)
    below = of_keys.where(F.col(EVENT_ID) <= span.after)
    closing = closed.select(F.col(EVENT_ID).alias("_outbox_closed_id"))
    below = below.join(closing, F.col(EVENT_ID) == F.col("_outbox_closed_id"), "left_semi")
    return _compare(wanted, above.unionByName(below), [*spec.key, EVENT_ID], EVENT_ID)


def difference_of_whole(there: DataFrame, rows: DataFrame, spec: TableSpec) -> Difference:
    """What making the table anew would change."""
    if spec.mode == "append":
        return _compare(rows.drop(DELETE, EVENT_TIME), there, [spec.id_column], spec.id_column)
    if spec.mode == "upsert":
        return _compare(_latest(rows, spec), there, [*spec.key], EVENT_ID)
    versions, _ = scd2.chain(rows, _empty_versions(rows), spec.key)
    return _compare(versions, there, [*spec.key, EVENT_ID], EVENT_ID)


def _latest(rows: DataFrame, spec: TableSpec) -> DataFrame:
    latest = (
        rows.groupBy(*(quoted(name) for name in spec.key))
        .agg(F.max_by(F.struct("*"), F.col(EVENT_ID)).alias("_outbox_latest"))
        .select("_outbox_latest.*")
    )
    return latest.where(~F.col(DELETE)).drop(DELETE, EVENT_TIME)


def _empty_versions(rows: DataFrame) -> DataFrame:
    schema: StructType = scd2.Scd2().columns(rows.drop(DELETE, EVENT_TIME).schema)
    return rows.sparkSession.createDataFrame([], schema)


def _compare(wanted: DataFrame, there: DataFrame, identity: Sequence[str], id_column: str) -> Difference:
    """Match rows by what identifies them, and compare the columns that both sides have."""
    columns = [name for name in wanted.columns if name in there.columns]
    if any(name not in columns for name in (*identity, id_column)):
        # Another kind of table: nothing of what is there has a counterpart.
        return Difference(
            insert=wanted.count(), delete=there.count(),
            columns_added=_only(wanted, there), columns_removed=_only(there, wanted),
        )  # fmt: skip
    left = _summed(wanted, columns, identity, id_column).alias("w")
    right = _summed(there, columns, identity, id_column).alias("t")
    both = left.join(right, F.expr(same_key("w", "t", [f"_k{at}" for at in range(len(identity))])), "full")
    # A row that is there twice has to lose its double, and counts as one to delete.
    surplus = F.greatest(F.coalesce(F.col("t._rows"), F.lit(0)) - F.coalesce(F.col("w._rows"), F.lit(0)), F.lit(0))
    missing = F.greatest(F.coalesce(F.col("w._rows"), F.lit(0)) - F.coalesce(F.col("t._rows"), F.lit(0)), F.lit(0))
    differs = F.col("w._digest").isNotNull() & F.col("t._digest").isNotNull() & ~(surplus > 0)
    changed = differs & (F.col("w._digest") != F.col("t._digest"))
    event_id = F.coalesce(F.col("w._id"), F.col("t._id"))
    counts = both.select(
        missing.alias("insert"), changed.cast("int").alias("update"), surplus.alias("delete"), event_id.alias("_id")
    )
    totals = counts.agg(*(F.sum(name).alias(name) for name in ("insert", "update", "delete"))).collect()[0]
    named = {
        name: tuple(
            int(row["_id"])
            for row in counts.where(F.col(name) > 0).where("_id IS NOT NULL").orderBy("_id").limit(NAMED_MAX).collect()
        )
        for name in ("insert", "update", "delete")
        if totals[name]
    }
    return Difference(
        insert=int(totals["insert"] or 0), update=int(totals["update"] or 0), delete=int(totals["delete"] or 0),
        insert_ids=named.get("insert", ()), update_ids=named.get("update", ()), delete_ids=named.get("delete", ()),
        columns_added=_only(wanted, there), columns_removed=_only(there, wanted),
    )  # fmt: skip


def _summed(rows: DataFrame, columns: Sequence[str], identity: Sequence[str], id_column: str) -> DataFrame:
    """One row for each identity: how many there are, and a digest of what they hold."""
    keys = [F.col(quoted(name)).alias(f"_k{at}") for at, name in enumerate(identity)]
    digests = rows.select(*keys, F.col(quoted(id_column)).alias("_id"), _digest(rows, columns).alias("_digest"))
    return digests.groupBy(*(f"_k{at}" for at in range(len(identity)))).agg(
        F.count("*").alias("_rows"), F.max("_id").alias("_id"), F.bit_xor("_digest").alias("_digest")
    )


def _digest(rows: DataFrame, columns: Sequence[str]) -> Column:
    """A hash over the columns. Spark's passes over NULLs, so where they are is hashed, too."""
    fields = {field.name: field.dataType for field in rows.schema}
    values = [
        F.to_json(F.col(quoted(name))) if isinstance(fields[name], MapType) else F.col(quoted(name)) for name in columns
    ]
    return F.xxhash64(*values, *(F.col(quoted(name)).isNull() for name in columns))


def _only(one: DataFrame, other: DataFrame) -> tuple[str, ...]:
    return tuple(name for name in one.columns if name not in other.columns)
