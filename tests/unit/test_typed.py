"""Typed columns: every row gets what a plain `json.loads` says, whatever its neighbours are."""

from __future__ import annotations

import base64
import json
import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.errors import UsageError
from spark_sink import typed
from spark_sink.typed import parse, schema_from_ddl

SCHEMA = schema_from_ddl(
    "s string, i int, l bigint, b boolean, d double, f float, m decimal(10,2), t timestamp, n timestamp_ntz, day date, "
    "x binary, o struct<k:bigint,w:string,p:struct<q:decimal(38,0)>>, a array<bigint>, "
    "r array<struct<sku:string,on:date>>"
)


def rows_of(texts: list[str | None], schema: pa.Schema = SCHEMA) -> list[dict[str, Any] | str]:
    """What became of each text: its fields, or the reason."""
    columns, errors = parse(pa.array(texts, pa.string()), schema)
    for field, column in zip(schema, columns, strict=True):
        assert column.type == field.type
        column.validate(full=True)
    table = pa.table(columns, schema=schema)
    assert len(table) == len(errors) == len(texts)
    found: list[dict[str, Any] | str] = []
    for row, error in zip(table.to_pylist(), errors.to_pylist(), strict=True):
        if error is not None:
            assert all(value is None for value in row.values())
        found.append(row if error is None else error)
    return found


