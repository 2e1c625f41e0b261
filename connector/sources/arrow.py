"""What a driver hands over, brought to the one Arrow schema of events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connector.source import Rows
from outbox.batch import SCHEMA
from outbox.errors import Unsupported

COLUMN_COUNT = len(SCHEMA)


def to_rows(read: pa.RecordBatch, versions: pa.Int64Array) -> Rows:
    """The event columns of a read, by position, in the schema's own types."""
    try:
        arrays = [_as_type(read.column(i), SCHEMA.field(i).type) for i in range(COLUMN_COUNT)]
    except pa.ArrowInvalid as error:
        first, last = read.column(0)[0], read.column(0)[-1]
        raise Unsupported(
            f"a row between {first} and {last} holds what cannot be an event ({error}): "
            "correct it or delete it and emit it anew; `outbox upgrade` brings the checks that keep such rows out"
        ) from error
    return Rows(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), versions)


def from_python(rows: list[tuple[Any, ...]], time_type: pa.DataType) -> Rows:
    """Rows of a driver that makes Python objects: the event columns, then the version."""
    types = [*SCHEMA.types[:-1], time_type, pa.int64()]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, wanted) for column, wanted in zip(columns, types, strict=True)]
    part = pa.RecordBatch.from_arrays(arrays, names=[*SCHEMA.names, "version"])
    return to_rows(part, part.column(COLUMN_COUNT))


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
