"""Which texts are JSON: the column-wise answer is the exact one, at any size of column."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_store import json_text
from stream_store.json_text import as_buffer, is_valid, on_one_line

VALID = [
    "0", "-0.5e+10", "1e400", "9" * 5000, "true", "false", "null", '""', '"\\u0000"', '"\\ud800"', '"é😀\x7f\x9b\u2028"',
    "{}", "[]", ' { "a" : [ 1 , { } ] } ', '{"a":1,"a":2}', "[[[[[[[[]]]]]]]]", '{"a":{"b":{"c":{"d":{"e":1}}}}}',
    "[" * 5000 + "]" * 5000, '"NaN"', '{"Infinity":"NaN"}', "\n{\r\n}\n", "\t1\t",
]  # fmt: skip
INVALID = [
    "", " ", "nope", "NaN", "-Infinity", '{"a":Inf}', "[1,]", '{"a":1,}', "{,}", "[,]", "01", "+1", "1.", ".5", "1 2",
    "1,2", '1,"x":2', '1],"b":[1', '1} {"a":1', "'a'", '"a', '"\x1b[31m"', '"\n"', '"\\x41"', '"\\u12"', "TRUE", "//1",
    '{"a"}', "{1:2}", '{"a":}', "[1", "1]", "[1}", "{]", "\ufeff1", "\x00", "1\x00", '{"a":1}}', "[" * 5000 + "]" * 4999,
    '{"a":1', '"b":2}', "[1", "2]",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_valid_text_is_valid(text: str) -> None:
    assert is_valid(text)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_text_is_not_valid(text: str) -> None:
    assert not is_valid(text)


@pytest.mark.parametrize("copies", [1, 10, 100])
def test_a_column_gets_the_same_answer_by_each_of_the_three_ways(copies: int) -> None:
    # By the number of rows the column goes through Python, Arrow's parser or the expression.
    texts = [text for _ in range(copies) for text in [*VALID, None, *INVALID]]
    lines, valid = on_one_line(pa.array(texts, pa.string()))
    assert valid.to_pylist() == [None if text is None else is_valid(text) for text in texts]
    for text, line in zip(texts, lines.to_pylist(), strict=True):
        assert line == (None if text is None else text.replace("\n", " ").replace("\r", " "))


def test_a_valid_column_without_line_breaks_comes_back_as_it_was() -> None:
    texts = pa.array(['{"a":  1.50}', "[ [[[[1]]]] ]", None] * 1000, pa.string())
    lines, valid = on_one_line(texts)
    assert lines.equals(texts)
    assert valid.to_pylist() == [True, True, None] * 1000


def test_a_line_break_between_tokens_becomes_a_space() -> None:
    lines, valid = on_one_line(pa.array(['{\r\n  "a": [\n1]\n}'], pa.string()))
    assert valid.to_pylist() == [True]
    assert lines.to_pylist() == ['{    "a": [ 1] }']


def test_bytes_that_are_not_utf8_are_not_json() -> None:
    stored = pa.array([b'"\xff"', b'"ok"'] * 1500, pa.binary()).view(pa.string())
    _, valid = on_one_line(stored)
    assert valid.to_pylist() == [False, True] * 1500


def test_texts_that_would_complete_each_other_are_each_invalid() -> None:
    # Joined by anything, these could be read as one document and hide each other.
    texts = ['{"a":1', '"b":2}', "[[1", "2]]", '1,"a":[{"b":1', "[" * 9 + "1"] * 100
    texts += ["[[[[[1]]]]]"] * 100
    _, valid = on_one_line(pa.array(texts, pa.string()))
    assert valid.to_pylist() == [False] * 600 + [True] * 100


def test_the_buffer_of_a_slice_is_the_slice_alone() -> None:
    texts = pa.array(["aa", "bb", None, "cc"], pa.string())
    assert as_buffer(texts).to_pybytes() == b"aabbcc"
    assert as_buffer(texts[1:3]).to_pybytes() == b"bb"
    assert as_buffer(texts[:0]).to_pybytes() == b""


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(_VALUES, st.integers(0, 30), st.sampled_from([*'{}[],:"\\n0-', "NaN", "\x1b", "true", ""]), st.booleans())
def test_each_of_the_three_ways_agrees_with_python(value: object, position: int, inserted: str, indented: bool) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1 if indented else None)
    text = text[:position] + inserted + text[position:]
    try:
        json_text._PYTHON.decode(text)
        valid = True
    except ValueError:
        valid = False
    assert is_valid(text) == valid
    column = pa.array([text], pa.string())
    # The quick ways may leave a text to the next one, but never take a wrong one for valid.
    assert valid or not pc.match_substring_regex(column, json_text._SHALLOW)[0].as_py()
    assert valid or not json_text._are_surely_valid(column)
