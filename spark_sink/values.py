"""One JSON value as a value of a column's type: what fits, and the reason in plain words when not.

This is the rule, row by row. `typed.py` gets the same answers faster where it can.

- `null` and a missing field are NULL. Fields that the schema does not name are ignored; a
  named field that stands twice in one object is an error.
- A string column takes JSON strings only: a number in it is an error, as a string is in a
  number column. The exception is decimal, which takes both `12.50` and `"12.50"`.
- Nothing is rounded, cut or wrapped: a whole number that is too large, a fraction in a whole
  number's column (`1.0` too), a decimal with too many digits are errors. Only double and
  float round, as they always do, and refuse what is beyond their range.
- timestamp: ISO 8601 text, UTC unless it says otherwise; digits behind microseconds are cut
  off. date: `2026-03-01`. binary: base64. map: an object.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outbox.errors import UsageError
from spark_sink.ddl import ddl_of

if TYPE_CHECKING:
    from collections.abc import Callable


# Arrow's own limits of what it takes for a decimal and a time: both ways take the same texts.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SHOWN_CHARACTERS = 40
_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Unfit(ValueError):
    """A value that its column cannot take: where it stands in the object, and why."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def inside(self, place: str) -> Unfit:
        """The same, seen from one level up."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return Unfit(self.reason, f"{place}{joint}{self.path}")


class Number(str):
    """A JSON number as it is written: nothing is lost before its column's type is known."""

    __slots__ = ()


class Whole(Number):
    """A JSON number without fraction and exponent."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of a JSON object, doubled names included; not to be taken for an array."""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_int=Whole, parse_float=Number, parse_constant=_refuse, object_pairs_hook=Members)


def decode(text: str) -> Any:
    """A JSON text as `Members`, lists, `Number`, str, bool and None."""
    return _DECODER.decode(text)


def converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function from a decoded JSON value to what `pa.array(…, kind)` takes, or `Unfit`."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:  # noqa: PLR0911 - one line a type
    if kind in _INTEGER_BITS:
        return _integer(_INTEGER_BITS[kind], ddl_of(kind))
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return _list(kind)
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return _map(kind)
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return _decimal(kind)
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        return _timestamp
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise UsageError(f"a column of type {kind} cannot be filled from JSON; use a type of Spark SQL such as bigint")
    return simple


def kind_of(value: Any) -> str:
    """What a decoded value is, as people say it."""
    if isinstance(value, Whole):
        return "whole number"
    if isinstance(value, Number):
        return "number"
    return {str: "string", bool: "boolean", Members: "object", list: "array"}[type(value)]


