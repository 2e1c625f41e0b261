"""Which texts are valid JSON, for a whole column at once.

PostgreSQL's json column holds nothing else. MySQL and SQLite keep text, so a row written
by hand may hold anything, and whoever embeds it into a larger document has to know first.
Parsing each text in Python costs several microseconds a row. So, from cheap to exact:

1. a regular expression that knows JSON up to `DEPTH` levels: what it matches is valid;
2. the rest, many at once, through Arrow's JSON parser (which is fast at any depth);
3. what is still in doubt, text by text, through a small parser of our own.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

if TYPE_CHECKING:
    from collections.abc import Sequence

# A string, its quotes included. RE2 (Arrow) and Python's `re` both take this spelling.
STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# Line breaks are left out on purpose: a text that matches stands on one line as it is.
BLANK = r"[ \t]*"

# Each level makes the expression four times longer. RE2 stays in its fast automaton up to
# three levels (0.35 µs for 130 bytes); with four it falls out of it and is 18 times slower.
DEPTH = 3

# Compiling the expression takes 7 ms: below this many texts, Arrow's parser is quicker, and
# below the second limit (starting Arrow's parser takes 1 ms) Python is.
MANY = 2_000
FEW = 128


def _nested(depth: int) -> str:
    scalar = rf"{STRING}|{NUMBER}|true|false|null"
    if depth == 0:
        return f"(?:{scalar})"
    value = _nested(depth - 1) + BLANK
    member = f"{STRING}{BLANK}:{BLANK}{value}"
    return (
        rf"(?:{scalar}"
        rf"|\{{{BLANK}(?:{member}(?:,{BLANK}{member})*)?\}}"
        rf"|\[{BLANK}(?:{value}(?:,{BLANK}{value})*)?\])"
    )


# Typed and made once: Arrow takes 0.1 ms to guess the type of a plain Python value.
_FALSE = pa.scalar(value=False, type=pa.bool_())
_UNKNOWN = pa.scalar(None, pa.bool_())
_TEXT = {part: pa.scalar(part, pa.string()) for part in ('{"a":', ',"b":[', "]}\n", "")}

_SHALLOW = rf"\A{BLANK}{_nested(DEPTH)}{BLANK}\z"


def on_one_line(texts: pa.StringArray) -> tuple[pa.StringArray, pa.BooleanArray]:
    """The texts without line breaks, and which of them are valid JSON (null for null).

    A line break in valid JSON stands between two tokens, where a space means the same.
    Texts that are valid and have no line break come back byte for byte.
    """
    if texts.null_count == len(texts):
        return texts, pa.nulls(len(texts), pa.bool_())
    if len(texts) < MANY:
        valid = pc.if_else(pc.is_valid(texts), _FALSE, _UNKNOWN)
    else:
        valid = pc.match_substring_regex(texts, _SHALLOW)
    doubtful = pc.fill_null(pc.invert(valid), fill_value=False)
    if not pc.any(doubtful).as_py():
        return texts, valid
    rest = texts.filter(doubtful)
    rest_valid = pa.array(_are_valid(rest), pa.bool_())
    if _hold(rest, b"\n", b"\r"):
        rest = pc.replace_substring_regex(rest, r"[\r\n]", " ")
    return pc.replace_with_mask(texts, doubtful, rest), pc.replace_with_mask(valid, doubtful, rest_valid)


def _are_valid(texts: pa.StringArray) -> list[bool]:
    """Arrow's verdict on all of them, or that on each half when it is not a clear yes."""
    if len(texts) <= FEW:
        return [_is_valid_bytes(text) for text in texts.cast(pa.binary()).to_pylist()]
    if _are_surely_valid(texts):
        return [True] * len(texts)
    middle = len(texts) // 2
    return _are_valid(texts[:middle]) + _are_valid(texts[middle:])


def _are_surely_valid(texts: pa.StringArray) -> bool:
    """Whether Arrow's parser proves that each of these texts is one JSON value.

    Each text T goes into `{"a":T,"b":[T]}` and a line break, and what is parsed must be as
    many documents. No document reaches into the next text's: there `}` meets `{` with no
    comma between, which is wrong at any depth, and a string cannot hold the line break. So
    each is exactly one document, and T never closes what it did not open. As a member's
    value, T could still be `1,"x":2`, and in brackets `1,2`; to be good in both places it
    can have no comma of its own. So it is one value.

    Arrow's parser (RapidJSON, not recursive) is strict but for NaN and Inf.
    """
    if not is_utf8(texts) or _hold(texts, b"NaN", b"Inf"):
        return False
    lines = pc.binary_join_element_wise(_TEXT['{"a":'], texts, _TEXT[',"b":['], texts, _TEXT["]}\n"], _TEXT[""])
    text = as_buffer(lines)
    try:
        parsed = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(text.size, 1)),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([("none", pa.null())]), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return False
    return bool(parsed.num_rows == len(texts))


def _hold(texts: pa.StringArray, *needles: bytes) -> bool:
    """Whether any text holds one of these. Ten times faster than Arrow's search row by row."""
    haystack = as_buffer(texts).to_pybytes()
    return any(needle in haystack for needle in needles)


def is_utf8(texts: pa.StringArray) -> bool:
    """Whether each text is UTF-8, which SQLite does not see to."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def as_buffer(texts: pa.StringArray) -> pa.Buffer:
    """All texts, one directly behind the other, without a copy."""
    _, offsets, values = texts.buffers()
    if values is None or not len(texts):
        return pa.py_buffer(b"")
    ends = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset)
    start, end = ends[0].as_py(), ends[-1].as_py()
    return values.slice(start, end - start)


_TOKEN = re.compile(
    r"[ \t\r\n]*+(?:"
    r'(?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")'
    rf"|(?P<scalar>{NUMBER}|true|false|null)"
    r"|(?P<mark>[{}\[\],:]))"
)
_BLANK_END = re.compile(r"[ \t\r\n]*+\Z")


def _is_valid_bytes(stored: bytes) -> bool:
    try:
        text = stored.decode()
    except UnicodeDecodeError:
        return False
    try:
        _PYTHON.decode(text)
    except (ValueError, RecursionError):
        # Too deep for Python's parser, or really wrong.
        return is_valid(text)
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# Numbers stay text: an integer of more than 4,300 digits is an error in Python only.
_PYTHON = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)


def is_valid(text: str) -> bool:
    """Whether a text is one JSON value. Knows no limit of depth or digits, unlike `json`."""
    position = 0
    closers: list[str] = []
    # What may come next: a value, a key, ":", or after a value "," and a closer.
    expected: Sequence[str] = ("value",)
    while token := _TOKEN.match(text, position):
        position = token.end()
        kind, mark = token.lastgroup, token["mark"]
        if kind == "string" and "key" in expected:
            expected = (":",)
        elif "value" in expected and kind in ("string", "scalar"):
            expected = _after_value(closers)
        elif "value" in expected and mark in ("{", "["):
            closers.append("}" if mark == "{" else "]")
            expected = ("key", "}") if mark == "{" else ("value", "]")
        elif mark is None or mark not in expected:
            return False
        elif mark == closers[-1]:
            closers.pop()
            expected = _after_value(closers)
        else:
            expected = ("key",) if mark == "," and closers[-1] == "}" else ("value",)
    return not expected and _BLANK_END.match(text, position) is not None


def _after_value(closers: list[str]) -> Sequence[str]:
    return (",", closers[-1]) if closers else ()
