"""Typed columns from JSON texts: exact for each row, and fast for all of them together.

- Arrow's parser reads them as a block (`json_lines.py`). Types that it reads too generously
  are read as a wider one and converted, checked.
- A block that fails is cut into smaller ones, and a small one that fails is read row by row
  (`values.py`), so that a bad row costs only itself and gets its reason.

What the fast way accepts, the slow way accepts with the same value: a test holds the two
against each other.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.ddl import ddl_of, schema_from_ddl, to_ddl
from spark_sink.inference import extended, infer, joined, unknown_fields, wider
from spark_sink.json_lines import holds_map, objects, read_lines, read_type
from spark_sink.spark_types import from_spark, to_spark
from spark_sink.values import Members, Unfit, converter, decode, members

__all__ = [
    "parse",
    "infer",
    "unknown_fields",
    "extended",
    "joined",
    "wider",
    "schema_from_ddl",
    "to_ddl",
    "ddl_of",
    "to_spark",
    "from_spark",
]

# A failed block is cut into this many; one of fewer rows is read row by row.
_PARTS = 8
_FEW_ROWS = 256

_DATE = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
# 0001-01-01 to 9999-12-31, which Python and Spark can show. Arrow also reads the year 0.
_TIME_MIN_US, _TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def parse(texts: pa.StringArray, schema: pa.Schema) -> tuple[list[pa.Array], pa.StringArray]:
    """A column for each field of the schema, and for each row why it could not be parsed.

    A row with a reason is NULL in all columns. So is a NULL text (a tombstone), without one.
    """
    lines, errors = objects(texts)
    plan = _Plan(schema)
    columns, reasons = plan.read(lines)
    if reasons:
        mask = [row in reasons for row in range(len(lines))]
        errors = pc.replace_with_mask(
            errors, pa.array(mask, pa.bool_()), pa.array([reasons[row] for row in sorted(reasons)], pa.string())
        )
    return columns, errors


class _Plan:
    """How the texts of one schema are read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._converters = {field.name: converter(field.type) for field in schema}
        self._wide = pa.schema([pa.field(field.name, read_type(field.type)) for field in schema])
        self._is_fast = not any(holds_map(field.type) for field in schema)

    def read(self, lines: pa.StringArray, first_row: int = 0) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns, and the reasons by row."""
        if not len(self._schema):
            return [], {}
        if self._is_fast:
            try:
                return self._by_arrow(lines), {}
            except (pa.ArrowInvalid, pa.ArrowCapacityError):
                pass
        if len(lines) <= _FEW_ROWS:
            return self._by_rows(lines, first_row)
        step = -(-len(lines) // _PARTS)
        parts = [self.read(lines[start : start + step], first_row + start) for start in range(0, len(lines), step)]
        columns = [pa.concat_arrays(pieces) for pieces in zip(*(columns for columns, _ in parts), strict=True)]
        return columns, {row: reason for _, reasons in parts for row, reason in reasons.items()}

    def _by_arrow(self, lines: pa.StringArray) -> list[pa.Array]:
        table = read_lines(lines, self._wide, unexpected="ignore")
        return [_narrowed(table.column(field.name).combine_chunks(), field.type) for field in self._schema]

    def _by_rows(self, lines: pa.StringArray, first_row: int) -> tuple[list[pa.Array], dict[int, str]]:
        found: list[dict[str, Any]] = []
        reasons: dict[int, str] = {}
        for row, line in enumerate(lines.to_pylist()):
            try:
                found.append(self._row(line))
            except Unfit as error:
                found.append({})
                reasons[first_row + row] = str(error)
        columns = [pa.array([row.get(field.name) for row in found], field.type) for field in self._schema]
        return columns, reasons

    def _row(self, line: str) -> dict[str, Any]:
        try:
            value = decode(line)
        except RecursionError:
            # Python's parser gives up at a depth that Arrow's does not mind.
            return self._deep_row(line)
        assert isinstance(value, Members), line
        return members(value, self._converters)

    def _deep_row(self, line: str) -> dict[str, Any]:
        try:
            columns = self._by_arrow(pa.array([line], pa.string()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Unfit("the data is nested too deeply to say what is wrong with it") from None
        return {field.name: column[0].as_py() for field, column in zip(self._schema, columns, strict=True)}


def _narrowed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its own type; `pa.ArrowInvalid` when a value does not fit."""
    if pa.types.is_struct(kind):
        members = [_narrowed(column.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind):
        values = _narrowed(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    if pa.types.is_floating(kind):
        column = column.cast(kind, safe=False)
        if pc.any(pc.is_inf(column)).as_py():
            raise pa.ArrowInvalid("a number is beyond the range of its type")
    elif pa.types.is_timestamp(kind):
        edges = pc.min_max(column.cast(pa.int64())).as_py()
        if edges["min"] is not None and not _TIME_MIN_US <= edges["min"] <= edges["max"] <= _TIME_MAX_US:
            raise pa.ArrowInvalid("a time is beyond the years 1 to 9999")
    elif kind == pa.binary():
        convert = converter(kind)
        try:
            return pa.array([convert(value) for value in column.to_pylist()], kind)
        except Unfit as error:
            raise pa.ArrowInvalid(str(error)) from None
    elif kind == pa.date32():
        if not pc.all(pc.match_substring_regex(column, _DATE)).as_py() and column.null_count < len(column):
            raise pa.ArrowInvalid("a text is not a date")
        return column.cast(kind)
    return column if column.type == kind else column.cast(kind)
