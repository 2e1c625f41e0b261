"""Schemas: read from text, found in objects, and grown by new fields."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.errors import UsageError
from spark_sink import inference
from spark_sink.evolution import joined_news
from spark_sink.inference import news
from spark_sink.typed import extended, infer, joined, parse, schema_from_ddl, to_ddl, unknown_fields, wider


def texts(*values: Any) -> pa.StringArray:
    return pa.array(
        [value if value is None or isinstance(value, str) else json.dumps(value) for value in values], pa.string()
    )


def ddl(schema: pa.Schema) -> str:
    return to_ddl(schema)


def test_ddl_is_read_as_spark_reads_it():
    schema = schema_from_ddl(
        "order_id STRING NOT NULL COMMENT 'it''s', total decimal(10,2), `odd name` int, lines array<struct<sku:string, n int>>,"
        " tags map<string,array<long>>, at timestamp, local timestamp_ntz, day date, raw binary, code varchar(10), p decimal"
        .replace("it''s", "the order")
    )  # fmt: skip
    assert schema.field("total").type == pa.decimal128(10, 2)
    assert schema.field("p").type == pa.decimal128(10, 0)
    assert schema.field("odd name").type == pa.int32()
    assert schema.field("lines").type == pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())]))
    assert schema.field("tags").type == pa.map_(pa.string(), pa.list_(pa.int64()))
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("code").type == pa.string()
    assert schema_from_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a", "a type"),
        ("a strin", "unknown type 'strin'"),
        ("a int b int", "','"),
        ("a int, a string", "twice"),
        ("a array<int", "'>'"),
        ("a decimal(39,0)", "38"),
        ("a decimal(2,3)", "decimal"),
        ("a map<int,int>", "keys are not strings"),
        ("a struct<>", "without fields"),
        ("a int,", "name of a field"),
        ("a int; b", "cannot be read from"),
    ],
)
def test_ddl_that_is_wrong_says_where(text, message):
    with pytest.raises(UsageError, match=message):
        schema_from_ddl(text)


def test_inferred_types():
    found = infer(
        texts(
            {"s": "a", "i": 1, "r": 1.5, "mixed": 1, "b": True, "o": {"x": 1}, "l": [1, 2], "big": 2**63},
            {
                "s": "2026-01-01",
                "mixed": 2.5,
                "o": {"y": "z", "n": None},
                "l": [],
                "never": None,
                "none": [],
                "empty": {},
            },
            None,
            "not json",
            [1],
        )
    )
    assert ddl(found) == (
        "s string, i bigint, r double, mixed double, b boolean, o struct<x:bigint,y:string>, l array<bigint>, big double"
    )


def test_values_of_different_kinds_go_by_the_majority():
    assert ddl(infer(texts({"a": 1}, {"a": "x"}, {"a": "y"}))) == "a string"
    assert ddl(infer(texts({"a": 1}, {"a": 2}, {"a": "y"}, {"a": {"b": 1}}))) == "a bigint"
    assert ddl(infer(texts({"a": [1, "x", "y"]}))) == "a array<string>"


UNFIT = ("_error", "_event_id", "_outbox_x", "_delete", "_Valid_From", "_closed_by", "a b", "", "\ud800")


def test_names_that_no_column_can_have_are_left_out_and_told_of():
    values = {**dict.fromkeys(UNFIT, 1), "Total": 5, "total": 6, "id": 7, "data_id": 8, "never": None}
    assert ddl(infer(texts(values))) == "Total bigint, id bigint"
    found = news(
        texts(values, {"data_type": 1, "o": {"_error": 1, "a b": 2}, "l": [{"=": 1}]}, {"type": 2}), infer(texts())
    )
    assert set(found.fields) == {"Total", "id", "data_type", "o"}
    assert found.left_out == {*UNFIT[:-1], "\\ud800", "total", "data_id", "type", "o.a b", "l.="}
    # In an object any name will do that Delta takes.
    assert found.fields["o"] == pa.struct([("_error", pa.int64())])


def test_a_field_whose_column_another_has_is_not_new():
    schema = schema_from_ddl("type string, data_id bigint")
    found = news(texts({"data_type": "x", "id": 1, "ID": 2, "new": 1}), schema)
    assert found.fields == {"new": pa.int64()}
    assert found.left_out == {"data_type", "id", "ID"}


def test_pieces_that_want_the_same_column_are_told_apart():
    schema = schema_from_ddl("a bigint")
    one, other = pa.int64(), pa.string()
    found = joined_news([("B", one), ("b", other), ("data_id", one), ("id", one), ("x y", None), ("z", one)], schema)
    assert found.fields == {"B": one, "data_id": one, "z": one}
    assert found.left_out == {"b", "id", "x y"}


def test_no_unknown_field_is_found_where_there_is_none():
    schema = schema_from_ddl("a bigint, o struct<x:bigint>, t timestamp, m decimal(10,2)")
    rows = texts(*[{"a": n, "o": {"x": n}, "t": "2026-01-01T00:00:00Z", "m": 1.25} for n in range(3000)], None, "nope")
    assert unknown_fields(rows, schema) == {}


def test_unknown_fields_are_found_wherever_they_hide(monkeypatch):
    schema = schema_from_ddl("a bigint, o struct<x:bigint>")
    values: list[Any] = [{"a": n, "o": {"x": n}} for n in range(5000)]
    values[4321] = {"a": 1, "new": {"k": [1.5]}, "A": 3}
    values[17] = {"a": "wrong", "late": "x", "null": None}
    values[2500] = {"o": {"x": 1, "deep": True}, "late": None}
    assert unknown_fields(texts(*values), schema) == {
        "late": pa.string(),
        "new": pa.struct([("k", pa.list_(pa.float64()))]),
    }
    nested = unknown_fields(texts(*values), schema, nested=True)
    assert nested["o"] == pa.struct([("x", pa.int64()), ("deep", pa.bool_())])
    assert set(nested) == {"late", "new", "o"}


def test_fields_that_are_never_used_cost_one_look(monkeypatch):
    looked = 0
    original = inference._look

    def counting(rows, shape, **options):
        nonlocal looked
        looked += len(rows)
        original(rows, shape, **options)

    monkeypatch.setattr(inference, "_look", counting)
    rows = texts(*[{"a": n, "null": None, "none": [], "empty": {}} for n in range(20_000)])
    assert unknown_fields(rows, schema_from_ddl("a bigint")) == {}
    assert looked <= 256


def test_a_map_has_no_unknown_fields():
    schema = schema_from_ddl("m map<string,bigint>")
    assert unknown_fields(texts({"m": {"a": 1}, "new": 1}), schema) == {"new": pa.int64()}


def test_schemas_are_put_together():
    schema = schema_from_ddl("a int, o struct<x:int>")
    kept = schema_from_ddl("a bigint, b string, o struct<x:bigint,y:string>")
    assert ddl(joined(schema, kept)) == "a int, o struct<x:int,y:string>, b string"
    assert ddl(extended(schema, {"b": pa.string(), "o": pa.struct([("x", pa.int32()), ("y", pa.int64())])})) == (
        "a int, o struct<x:int,y:bigint>, b string"
    )
    assert wider(pa.int64(), pa.float64()) == pa.float64()
    assert wider(pa.list_(pa.struct([("a", pa.int64())])), pa.list_(pa.struct([("a", pa.float64()), ("b", pa.bool_())]))) == (
        pa.list_(pa.struct([("a", pa.float64()), ("b", pa.bool_())]))
    )  # fmt: skip
    assert wider(pa.string(), pa.int64()) == pa.string()


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), _VALUES, max_size=4), max_size=8))
def test_objects_of_one_kind_parse_by_the_schema_inferred_from_them(values):
    rows = texts(*values)
    schema = infer(rows)
    assert unknown_fields(rows, schema, nested=True) == {}
    if len(values) == 1 and schema.names:
        _, errors = parse(rows, schema)
        # One object conflicts with itself only inside its arrays.
        assert errors.null_count == 1 or "[" in json.dumps(values)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 9) | st.text(max_size=2) | st.none())))
def test_unknown_fields_are_those_that_a_plain_look_finds(values):
    schema = schema_from_ddl("a bigint, b string")
    found = set(unknown_fields(texts(*values), schema))
    assert found == {name for value in values for name, member in value.items() if member is not None} - {"a", "b"}
