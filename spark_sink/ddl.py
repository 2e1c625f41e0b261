"""A schema as text, the way Spark SQL writes it: `order_id string, lines array<struct<sku:string,n:int>>`.

Read here and not by Spark, because a schema is also needed where there is no session: in an
executor, and before one is started.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>\w+)|(?P<mark>[<>(),:]))")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL_DIGITS_MAX = 38

_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
    "varchar": "string",
    "char": "string",
}


def schema_from_ddl(text: str) -> pa.Schema:
    """The schema that a text describes; `UsageError` names what cannot be read."""
    return _Parser(text).schema()


def to_ddl(schema: pa.Schema) -> str:
    """The text of a schema, which `schema_from_ddl` reads back."""
    return ", ".join(f"{_quoted(field.name)} {ddl_of(field.type)}" for field in schema)


def ddl_of(kind: pa.DataType) -> str:
    """A type as Spark SQL calls it."""
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quoted(field.name)}:{ddl_of(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_of(kind.key_type)},{ddl_of(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind, str(kind))


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


class _Parser:
    """Reads a text from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._next, self._kind = "", ""
        self._advance()

    def schema(self) -> pa.Schema:
        fields = self._fields("")
        if not fields:
            raise UsageError("the schema is empty: write fields and types, such as `order_id string, total double`")
        return pa.schema(fields)

    def _fields(self, closer: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while self._next != closer:
            if fields:
                self._take(",")
            name = self._name()
            if any(field.name == name for field in fields):
                raise UsageError(f"the schema has the field {name!r} twice")
            if self._next == ":":
                self._advance()
            fields.append(pa.field(name, self._type()))
            self._skip_remarks()
        return fields

    def _type(self) -> pa.DataType:
        word = self._next.lower()
        if self._kind != "word":
            raise self._wrong("a type")
        self._advance()
        name = _ALIASES.get(word, word)
        if name in _COMPOUND:
            return _COMPOUND[name](self)
        if name not in _TYPES:
            raise UsageError(f"the schema has an unknown type {word!r}; known: {', '.join([*_TYPES, *_COMPOUND])}")
        if word in ("varchar", "char"):
            self._numbers()
        return _TYPES[name]

    def _decimal(self) -> pa.DataType:
        precision, scale = ([*self._numbers(), 0] if self._next == "(" else [10, 0])[:2]
        if not 0 < precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise UsageError(
                f"the schema has decimal({precision},{scale}): at most 38 digits, as many behind the point"
            )
        return pa.decimal128(precision, scale)

    def _array(self) -> pa.DataType:
        self._take("<")
        item = self._type()
        self._take(">")
        return pa.list_(item)

    def _map(self) -> pa.DataType:
        self._take("<")
        key = self._type()
        if key != pa.string():
            raise UsageError("the schema has a map whose keys are not strings: a JSON object has no other keys")
        self._take(",")
        item = self._type()
        self._take(">")
        return pa.map_(key, item)

    def _struct(self) -> pa.DataType:
        self._take("<")
        fields = self._fields(">")
        self._take(">")
        if not fields:
            raise UsageError("the schema has a struct without fields")
        return pa.struct(fields)

    def _numbers(self) -> list[int]:
        """What stands in parentheses behind a type."""
        self._take("(")
        found: list[int] = []
        while self._next != ")":
            if found:
                self._take(",")
            if not self._next.isdecimal():
                raise self._wrong("a number")
            found.append(int(self._next))
            self._advance()
        self._take(")")
        return found

    def _name(self) -> str:
        token, kind = self._next, self._kind
        if kind not in ("word", "quoted"):
            raise self._wrong("the name of a field")
        self._advance()
        return token[1:-1].replace("``", "`") if kind == "quoted" else token

    def _skip_remarks(self) -> None:
        """NOT NULL and COMMENT say nothing about how a field is read: any may be missing in JSON."""
        if self._next.lower() == "not":
            self._advance()
            if self._next.lower() != "null":
                raise self._wrong("NULL")
            self._advance()
        if self._next.lower() == "comment":
            self._advance()
            if self._kind != "text":
                raise self._wrong("a comment in quotes")
            self._advance()

    def _take(self, mark: str) -> None:
        if self._next != mark:
            raise self._wrong(repr(mark))
        self._advance()

    def _advance(self) -> None:
        found = _TOKEN.match(self._text, self._position)
        if found is not None:
            self._next, self._kind = found[found.lastgroup or 0], str(found.lastgroup)
            self._position = found.end()
        elif self._text[self._position :].strip():
            raise UsageError(f"the schema cannot be read from {self._text[self._position :].strip()[:40]!r} on")
        else:
            self._next, self._kind = "", "end"

    def _wrong(self, expected: str) -> UsageError:
        found = repr(self._next) if self._next else "its end"
        return UsageError(f"the schema has {found} where {expected} should be: {self._text!r}")


_COMPOUND: dict[str, Callable[[_Parser], pa.DataType]] = {
    "decimal": _Parser._decimal,
    "array": _Parser._array,
    "map": _Parser._map,
    "struct": _Parser._struct,
}
