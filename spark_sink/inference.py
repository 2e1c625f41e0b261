"""The schema of JSON objects: what a sample of them has, and what new ones have beyond it.

- whole numbers are bigint (beyond 64 bits: double), numbers with a fraction double, and both
  together double; text is string, whatever it looks like;
- a field whose values are of different kinds gets the kind that most of them have: the others
  will not parse, and their reason says so. Declare the field to decide otherwise;
- a field that is always null, `[]` or `{}` is left out until it has a value: a guess would
  make the first real value an error;
- so is a field whose name no column can have: one of the product's own (`_error`, `_event_…`,
  `_valid_from`), one whose column another field has already (a name that differs only in upper
  and lower case; `data_type` beside `type`), or one with characters that Delta refuses. What is
  left out is told of, so that nothing goes missing in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_sink.fields import field_column, is_usable, is_usable_member
from spark_sink.json_lines import holds_map, objects, read_lines, read_type
from spark_sink.values import Members, Number, Whole, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

# A block with something new is cut into this many; of one of fewer rows each is looked at.
_PARTS = 8
_FEW_ROWS = 256


class _Shape:
    """The kinds of value seen in one place, and how often."""

    __slots__ = ("booleans", "items", "lists", "members", "numbers", "objects", "reals", "strings")

    def __init__(self) -> None:
        self.strings = self.booleans = self.numbers = self.reals = self.objects = self.lists = 0
        self.members: dict[str, _Shape] = {}
        self.items: _Shape | None = None

    def add(self, value: Any) -> None:
        if isinstance(value, Number):
            self.numbers += 1
            self.reals += not (isinstance(value, Whole) and len(value) < 20 and -(2**63) <= int(value) < 2**63)
        elif isinstance(value, str):
            self.strings += 1
        elif isinstance(value, bool):
            self.booleans += 1
        elif isinstance(value, Members):
            self.objects += 1
            for name, member in value:
                self.members.setdefault(name, _Shape()).add(member)
        elif isinstance(value, list):
            self.lists += 1
            self.items = self.items or _Shape()
            for item in value:
                self.items.add(item)

    def type(self) -> pa.DataType | None:
        """The type that takes most of the values; None when there is none to tell it from."""
        counts = {
            "string": self.strings, "number": self.numbers, "boolean": self.booleans,
            "object": self.objects, "list": self.lists,
        }  # fmt: skip
        kind = max(counts, key=lambda name: counts[name])
        if not counts[kind]:
            return None
        if kind == "list":
            item = self.items.type() if self.items else None
            return None if item is None else pa.list_(item)
        if kind == "object":
            fields = self.fields()
            return pa.struct(fields) if fields else None
        return {"string": pa.string(), "boolean": pa.bool_()}.get(kind, pa.float64() if self.reals else pa.int64())

    def fields(self) -> list[pa.Field]:
        """The members that a struct can have, in the order in which they were first seen."""
        return self._chosen(is_usable_member, str.lower)

    def columns(self) -> list[pa.Field]:
        """The members that can be columns of a table."""
        return self._chosen(is_usable, lambda name: field_column(name).lower())

    def _chosen(self, is_fit: Callable[[str], bool], place: Callable[[str], str]) -> list[pa.Field]:
        found: dict[str, pa.Field] = {}
        for name, shape in self.members.items():
            kind = shape.type()
            if kind is not None and is_fit(name):
                found.setdefault(place(name), pa.field(name, kind))
        return list(found.values())

    def left_out(self, kind: pa.DataType | None, path: str = "") -> Iterator[str]:
        """Where values were seen that a type has no place for. None: there is no type for what is here."""
        if self.items is not None and (kind is None or pa.types.is_list(kind)):
            yield from self.items.left_out(kind and kind.value_type, path)
        if kind is None or pa.types.is_struct(kind):
            for name, shape in self.members.items():
                at = -1 if kind is None else kind.get_field_index(_written(name))
                if at < 0 and shape.type() is not None:
                    yield path + _written(name)
                else:
                    inner = None if kind is None or at < 0 else kind.field(at).type
                    yield from shape.left_out(inner, f"{path}{_written(name)}.")

    def probe(self) -> pa.DataType:
        """A type by which Arrow's parser accepts what was seen here, whatever its names."""
        if self.objects and self.objects >= max(self.strings, self.numbers, self.booleans, self.lists):
            # JSON can write half of a surrogate pair, Arrow has no text for it.
            named = {name: shape for name, shape in self.members.items() if _written(name) == name}
            return pa.struct([pa.field(name, shape.probe()) for name, shape in named.items()])
        if self.lists and self.lists >= max(self.strings, self.numbers, self.booleans):
            return pa.list_(self.items.probe() if self.items else pa.null())
        kind = self.type()
        return pa.null() if kind is None else kind


