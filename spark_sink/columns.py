"""The columns of a table, and how they grow: what is missing, and what can become of a type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from outbox.errors import UsageError
from spark_sink.ddl import ddl_of
from spark_sink.spark_types import from_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from spark_sink.names import TableName


def require_types(table: TableName, have: StructType, rows: StructType, *, but_for_members: bool = False) -> None:
    """Refuse rows that are not of the columns' types: Delta would write files that nobody can read.

    `but_for_members`: structs of the table may lack members that the rows have at their ends.
    """
    known = {column.name.lower(): column.dataType for column in have}
    for column in rows:
        kind = known.get(column.name.lower(), column.dataType)
        same = kind.simpleString() == column.dataType.simpleString()
        if not same and not (but_for_members and can_become(kind, column.dataType)):
            raise UsageError(
                f"{table}: the column {column.name} is {kind.simpleString()}, and its description makes "
                f"{column.dataType.simpleString()} of it now: put it back, or make the table anew with "
                f"`outbox replay --rebuild --table {table}`"
            )


def missing(
    have: StructType, wanted: StructType, inside: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """The columns that a table lacks, and the members that its structs lack, each by its path, with its type."""
    known = {column.name.lower(): column for column in have}
    for column in wanted:
        path = (*inside, column.name)
        if column.name.lower() in known:
            yield from _missing_members(known[column.name.lower()].dataType, column.dataType, path)
        else:
            yield path, column.dataType


def _missing_members(
    have: DataType, wanted: DataType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    if isinstance(have, StructType) and isinstance(wanted, StructType):
        yield from missing(have, wanted, path)
    elif isinstance(have, ArrayType) and isinstance(wanted, ArrayType):
        yield from _missing_members(have.elementType, wanted.elementType, (*path, "element"))
    elif isinstance(have, MapType) and isinstance(wanted, MapType):
        yield from _missing_members(have.valueType, wanted.valueType, (*path, "value"))


def can_become(have: DataType, wanted: DataType) -> bool:
    """Whether a column of one type is of the other as soon as its structs have got members at their ends."""
    if isinstance(have, StructType) and isinstance(wanted, StructType):
        pairs = list(zip(have, wanted, strict=False))
        return len(pairs) == len(have) and all(
            one.name == other.name and can_become(one.dataType, other.dataType) for one, other in pairs
        )
    if isinstance(have, ArrayType) and isinstance(wanted, ArrayType):
        return can_become(have.elementType, wanted.elementType)
    if isinstance(have, MapType) and isinstance(wanted, MapType):
        return can_become(have.keyType, wanted.keyType) and can_become(have.valueType, wanted.valueType)
    return have.simpleString() == wanted.simpleString()


def spelled(kind: DataType) -> str:
    """A type as ALTER TABLE takes it, whatever the names of its members."""
    try:
        return ddl_of(from_spark([StructField("f", kind)]).field(0).type)
    except UsageError:  # a projection may make types that no JSON has
        return kind.simpleString()
