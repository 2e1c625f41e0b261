"""The schema of a table's data: declared, or inferred once, kept in the table, and grown by new fields."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outbox.errors import UsageError
from spark_sink.ddl import ddl_of, schema_from_ddl
from spark_sink.fields import EVENT_COLUMNS, column_field, field_column, is_usable
from spark_sink.inference import News, infer, news, wider
from spark_sink.reading import LOCAL_IDS_MAX, as_dataframe, read_local
from spark_sink.spans import Span, next_span
from spark_sink.spark_types import from_spark
from spark_sink.spec import INFER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_sink.names import TableName
    from spark_sink.spec import TableSpec
    from stream_store import Stream

# How many events an inferred schema is made of.
SAMPLE_ROWS = 10_000


class NoEventYet(LookupError):
    """The stream has nothing to infer a table's schema from."""

    def __init__(self, table: TableName, looked_through: int, clear_through: int) -> None:
        super().__init__(f"the stream has no event for {table} yet")
        self.looked_through = looked_through
        # Through here there is no event for the table at all, not even one without data.
        self.clear_through = clear_through


def first_schema(stream: Stream, spec: TableSpec, after: int) -> pa.Schema | None:
    """The schema that a new table is made with; None when `data` stays text.

    An inferred one needs events to look at: `NoEventYet` when the stream has none for the table.
    """
    if spec.schema is None:
        return None
    if spec.schema != INFER:
        return schema_from_ddl(spec.schema)
    at = clear_through = after
    while (span := next_span(stream, at, SAMPLE_ROWS)) is not None:
        data = read_local(stream.url, span, columns=["data"], types=spec.types)["data"].combine_chunks()
        texts = data.drop_null()
        if len(texts):
            found = infer(texts)
            if not len(found):
                raise UsageError(
                    f"{spec.table}: the first events have no JSON objects to infer a schema from; declare one"
                )
            return found
        if at == clear_through and not len(data):
            clear_through = span.through
        at = span.through
    raise NoEventYet(spec.table, at, clear_through)


def new_fields(
    spark: SparkSession, stream: Stream, spec: TableSpec, span: Span, schema: pa.Schema, pieces: int
) -> News:
    """Fields that the data of a span has and the schema lacks; a struct with new members is one of them, whole."""
    if span.through - span.after <= LOCAL_IDS_MAX:
        texts = read_local(stream.url, span, columns=["data"], types=spec.types)["data"].combine_chunks()
        return news(texts, schema, nested=True)

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = news(batch.column(0), schema, nested=True)
            types: dict[str, str | None] = dict.fromkeys(found.left_out)
            types |= {name: ddl_of(kind) for name, kind in found.fields.items()}
            if types:
                yield pa.RecordBatch.from_pydict({"field": list(types), "ddl": pa.array(types.values(), pa.string())})

    events: Any = as_dataframe(spark, stream.url, span, pieces, columns=["data"], types=spec.types)
    # In an order of their own: Spark's is another one each time, and what is found first decides.
    found = sorted(
        (row["field"], row["ddl"] or "")
        for row in events.mapInArrow(find, "field string, ddl string").distinct().collect()
    )
    return joined_news(
        [(name, schema_from_ddl(f"`f` {ddl}").field(0).type if ddl else None) for name, ddl in found], schema
    )


def joined_news(found: Iterable[tuple[str, pa.DataType | None]], schema: pa.Schema) -> News:
    """What looks at several pieces of the data have found, together; a field without a type was left out.

    Each piece has taken its own fields for new: two of them may still want the same column.
    """
    owners = {field_column(field.name).lower(): field.name for field in schema}
    fields: dict[str, pa.DataType] = {}
    left_out = set()
    for name, kind in found:
        if kind is None or owners.setdefault(field_column(name).lower(), name) != name:
            left_out.add(name)
        else:
            fields[name] = wider(fields[name], kind) if name in fields else kind
    return News(fields, frozenset(left_out))


def as_stored(schema: pa.Schema, columns: StructType) -> pa.Schema:
    """The schema as the table has it: with the types of its columns, and with what other sinks have added.

    Two sinks that grow a table at once write its schema over each other's; the columns stay.
    """
    stored = {}
    for column in columns:
        if column.name.lower() not in EVENT_COLUMNS and is_usable(column.name):
            with suppress(UsageError):  # a column that no field can fill
                stored[column.name.lower()] = from_spark([column]).field(0)
    known = [field.with_type(stored.pop(field_column(field.name).lower(), field).type) for field in schema]
    return pa.schema([*known, *(field.with_name(column_field(field.name)) for field in stored.values())])