def infer(texts: pa.StringArray) -> pa.Schema:
    """The fields of the JSON objects among these texts; texts that are none are passed over."""
    shape = _Shape()
    _look(texts.to_pylist(), shape)
    return pa.schema(shape.columns())


@dataclass(frozen=True, slots=True)
class News:
    """Fields that data has and a schema lacks, with their types; and those that no column can be made of."""

    fields: dict[str, pa.DataType]
    left_out: frozenset[str]


def unknown_fields(texts: pa.StringArray, schema: pa.Schema, *, nested: bool = False) -> dict[str, pa.DataType]:
    """Fields that objects among these texts have and the schema lacks, with their types."""
    return news(texts, schema, nested=nested).fields


def news(texts: pa.StringArray, schema: pa.Schema, *, nested: bool = False) -> News:
    """What objects among these texts have and the schema lacks.

    With `nested`, a struct of the schema that has got a new member is among them, whole, the
    new member last. Where there is nothing new, this costs one pass of Arrow's parser, which
    refuses a block with a field that it was not told of. Where there is, a few rows of the
    block are looked at in Python, and Arrow is told of what they have.
    """
    lines, _ = objects(texts)
    maps = {field.name for field in schema if holds_map(field.type)}
    known = pa.struct([pa.field(field.name, read_type(field.type)) for field in schema if field.name not in maps])
    probe, shape = known, _Shape()
    start, size = 0, len(lines)
    while start < len(lines):
        block = lines[start : start + size]
        if not maps and _has_only(block, probe):
            start += size
            size *= _PARTS
        elif len(block) > _FEW_ROWS:
            size = max(size // _PARTS, _FEW_ROWS)
        else:
            _look(block.to_pylist(), shape, without=maps)
            probe = merged(known, shape.probe())
            start += size
    new = _new(pa.schema(shape.columns()), schema, nested=nested)
    return News(new, frozenset(shape.left_out(pa.struct(list(extended(schema, new))))))


def _new(found: pa.Schema, schema: pa.Schema, *, nested: bool) -> dict[str, pa.DataType]:
    have = {field_column(field.name).lower(): field for field in schema}
    new: dict[str, pa.DataType] = {}
    for field in found:
        known = have.get(field_column(field.name).lower())
        if known is None:
            new[field.name] = field.type
        elif nested and known.name == field.name and (grown := merged(known.type, field.type)) != known.type:
            new[field.name] = grown
    return new


def merged(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type with the members that only the other has added at the end of its structs."""
    if pa.types.is_struct(known) and pa.types.is_struct(other):
        fields = [
            field.with_type(merged(field.type, other.field(field.name).type))
            if other.get_field_index(field.name) >= 0
            else field
            for field in known
        ]
        have = {field.name.lower() for field in known}
        return pa.struct([*fields, *(field for field in other if field.name.lower() not in have)])
    if pa.types.is_list(known) and pa.types.is_list(other):
        return pa.list_(merged(known.value_type, other.value_type))
    return known


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type for what two looks at different rows found: as `merged`, and double for mixed numbers."""
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        both = [
            field.with_type(wider(field.type, other.field(field.name).type))
            if other.get_field_index(field.name) >= 0
            else field
            for field in one
        ]
        return merged(pa.struct(both), other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(wider(one.value_type, other.value_type))
    return one


def joined(declared: pa.Schema, kept: pa.Schema) -> pa.Schema:
    """The declared fields, and behind them those that only the other schema has."""
    return pa.schema(list(merged(pa.struct(list(declared)), pa.struct(list(kept)))))


def extended(schema: pa.Schema, found: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with what `unknown_fields` found in it."""
    fields = [field.with_type(found.get(field.name, field.type)) for field in schema]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in found.items() if name not in schema.names)])


def _written(name: str) -> str:
    """A name as UTF-8 can have it."""
    return name.encode("utf-8", "backslashreplace").decode()


def _has_only(lines: pa.StringArray, known: pa.StructType) -> bool:
    """Whether Arrow's parser finds no field in these lines that the type does not have."""
    try:
        read_lines(lines, pa.schema(list(known)), unexpected="error")
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        return False
    return True


def _look(texts: Iterable[str | None], shape: _Shape, without: Container[str] = ()) -> None:
    """Add the objects among the texts to a shape."""
    for text in texts:
        try:
            value = decode(text) if text else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, Members):
            shape.add(Members(member for member in value if member[0] not in without) if without else value)