def _unfit(value: Any, wanted: str) -> Unfit:
    if isinstance(value, Members | list):
        return Unfit(f"an {kind_of(value)} is not {wanted}")
    shown = value if isinstance(value, Number) else json.dumps(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "…"
    return Unfit(f"{shown} is not {wanted}")


def _integer(bits: int, name: str) -> Callable[[Any], int]:
    limit = 1 << bits - 1

    def convert(value: Any) -> int:
        if not isinstance(value, Whole):
            raise _unfit(value, f"a whole number ({name})")
        # Python refuses to read thousands of digits, and none of them would fit.
        number = int(value) if len(value) < 40 else limit
        if not -limit <= number < limit:
            raise _unfit(value, f"within the range of {name}")
        return number

    return convert


def _double(value: Any) -> float:
    if not isinstance(value, Number):
        raise _unfit(value, "a number (double)")
    number = float(value)
    if math.isinf(number):
        raise _unfit(value, "within the range of double")
    return number


def _float(value: Any) -> float:
    if not isinstance(value, Number):
        raise _unfit(value, "a number (float)")
    # By way of double, as the column-wise conversion goes.
    number = float(pa.array([float(value)], pa.float64()).cast(pa.float32(), safe=False)[0].as_py())
    if math.isinf(number):
        raise _unfit(value, "within the range of float")
    return number


def _decimal(kind: pa.Decimal128Type) -> Callable[[Any], Decimal]:
    name = ddl_of(kind)

    def convert(value: Any) -> Decimal:
        if not (isinstance(value, str) and _DECIMAL.fullmatch(value)):
            raise _unfit(value, f"a number ({name})")
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        # 1.500 fits decimal(3,1): zeros at the end say nothing.
        significant = text.rstrip("0")
        if not significant:
            return Decimal(0)
        exponent += len(text) - len(significant)
        if -exponent > kind.scale or len(significant) + exponent > kind.precision - kind.scale:
            raise _unfit(value, f"within {name}")
        return Decimal((sign, tuple(map(int, significant)), exponent))

    return convert


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unfit(value, "true or false (boolean)")
    return value


def _string(value: Any) -> str:
    if isinstance(value, Number) or not isinstance(value, str):
        raise _unfit(value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("the string holds half of a surrogate pair, which is no text") from None
    return value


def _timestamp(value: Any) -> int:
    found = _TIME.fullmatch(value) if isinstance(value, str) and not isinstance(value, Number) else None
    if found is None:
        raise _unfit(value, "a time in ISO 8601 (timestamp)")
    day, hour, minute, second, fraction, zone = found.groups()
    try:
        time = datetime.fromisoformat(f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}+00:00")
        time += timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6])) - _offset(zone)
    except (ValueError, OverflowError):
        raise _unfit(value, "a time in ISO 8601 (timestamp)") from None
    return (time - _EPOCH) // timedelta(microseconds=1)


def _offset(zone: str | None) -> timedelta:
    if zone in (None, "Z"):
        return timedelta()
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or "0")
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if zone.startswith("-") else offset


def _date(value: Any) -> int:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value).toordinal() - _EPOCH_DAY
        except ValueError:
            pass
    raise _unfit(value, "a date such as 2026-03-01")


def _binary(value: Any) -> bytes:
    try:
        if isinstance(value, str) and not isinstance(value, Number):
            return binascii.a2b_base64(value.encode(), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        pass
    raise _unfit(value, "base64 (binary)")


def _struct(kind: pa.StructType) -> Callable[[Any], dict[str, Any]]:
    converters = {field.name: converter(field.type) for field in kind}
    name = ddl_of(kind)

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Members):
            raise _unfit(value, f"an object ({name})")
        return members(value, converters)

    return convert


def members(value: Members, converters: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The named members of an object, each converted; the others are left out."""
    found: dict[str, Any] = {}
    for name, member in value:
        convert = converters.get(name)
        if convert is None:
            continue
        if name in found:
            raise Unfit("the field stands twice in one object", name)
        try:
            found[name] = convert(member)
        except Unfit as error:
            raise error.inside(name) from None
    return found


def _list(kind: pa.ListType) -> Callable[[Any], list[Any]]:
    convert_item = converter(kind.value_type)
    name = ddl_of(kind)

    def convert(value: Any) -> list[Any]:
        if isinstance(value, Members) or not isinstance(value, list):
            raise _unfit(value, f"an array ({name})")
        items = []
        for position, item in enumerate(value):
            try:
                items.append(convert_item(item))
            except Unfit as error:
                raise error.inside(f"[{position}]") from None
        return items

    return convert


def _map(kind: pa.MapType) -> Callable[[Any], list[tuple[str, Any]]]:
    convert_item = converter(kind.item_type)
    name = ddl_of(kind)

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, Members):
            raise _unfit(value, f"an object ({name})")
        names = {key for key, _ in value}
        return list(members(value, dict.fromkeys(map(_string, names), convert_item)).items())

    return convert


_SIMPLE: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _string,
    pa.bool_(): _boolean,
    pa.float64(): _double,
    pa.float32(): _float,
    pa.date32(): _date,
    pa.binary(): _binary,
}