def one(text: str, ddl: str) -> Any:
    """The only field of the only row, or the reason."""
    (row,) = rows_of([text], schema_from_ddl(ddl))
    return row if isinstance(row, str) else next(iter(row.values()))


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("v bigint", "9223372036854775807", 2**63 - 1),
        ("v bigint", "-0", 0),
        ("v tinyint", "-128", -128),
        ("v double", "1e-400", 0.0),
        ("v double", "12345678901234567890", 12345678901234567890.0),
        ("v float", "16777217", 16777216.0),
        ("v decimal(5,2)", "999.99", Decimal("999.99")),
        ("v decimal(5,2)", '"12.5"', Decimal("12.50")),
        ("v decimal(5,2)", "1.50000", Decimal("1.50")),
        ("v decimal(5,2)", "1e2", Decimal("100.00")),
        ("v decimal(38,10)", "1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789")),
        ("v string", r'"a\nbé\u00e9\ud83d\ude00\u0000"', "a\nbéé😀\0"),
        ("v timestamp", '"2026-03-01T12:00:00Z"', datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("v timestamp", '"2026-03-01 12:00:00.123456789+02:00"', datetime(2026, 3, 1, 10, 0, 0, 123456, UTC)),
        ("v timestamp", '"2026-03-01T12:00:00"', datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("v timestamp", '"2026-03-01"', datetime(2026, 3, 1, tzinfo=UTC)),
        ("v timestamp_ntz", '"2026-03-01T12:00:00+0200"', datetime(2026, 3, 1, 10)),
        ("v date", '"2024-02-29"', date(2024, 2, 29)),
        ("v binary", '"AP8="', b"\x00\xff"),
        ("v map<string,int>", '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        ("v array<struct<n:int>>", '[{"n":1,"z":2},null,{}]', [{"n": 1}, None, {"n": None}]),
        ("v struct<a:struct<b:int>>", '{"a":{"b":1},"z":{"a":2}}', {"a": {"b": 1}}),
        ("v struct<a:int>", "null", None),
    ],
)  # fmt: skip
def test_value_that_fits(ddl: str, value: str, expected: object) -> None:
    assert one(f'{{"v":{value}}}', ddl) == expected


@pytest.mark.parametrize(
    ("ddl", "value", "reason"),
    [
        ("v bigint", "9223372036854775808", "v: 9223372036854775808 is not within the range of bigint"),
        ("v int", "2147483648", "within the range of int"),
        ("v tinyint", "128", "within the range of tinyint"),
        ("v bigint", "1.0", "v: 1.0 is not a whole number (bigint)"),
        ("v bigint", "1e2", "whole number"),
        ("v bigint", '"1"', 'v: "1" is not a whole number (bigint)'),
        ("v bigint", "true", "v: true is not"),
        ("v bigint", "9" * 5000, "9999… is not within the range"),
        ("v double", "1e400", "within the range of double"),
        ("v double", "9" * 400, "within the range of double"),
        ("v double", '"1"', "not a number"),
        ("v float", "1e39", "within the range of float"),
        ("v boolean", "1", "not true or false"),
        ("v boolean", '"true"', "not true or false"),
        ("v string", "1", "v: 1 is not a string"),
        ("v string", "{}", "v: an object is not a string"),
        ("v string", '["a"]', "v: an array is not a string"),
        ("v string", r'"\ud800"', "half of a surrogate pair"),
        ("v decimal(5,2)", "1000", "v: 1000 is not within decimal(5,2)"),
        ("v decimal(5,2)", "1.005", "not within decimal(5,2)"),
        ("v decimal(38,0)", "1" + "0" * 38, "not within decimal(38,0)"),
        ("v decimal(5,2)", '"1,5"', "not a number"),
        ("v decimal(5,2)", '" 1"', "not a number"),
        ("v decimal(5,2)", "true", "not a number"),
        ("v timestamp", "1700000000", "not a time in ISO 8601"),
        ("v timestamp", '"2026-02-30T00:00:00Z"', "not a time"),
        ("v timestamp", '"2026-03-01T24:00:00Z"', "not a time"),
        ("v timestamp", '"0000-03-01T00:00:00Z"', "not a time"),
        ("v timestamp", '"9999-12-31T23:00:00-05:00"', "not a time"),
        ("v date", '"2023-02-29"', "not a date"),
        ("v date", '"2023-02-01T00:00:00Z"', "not a date"),
        ("v date", "19000", "not a date"),
        ("v binary", '"A"', "not base64"),
        ("v map<string,int>", '{"a":"x"}', 'v.a: "x" is not a whole number (int)'),
        ("v array<int>", '[1,"x"]', 'v[1]: "x" is not a whole number (int)'),
        ("v array<int>", "{}", "v: an object is not an array (array<int>)"),
        ("v struct<a:array<struct<n:int>>>", '{"a":[{"n":1},{"n":[]}]}', "v.a[1].n: an array is not a whole number (int)"),
        ("v struct<a:int>", "[]", "an array is not an object"),
        ("v struct<a:int>", '{"a":1,"a":2}', "v.a: the field stands twice in one object"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit(ddl: str, value: str, reason: str) -> None:
    assert reason in one(f'{{"v":{value}}}', ddl)


def test_what_is_not_one_object_has_a_reason_and_shifts_nothing() -> None:
    texts = [
        "",
        "{} {}",
        '{"i":1}\n{"i":2}',
        "null",
        "[1]",
        '"x"',
        "nope",
        '{"i":1',
        '"b":2}',
        None,
        '\n{\n"i"\r\n:\n7\n}\n',
    ]
    texts = [text for bad in texts for text in ('{"i":5}', bad)]
    found = rows_of(texts)
    for at, row in enumerate(found):
        if at % 2 == 0:
            assert row["i"] == 5  # type: ignore[index]
    reasons = found[1::2]
    assert [reason for reason in reasons[:9] if "valid JSON" in reason] == [reasons[at] for at in (0, 1, 2, 6, 7, 8)]
    assert all("not a JSON object" in reasons[at] for at in (3, 4, 5))
    assert reasons[9] == dict.fromkeys(SCHEMA.names)
    assert reasons[10]["i"] == 7  # type: ignore[index]


def test_tombstone_and_missing_and_null_fields_are_null() -> None:
    nothing = dict.fromkeys(SCHEMA.names)
    assert rows_of([None, "{}", '{"s":null,"o":null,"a":null}', '{"other":[1,{"s":"x"}]}']) == [nothing] * 4
    assert rows_of([None, None]) == [nothing] * 2
    assert rows_of([]) == []


def test_unknown_fields_may_hold_anything() -> None:
    deep = "[" * 3000 + "]" * 3000
    for odd in ("1e999", r'"\ud800"', deep, '{"z":1,"z":2}'):
        # Beside a bad row, the texts go through Python.
        found = rows_of([f'{{"i":1,"odd":{odd}}}', '{"i":"bad"}'])
        assert isinstance(found[1], str)
        assert isinstance(found[0], dict), (odd[:10], found[0])
        assert found[0]["i"] == 1
    assert rows_of(['{"i":1,"odd":1,"odd":2}'])[0]["i"] == 1  # type: ignore[index]


def test_field_that_stands_twice_is_an_error() -> None:
    assert rows_of(['{"i":1,"i":1}', '{"i":null,"i":1}']) == ["i: the field stands twice in one object"] * 2


@pytest.mark.parametrize("every", [1, 2, 700, 5000])
def test_bad_row_costs_only_itself(every: int) -> None:
    texts = [f'{{"l":{n},"s":"{n}"}}' if n % every else f'{{"l":"{n}"}}' for n in range(6000)]
    found = rows_of(texts, schema_from_ddl("l bigint, s string"))
    for n, row in enumerate(found):
        assert row == ({"l": n, "s": str(n)} if n % every else f'l: "{n}" is not a whole number (bigint)')


def test_bytes_that_are_not_utf8_are_not_json() -> None:
    stored = pa.array([b'{"s":"\xff"}', b'{"s":"ok"}'], pa.binary()).view(pa.string())
    columns, errors = parse(stored, schema_from_ddl("s string"))
    assert columns[0].to_pylist() == [None, "ok"]
    assert errors.to_pylist() == ["the data is not valid JSON", None]


def test_a_slice_is_parsed_as_what_it_is() -> None:
    texts = pa.array([f'{{"l":{n},"o":{{"k":{n}}},"a":[{n}]}}' for n in range(100)], pa.string())
    columns, errors = parse(texts[40:60], schema_from_ddl("l bigint, o struct<k:int>, a array<int>"))
    assert columns[0].to_pylist() == list(range(40, 60))
    assert columns[1].to_pylist() == [{"k": n} for n in range(40, 60)]
    assert columns[2].to_pylist() == [[n] for n in range(40, 60)]
    assert errors.null_count == 20


def test_type_that_json_cannot_fill_is_refused() -> None:
    with pytest.raises(UsageError, match="uint8"):
        parse(pa.array(["{}"]), pa.schema([("a", pa.uint8())]))


# The model: Python's own parser, and for each type what this product says that it takes.


class Bad(Exception):
    pass


class Pairs(list):
    pass


class Num(str):
    pass


def model(text: str | None) -> dict[str, Any] | None:
    """The fields of a row, or None when it is bad."""
    if text is None:
        return dict.fromkeys(SCHEMA.names)
    try:
        value = json.loads(text, object_pairs_hook=Pairs, parse_int=Num, parse_float=Num, parse_constant=refuse)
        if not isinstance(value, Pairs):
            return None
        return fields(value, {field.name: field.type for field in SCHEMA})
    except (ValueError, Bad, InvalidOperation):
        return None


def refuse(text: str) -> None:
    raise ValueError(text)


def fields(pairs: Pairs, kinds: dict[str, pa.DataType]) -> dict[str, Any]:
    known = [name for name, _ in pairs if name in kinds]
    if len(set(known)) < len(known):
        raise Bad
    found = {name: value for name, value in pairs if name in kinds}
    return {name: convert(found.get(name), kind) for name, kind in kinds.items()}


def convert(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    is_number, is_text = isinstance(value, Num), isinstance(value, str) and not isinstance(value, Num)
    if pa.types.is_struct(kind) and isinstance(value, Pairs):
        return fields(value, {field.name: field.type for field in kind})
    if pa.types.is_list(kind) and isinstance(value, list) and not isinstance(value, Pairs):
        return [convert(item, kind.value_type) for item in value]
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_integer(kind) and is_number and value.lstrip("-").isdigit():
        limit = 2 ** (kind.bit_width - 1)
        if -limit <= int(value) < limit:
            return int(value)
    if pa.types.is_float64(kind) and is_number and not math.isinf(float(value)):
        return float(value)
    if pa.types.is_float32(kind) and is_number:
        try:
            return struct.unpack("f", struct.pack("f", float(value)))[0]
        except OverflowError:
            raise Bad from None
    if pa.types.is_decimal(kind) and (is_number or is_text) and value.strip() == value and "_" not in value:
        number = Decimal(value)
        if not number.is_finite() or abs(number.adjusted()) > 100:
            if number == 0:
                return Decimal(0)
            raise Bad
        scaled = number.scaleb(kind.scale)
        if scaled == scaled.to_integral_value() and abs(scaled) < 10**kind.precision:
            return number
    if pa.types.is_string(kind) and is_text:
        value.encode()
        return str(value)
    if pa.types.is_date(kind) and is_text and len(value) == 10:
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind) and is_text:
        time = datetime.fromisoformat(value)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return time.astimezone(UTC) if kind.tz else time.astimezone(UTC).replace(tzinfo=None)
    if pa.types.is_binary(kind) and is_text:
        decoded = base64.b64decode(value, validate=True)
        if base64.b64encode(decoded).decode().rstrip("=") == value.rstrip("="):
            return decoded
    raise Bad


_NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-200, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([Decimal("1.25"), Decimal("99999999.99"), Decimal("100000000.00"), Decimal("0.001")]).map(float),
)
_TIMES = st.one_of(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(lambda time: time.isoformat() + "Z"),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(lambda time: time.isoformat(sep=" ")),
    st.dates(date(1900, 1, 1), date(2100, 1, 1)).map(date.isoformat),
    st.just("2026-03-01T12:00:00.5+02:30"),
    st.just("2026-13-01T12:00:00Z"),
)
_TEXTS = st.one_of(
    st.text(max_size=4), _TIMES, st.sampled_from(["1", "-2.50", "1e3", "AAA=", "AP8=", "{}", "null", "\\", '"'])
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
_ANY = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kwpqz"), inner, max_size=3)
)


def fitting(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({}, optional={field.name: mostly(field.type) for field in kind})
    if pa.types.is_list(kind):
        return st.lists(mostly(kind.value_type), max_size=3)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return st.integers(-(2**31), 2**31 - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(2**50), 2**50)
    if pa.types.is_decimal(kind):
        return st.integers(-99999999, 99999999) | st.sampled_from([12.5, "12.50", 0.25, "-1"])
    if pa.types.is_timestamp(kind):
        return _TIMES
    if pa.types.is_date(kind):
        return st.dates().map(date.isoformat)
    if pa.types.is_binary(kind):
        return st.binary(max_size=4).map(lambda value: base64.b64encode(value).decode())
    return st.text(max_size=6)


def mostly(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.integers(0, 30).flatmap(lambda dice: _ANY if dice == 0 else st.none() if dice == 1 else fitting(kind))


_OBJECTS = st.fixed_dictionaries(
    {}, optional={**{field.name: mostly(field.type) for field in SCHEMA}, "other": _ANY}
)  # fmt: skip
_BAD = st.sampled_from(
    [
        "",
        " ",
        "{} {}",
        "null",
        "[]",
        "1",
        '"x"',
        '{"i":1}}',
        '{"i":1',
        "{'i':1}",
        '{"i":NaN}',
        '{"i":1,"i":2}',
        '{"i":01}',
    ]
)


@st.composite
def rows(draw: st.DrawFn) -> str | None:
    dice = draw(st.integers(0, 20))
    if dice == 0:
        return draw(st.none() | _BAD)
    value = draw(_OBJECTS)
    return json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))


@pytest.mark.parametrize("few_rows", [0, 1, 256])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_each_row_is_what_a_plain_parser_says(few_rows: int, data: st.DataObject) -> None:
    texts = data.draw(st.lists(rows(), max_size=12))
    with pytest.MonkeyPatch.context() as patch:
        # With 256 a block that fails goes row by row at once; with 1 it is cut down to the bad rows.
        patch.setattr(typed, "_FEW_ROWS", max(few_rows, 1))
        if few_rows == 0:
            patch.setattr(typed, "holds_map", lambda kind: True)  # the slow way alone
        found = rows_of(texts)
    for text, row in zip(texts, found, strict=True):
        expected = model(text)
        assert (row == expected) if expected is not None else isinstance(row, str), (text, row, expected)
