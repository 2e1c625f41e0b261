"""From events to the rows of one table: projection, event ID, deletes, and what is wrong with a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType

from outbox.errors import UsageError
from spark_sink.fields import ERROR, EVENT_COLUMNS, typed_schema
from spark_sink.keys import missing_key, quoted
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.spec import EVENT_ID, OWN_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from spark_sink.spec import TableSpec

REASON = "_reason"
_TOMBSTONE = "data IS NULL AND data_bytes IS NULL"
_HIDDEN = (DELETE, EVENT_TIME, ERROR, REASON)


def shape(events: DataFrame, spec: TableSpec, schema: pa.Schema | None) -> DataFrame:
    """The rows of a table, with `_delete`, `_event_time` and, where a row is wrong, `_reason`."""
    if spec.keeps_events:
        rows = _foldered(events.select(*EVENT_COLUMNS), spec)
        if not spec.expect:
            return rows
        return rows.withColumn(REASON, _reason(spec, typed=False, deletes=False))
    marked = events.withColumn(DELETE, F.coalesce(F.expr(spec.deletes or _TOMBSTONE), F.lit(False)))
    if spec.transform is not None:
        rows = _transformed(marked, spec)
    else:
        own = [f"`id` AS {EVENT_ID}", *_projection(spec, schema)]
        beside = [DELETE, f"`time` AS {EVENT_TIME}", *([ERROR] if schema is not None else [])]
        rows = marked.selectExpr(*own, *beside)
    _require_columns(rows, spec)
    rows = _foldered(rows, spec)
    return rows.withColumn(REASON, _reason(spec, typed=ERROR in rows.columns)).drop(ERROR)


def good_rows(shaped: DataFrame) -> DataFrame:
    if REASON not in shaped.columns:
        return shaped
    return shaped.where(F.col(REASON).isNull()).drop(REASON)


def table_columns(shaped: DataFrame) -> StructType:
    """The columns that the table has of a batch."""
    visible: StructType = shaped.drop(*_HIDDEN).schema
    for field in visible:
        field.nullable = True
    return visible


def warnings_of(shaped: DataFrame, spec: TableSpec) -> list[Column]:
    """For each expectation that only warns: how many rows break it."""
    if spec.on_expect != "warn":
        return []
    return [F.count_if(~_holds(text)).alias(name) for name, text in spec.expect.items() if shaped is not None]


def _projection(spec: TableSpec, schema: pa.Schema | None) -> list[str]:
    if spec.select:
        return list(spec.select)
    if schema is not None:
        fields = [quoted(name) for name in typed_schema(schema).names if name != ERROR]
        return ["type", "subject", "time", *fields]
    return [name for name in EVENT_COLUMNS if name != "id"]


def _transformed(marked: DataFrame, spec: TableSpec) -> DataFrame:
    assert spec.transform is not None
    rows = spec.transform(marked)
    if "id" not in rows.columns:
        raise UsageError(f"{spec.table}: the transform dropped the column `id`, which tells the events apart; keep it")
    if DELETE not in rows.columns:
        rows = rows.withColumn(DELETE, F.lit(False))
    time = F.col("time") if "time" in rows.columns else F.lit(None).cast("timestamp")
    return rows.withColumn(EVENT_TIME, time).withColumnRenamed("id", EVENT_ID)


def _require_columns(rows: DataFrame, spec: TableSpec) -> None:
    names = [name.lower() for name in rows.columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(
            f"{spec.table}: the projection has the column {doubled[0]!r} twice: give one of them another name"
        )
    taken = [name for name in OWN_COLUMNS[1:] if name in names]
    if taken:
        raise UsageError(f"{spec.table}: {taken[0]} is a column of the product: give yours another name")
    wanted = spec.key if spec.mode != "append" else ()
    for name in (*wanted, *spec.partition_by, *spec.cluster_by):
        if name.lower() not in names:
            have = ", ".join(column for column in rows.columns if column not in _HIDDEN)
            raise UsageError(f"{spec.table} has no column {name!r} for its key or layout; it has {have}")


def _foldered(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """The rows with NULL for an empty text in a partition column.

    Delta makes it NULL by itself, because it goes into a folder's name; a key that is still
    empty in the batch would never be found again.
    """
    wanted = {name.lower() for name in spec.partition_by}
    for column in rows.schema:
        if column.name.lower() in wanted and isinstance(column.dataType, StringType):
            rows = rows.withColumn(column.name, F.nullif(F.col(quoted(column.name)), F.lit("")))
    return rows


def _reason(spec: TableSpec, *, typed: bool, deletes: bool = True) -> Column:
    """Why a row must not go into the table, in plain words; NULL when nothing is wrong with it."""
    deleting = F.col(DELETE) if deletes else F.lit(False)
    reasons = []
    if typed:
        reasons.append(F.when(~deleting, F.col(ERROR)))
    if spec.mode != "append":
        named = ", ".join(spec.key)
        reasons.append(F.when(F.expr(missing_key(spec.key)), F.lit(f"its key ({named}) is NULL")))
    if spec.on_expect != "warn":
        reasons += [
            F.when(~deleting & ~_holds(text), F.lit(f"it breaks the expectation {name!r}: {text}"))
            for name, text in spec.expect.items()
        ]
    return F.coalesce(*reasons, F.lit(None).cast("string"))


def _holds(text: str) -> Column:
    """An expectation that is NULL is not met: nobody can say that it holds."""
    return F.coalesce(F.expr(text), F.lit(False))
