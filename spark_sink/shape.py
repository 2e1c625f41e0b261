"""From events to the rows of one table: projection, event ID, deletes, and what is wrong with a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType

from outbox.errors import UsageError
from spark_sink.fields import ERROR, EVENT_COLUMNS, OWN_PREFIX, typed_schema
from spark_sink.keys import missing_key, missing_part, quoted
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.spec import EVENT_ID, OWN_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from spark_sink.spec import TableSpec

REASON = "_outbox_reason"
# Whether there is no data that a part of a key could have come from.
_BLANK = "_outbox_blank"
_TOMBSTONE = "data IS NULL AND data_bytes IS NULL"
_HIDDEN = (DELETE, EVENT_TIME, ERROR, REASON, _BLANK)


def shape(events: DataFrame, spec: TableSpec, schema: pa.Schema | None) -> DataFrame:
    """The rows of a table, with `_delete`, `_event_time` and, of a row that is wrong, the reason."""
    if spec.keeps_events:
        rows = _foldered(events.select(*EVENT_COLUMNS), spec)
        if not spec.expect:
            return rows
        return rows.withColumn(REASON, _reason(rows, spec))
    marked = events.withColumn(DELETE, _deletes(spec))
    if spec.transform is not None:
        rows = _transformed(marked, spec)
    else:
        own = [f"`id` AS {EVENT_ID}", *_projection(spec, schema)]
        blank = "data IS NULL" if schema is None else f"data IS NULL OR {ERROR} IS NOT NULL"
        beside = [DELETE, f"`time` AS {EVENT_TIME}", f"({blank}) AS {_BLANK}"]
        rows = marked.selectExpr(*own, *beside, *([ERROR] if schema is not None else []))
    _require_columns(rows, spec, schema)
    rows = _foldered(rows, spec)
    return rows.withColumn(REASON, _reason(rows, spec)).drop(ERROR, _BLANK)


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
    asked = ~_deleting(shaped, spec)
    return [F.count_if(asked & ~_holds(text)).alias(name) for name, text in spec.expect.items()]


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


def _require_columns(rows: DataFrame, spec: TableSpec, schema: pa.Schema | None) -> None:
    names = [name.lower() for name in rows.columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(
            f"{spec.table}: the projection has the column {doubled[0]!r} twice: give one of them another name"
        )
    taken = [name for name in names if name in OWN_COLUMNS[1:] or (name.startswith(OWN_PREFIX) and name != _BLANK)]
    if schema is None and spec.transform is None:
        taken += [name for name in names if name == ERROR]
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


def _deletes(spec: TableSpec) -> Column:
    """Whether an event deletes its key; one that only an expectation asks for may be in an append table."""
    return F.coalesce(F.expr(spec.deletes or _TOMBSTONE), F.lit(False))


def _deleting(rows: DataFrame, spec: TableSpec) -> Column:
    """The same of rows, which may be plain events."""
    return F.col(DELETE) if DELETE in rows.columns else _deletes(spec)


def _reason(rows: DataFrame, spec: TableSpec) -> Column:
    """Why a row must not go into the table, in plain words; NULL when nothing is wrong with it.

    What deletes has no fields to be right or wrong: neither the schema nor an expectation is asked.
    """
    deleting = _deleting(rows, spec)
    error = F.col(ERROR) if ERROR in rows.columns else F.lit(None).cast("string")
    reasons = [F.when(~deleting, error)]
    if spec.mode != "append":
        named = ", ".join(spec.key)
        no_key = F.coalesce(error, F.lit(f"its key ({named}) is NULL"))
        reasons.append(F.when(F.expr(missing_key(spec.key)), no_key))
        parts = _parts_of_data(spec)
        if parts and _BLANK in rows.columns:
            # It would delete under a key that no row has, and the one that it means would stay.
            no_part = F.coalesce(error, F.lit(f"it deletes a key ({named}) of which it has only a part"))
            reasons.append(F.when(deleting & F.col(_BLANK) & F.expr(missing_part(parts)), no_part))
    if spec.on_expect != "warn":
        reasons += [
            F.when(~deleting & ~_holds(text), F.lit(f"it breaks the expectation {name!r}: {text}"))
            for name, text in spec.expect.items()
        ]
    return F.coalesce(*reasons, F.lit(None).cast("string"))


def _parts_of_data(spec: TableSpec) -> list[str]:
    """The columns of a key that may be made of the event's data: all that are not its own columns as they are."""
    own = {name for name in EVENT_COLUMNS if not name.startswith("data")}
    if spec.select:
        own &= {each.strip().strip("`").lower() for each in spec.select}
    return [name for name in spec.key if name.lower() not in own]


def _holds(text: str) -> Column:
    """An expectation that is NULL is not met: nobody can say that it holds."""
    return F.coalesce(F.expr(text), F.lit(False))
