"""Arrow's types as Spark's, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import DataType, StructField, StructType


def to_spark(schema: pa.Schema) -> StructType:
    """The schema of a DataFrame that holds these columns."""
    from pyspark.sql import types as spark

    return spark.StructType([spark.StructField(field.name, _to_spark(field.type), nullable=True) for field in schema])


def from_spark(columns: Iterable[StructField]) -> pa.Schema:
    """The columns of a DataFrame or table as Arrow has them."""
    return pa.schema([pa.field(column.name, _from_spark(column.dataType)) for column in columns])


def _to_spark(kind: pa.DataType) -> DataType:
    from pyspark.sql import types as spark

    if pa.types.is_struct(kind):
        return spark.StructType([spark.StructField(field.name, _to_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return spark.ArrayType(_to_spark(kind.value_type))
    if pa.types.is_map(kind):
        return spark.MapType(_to_spark(kind.key_type), _to_spark(kind.item_type))
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return spark.TimestampType() if kind.tz else spark.TimestampNTZType()
    for name, other in _SIMPLE.items():
        if kind == other:
            return getattr(spark, name)()  # type: ignore[no-any-return]
    raise UsageError(f"Spark has no type for Arrow's {kind}")


def _from_spark(kind: DataType) -> pa.DataType:  # noqa: PLR0911 - one line a type
    from pyspark.sql import types as spark

    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(field.name, _from_spark(field.dataType)) for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return pa.list_(_from_spark(kind.elementType))
    if isinstance(kind, spark.MapType):
        return pa.map_(_from_spark(kind.keyType), _from_spark(kind.valueType))
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.TimestampNTZType):
        return pa.timestamp("us")
    if isinstance(kind, spark.TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, spark.StringType | spark.VarcharType | spark.CharType):
        return pa.string()
    simple = _SIMPLE.get(type(kind).__name__)
    if simple is None:
        raise UsageError(f"a column of Spark's type {kind.simpleString()} cannot be filled from JSON")
    return simple


_SIMPLE = {
    "StringType": pa.string(),
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "DateType": pa.date32(),
    "BinaryType": pa.binary(),
}
