"""The schema of a table's data: declared, or inferred once, kept in the table, and grown by new fields."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outbox.errors import UsageError
from spark_sink.ddl import ddl_of, schema_from_ddl
from spark_sink.fields import EVENT_COLUMNS, column_field, field_column
from spark_sink.inference import infer, unknown_fields
from spark_sink.reading import LOCAL_IDS_MAX, as_dataframe, read_local
from spark_sink.spans import Span, next_span
from spark_sink.spark_types import from_spark
from spark_sink.spec import INFER, OWN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_sink.spec import TableSpec
    from stream_store import Stream

# How many events an inferred schema is made of.
SAMPLE_ROWS = 10_000


def first_schema(stream: Stream, spec: TableSpec, after: int) -> pa.Schema | None:
    """The schema that a new table is made with; None when `data` stays text.

    An inferred one needs events to look at: `LookupError` when the stream has none for the table.
    """
    if spec.schema is None:
        return None
    if spec.schema != INFER:
        return schema_from_ddl(spec.schema)
    at = after
    while (span := next_span(stream, at, SAMPLE_ROWS)) is not None:
        texts = read_local(stream.url, span, columns=["data"], types=spec.types)["data"].combine_chunks().drop_null()
        if len(texts):
            found = infer(texts)
            if not len(found):
                raise UsageError(
                    f"{spec.table}: the first events have no JSON objects to infer a schema from; declare one"
                )
            return found
        at = span.through
    raise LookupError(f"the stream has no event for {spec.table} yet")


def new_fields(
    spark: SparkSession, stream: Stream, spec: TableSpec, span: Span, schema: pa.Schema, pieces: int
) -> dict[str, pa.DataType]:
    """Fields that the data of a span has and the schema lacks."""
    if span.through - span.after <= LOCAL_IDS_MAX:
        texts = read_local(stream.url, span, columns=["data"], types=spec.types)["data"].combine_chunks()
        return unknown_fields(texts, schema)

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = unknown_fields(batch.column(0), schema)
            if found:
                types = [ddl_of(kind) for kind in found.values()]
                yield pa.RecordBatch.from_pydict({"field": list(found), "ddl": types})

    events: Any = as_dataframe(spark, stream.url, span, pieces, columns=["data"], types=spec.types)
    fields: dict[str, pa.DataType] = {}
    for row in events.mapInArrow(find, "field string, ddl string").distinct().collect():
        kind = schema_from_ddl(f"`f` {row['ddl']}").field(0).type
        fields[row["field"]] = _wider(fields[row["field"]], kind) if row["field"] in fields else kind
    return fields


def extended(schema: pa.Schema, fields: dict[str, pa.DataType]) -> pa.Schema:
    """The schema with more fields behind its own."""
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in fields.items())])


def joined(declared: pa.Schema, kept: pa.Schema) -> pa.Schema:
    """What is declared now, and fields that the table has got beyond it."""
    names = set(declared.names)
    return pa.schema([*declared, *(field for field in kept if field.name not in names)])


def as_stored(schema: pa.Schema, columns: StructType) -> pa.Schema:
    """The schema as the table has it: with the types of its columns, and with what other sinks have added.

    Two sinks that grow a table at once write its schema over each other's; the columns stay.
    """
    stored = {}
    for column in columns:
        if column.name.lower() not in (*EVENT_COLUMNS, *OWN_COLUMNS):
            with suppress(UsageError):  # a column that no field can fill
                stored[column.name.lower()] = from_spark([column]).field(0)
    known = [field.with_type(stored.pop(field_column(field.name).lower(), field).type) for field in schema]
    return pa.schema([*known, *(field.with_name(column_field(field.name)) for field in stored.values())])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type that holds what two parts of a batch found in the same field."""
    if one == other:
        return one
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if all(any(fits(kind) for fits in numbers) for kind in (one, other)):
        return pa.float64()
    return pa.string()
