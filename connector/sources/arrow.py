"""What a driver hands over, brought to the one Arrow schema of events."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.source import Rows
from outbox.batch import SCHEMA
from outbox.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMN_COUNT = len(SCHEMA)
_FIELDS = tuple(SCHEMA)
_VERSION = pa.field("version", pa.int64())
# What Arrow raises for a value that is not of a type. Memory that runs out is another matter.
_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)


def to_rows(read: Sequence[pa.Array], versions: pa.Int64Array) -> Rows:
    """The event columns of a read, by position, in the schema's own types."""
    ids = read[0]
    arrays = [
        column if column.type == field.type else _convert(column, field, ids, partial(_as_type, wanted=field.type))
        for column, field in zip(read, _FIELDS, strict=False)
    ]
    for array, field in zip(arrays, _FIELDS, strict=True):
        if array.null_count and not field.nullable:
            raise _refusal(ids[pc.index(array.is_null(), True).as_py()], field, None)
    return Rows(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), versions)


def from_python(rows: list[tuple[Any, ...]], time_type: pa.DataType) -> Rows:
    """Rows of a driver that makes Python objects: the event columns, then the version."""
    types = [*SCHEMA.types[:-1], time_type, _VERSION.type]
    try:
        arrays = pa.array(rows, _row_type(time_type)).flatten()
    except _REFUSALS:
        # Column by column, to say which row and which column it is.
        columns = list(zip(*rows, strict=True))
        arrays = [
            _convert(column, field, columns[0], partial(pa.array, type=wanted))
            for column, field, wanted in zip(columns, (*_FIELDS, _VERSION), types, strict=True)
        ]
    return to_rows(arrays, arrays[COLUMN_COUNT])


@cache
def _row_type(time_type: pa.DataType) -> pa.StructType:
    fields = [field if field.name != "time" else field.with_type(time_type) for field in (*_FIELDS, _VERSION)]
    return pa.struct([field.with_nullable(True) for field in fields])


def _convert(
    values: Sequence[Any] | pa.Array, field: pa.Field, ids: Sequence[Any] | pa.Array, convert: Callable[[Any], pa.Array]
) -> pa.Array:
    """A column as Arrow wants it, or an error that names the first row whose value is none."""
    try:
        return convert(values)
    except _REFUSALS as error:
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            if _is_refused(values[low:middle], convert):
                high = middle
            else:
                low = middle
        raise _refusal(ids[low], field, values[low]) from error


def _is_refused(values: Sequence[Any] | pa.Array, convert: Callable[[Any], pa.Array]) -> bool:
    try:
        convert(values)
    except _REFUSALS:
        return True
    return False


def _refusal(row_id: Any, field: pa.Field, value: Any) -> Unsupported:
    """An event's content may be secret, and only its time is shown."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if value is None:
        what = "is missing"
    elif pa.types.is_timestamp(field.type):
        what = f"is {value!r:.60}"
    elif pa.types.is_string(field.type) and isinstance(value, str | bytes):
        what = "is not text in UTF-8"
    else:
        what = f"is of type {type(value).__name__}"
    return Unsupported(
        f"the row with ID {row_id} cannot be an event, its {field.name} {what}: look at it, delete it from the out table "
        "and emit the event anew; nothing behind it is relayed before"
    )


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == wanted:
        return array
    if array.null_count == len(array):
        # SQLite gives a column without a value the type of an integer.
        return pa.nulls(len(array), wanted)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(array.type) and array.type.tz is None:
        # MySQL's datetime is kept in UTC without saying so.
        return array.cast(pa.timestamp("us")).cast(pa.int64()).cast(wanted)
    return array.cast(wanted)
