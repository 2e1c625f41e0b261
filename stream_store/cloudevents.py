"""Events as CloudEvents 1.0 in JSON, one object a line: what `outbox tap` writes.

    {"specversion":"1.0","id":"42","source":"shop","type":"order.paid","subject":"o-17",
     "time":"2026-03-01T12:00:00.000000Z","datacontenttype":"application/json","previd":"41",
     "traceparent":"00-…","data":{"total":1.50}}

- `previd` is the ID that this event follows: a reader that sees it differ from the `id` of
  the line before has missed something. With a filter it still names the stream's neighbour.
- `data` is the stored text, byte for byte; only line breaks between its tokens become spaces.
- Headers become extension attributes. What cannot be one (a name that is not lower-case
  letters and digits or is taken, a value that is not text, a small integer or a boolean) is
  kept all the same: the whole stored text then also stands in `outboxheaders`.
- Binary data goes to `data_base64`. So does a stored `data` that is not valid JSON, with
  datacontenttype text/plain unless the row names another.
- Neither data nor data_base64: a tombstone.

Every line is valid JSON, so it holds no control character below U+0020. Only the few rows
that need it are handled one by one.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from stream_store.json_text import BLANK, STRING, is_utf8, on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox.batch import EventBatch

# Bounds the memory of one step, and keeps a column of lines far below Arrow's 2 GiB.
STEP_ROWS = 65_536
STEP_BYTES = 128 * 1024 * 1024

# Attributes that a header must not give a second time.
TAKEN = frozenset(
    ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "previd", "data", "data_base64")
)

# DEL and the C1 controls are legal in JSON, but a terminal may act on them.
_NEEDS_ESCAPE = r'[\x00-\x1f"\\\x7f-\x{9f}]'
_TERMINAL_CONTROL = re.compile(r"[\x7f-\x9f]")
_MEMBER = rf'"[a-z0-9]+"{BLANK}:{BLANK}(?:{STRING}|-?(?:0|[1-9][0-9]{{0,8}})|true|false){BLANK}'
_PLAIN_HEADERS = rf"\A\{{{BLANK}(?:{_MEMBER}(?:,{BLANK}{_MEMBER})*)?\}}\z"
_HEADER_VALUE = rf":{BLANK}(?:{STRING}|[-0-9a-z]+)"
_INTEGER_LIMIT = 2**31  # CloudEvents integers have 32 bits


def to_lines(batch: EventBatch, source: str, types: TypeFilter | None = None) -> Iterator[pa.StringArray]:
    """The batch's lines, each with its line break, in columns of bounded size.

    The texts of a column lie directly behind each other: `json_text.as_buffer` is what to write.
    """
    previous = pa.concat_arrays([pa.array([batch.prev_id], pa.int64()), batch.ids[:-1]])
    rows, previous = (batch.rows, previous) if types is None else types.choose(batch.rows, previous)
    yield from rows_to_lines(rows, previous, source)


def rows_to_lines(rows: pa.RecordBatch, previous: pa.Int64Array, source: str) -> Iterator[pa.StringArray]:
    """The same for any rows, with the ID that each of them follows in the stream."""
    start = 0
    while start < rows.num_rows:
        count = min(STEP_ROWS, rows.num_rows - start)
        while count > 1 and rows.slice(start, count).nbytes > STEP_BYTES:
            count //= 2
        yield _lines(rows.slice(start, count), previous.slice(start, count), source)
        start += count


class TypeFilter:
    """Keeps the events whose type matches one of some patterns such as `order.*`."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        # `*` stands for any characters, `?` for one. No brackets: a type may hold them.
        spelled = (re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") for pattern in patterns)
        self._matches = re.compile("|".join(spelled), re.DOTALL).fullmatch

    def choose(self, rows: pa.RecordBatch, previous: pa.Int64Array) -> tuple[pa.RecordBatch, pa.Int64Array]:
        """The matching rows and what each of them follows in the stream."""
        types = rows.column("type")
        wanted = [name for name in pc.unique(types).to_pylist() if self._matches(name)]
        mask = pc.is_in(types, value_set=pa.array(wanted, pa.string()))
        return rows.filter(mask), previous.filter(mask)


def for_terminal(lines: pa.StringArray) -> pa.StringArray:
    """The lines with DEL and C1 controls escaped too; in JSON text that means the same."""
    return _mended(
        lines,
        pc.match_substring_regex(lines, r"[\x7f-\x{9f}]"),
        lambda line: _TERMINAL_CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", line),
    )


def _lines(rows: pa.RecordBatch, previous: pa.Int64Array, source: str) -> pa.StringArray:
    ids, types, subjects, texts, binaries, content_types, headers, times = rows.columns
    one_line, valid = on_one_line(texts)
    return pc.binary_join_element_wise(
        _text('{"specversion":"1.0","id":"'),
        ids.cast(pa.string()),
        _text(f'","source":{json.dumps(source)},"type":"'),
        _escaped(types),
        _text('"'),
        _piece(',"subject":"', _escaped(subjects), '"'),
        _text(',"time":"'),
        _rfc3339(times),
        _piece('","datacontenttype":"', _content_type(content_types, valid, binaries)),
        _text('","previd":"'),
        previous.cast(pa.string()),
        _text('"'),
        _attributes(headers),
        _piece(',"data":', pc.if_else(valid, one_line, _text(None))),
        _piece(',"data_base64":"', _base64(texts, binaries, valid), '"'),
        _text("}\n"),
        _text(""),
        null_handling="replace",
        null_replacement="",
    )


@cache
def _text(value: str | None) -> pa.StringScalar:
    """A typed constant: Arrow takes 0.1 ms to guess the type of a plain Python value."""
    return pa.scalar(value, pa.string())


def _piece(before: str, column: pa.StringArray, after: str = "") -> pa.StringArray:
    """The column with something before and after it; null stays null."""
    return pc.binary_join_element_wise(_text(before), column, _text(after), _text(""))


def _rfc3339(times: pa.TimestampArray) -> pa.StringArray:
    # Without a time zone Arrow formats 15 times faster than with UTC, to the same digits.
    text = times.cast(pa.timestamp("us")).cast(pa.string())
    return _piece("", pc.replace_substring(text, " ", "T", max_replacements=1), "Z")


def _content_type(declared: pa.StringArray, valid: pa.BooleanArray, binaries: pa.BinaryArray) -> pa.StringArray:
    default = pc.if_else(valid, _text("application/json"), _text("text/plain"))
    of_binary = pc.if_else(pc.is_valid(binaries), _text("application/json"), _text(None))
    return pc.coalesce(_escaped(declared), default, of_binary)


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """The texts as they stand between the quotes of a JSON string."""
    if not is_utf8(texts):
        decoded = [None if text is None else text.decode(errors="replace") for text in _bytes(texts)]
        texts = pa.array(decoded, pa.string())
    return _mended(texts, pc.match_substring_regex(texts, _NEEDS_ESCAPE), lambda text: json.dumps(text)[1:-1])


def _base64(texts: pa.StringArray, binaries: pa.BinaryArray, valid: pa.BooleanArray) -> pa.StringArray:
    """Binary data, and data that is not JSON. Arrow has no base64, so row by row."""
    invalid = pc.fill_null(pc.invert(valid), fill_value=False)
    if binaries.null_count == len(binaries) and not pc.any(invalid).as_py():
        return pa.nulls(len(binaries), pa.string())
    payloads = pc.if_else(invalid, texts.cast(pa.binary()), binaries)
    return pa.array([None if payload is None else _encode(payload) for payload in payloads.to_pylist()], pa.string())


def _encode(payload: bytes) -> str:
    return b2a_base64(payload, newline=False).decode("ascii")


def _attributes(headers: pa.StringArray) -> pa.StringArray:
    """The members of each headers object, each with a comma before it; null for none."""
    if headers.null_count == len(headers):
        return headers
    plain = pc.match_substring_regex(headers, _PLAIN_HEADERS)
    # What is left of plain headers without their values is their names: few, whatever the
    # number of rows, so a name that is taken or stands twice is looked for in Python.
    names = pc.dictionary_encode(
        pc.replace_substring_regex(pc.if_else(plain, headers, _text(None)), _HEADER_VALUE, ":")
    )
    good = pa.array(
        [_are_good_names(re.findall(r"[a-z0-9]+", text)) for text in names.dictionary.to_pylist()], pa.bool_()
    )
    good = pc.fill_null(good.take(names.indices), fill_value=False)
    # A plain object ends in a quote, a digit or a letter before its brace and blanks.
    members = pc.ascii_trim(headers, characters=" \t{}")
    spliced = pc.if_else(pc.equal(members, _text("")), _text(None), _piece(",", members))
    return _mended(spliced, pc.and_(pc.is_valid(headers), pc.invert(good)), _odd_attributes, origin=headers)


def _are_good_names(names: list[str]) -> bool:
    return len(set(names)) == len(names) and not TAKEN.intersection(names)


def _odd_attributes(stored: str) -> str:
    """Those members that can be attributes, and the stored text itself in `outboxheaders`."""
    try:
        pairs = json.loads(stored, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        pairs = None
    members: dict[str, Any] = {}
    complete = isinstance(pairs, _Pairs)
    for name, value in pairs if isinstance(pairs, _Pairs) else ():
        fits = isinstance(value, str | bool) or (isinstance(value, int) and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT)
        free = name not in TAKEN and name not in members and name != "outboxheaders"
        if fits and free and re.fullmatch("[a-z0-9]+", name):
            members[name] = value
        elif value is not None:  # null is CloudEvents' way to say that an attribute is not set
            complete = False
    if not complete:
        members["outboxheaders"] = stored
    return "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in members.items())


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, doubled names included; not to be taken for an array."""


def _mended(
    column: pa.StringArray, odd: pa.BooleanArray, mend: Callable[[str], str], *, origin: pa.StringArray | None = None
) -> pa.StringArray:
    """The column with its odd rows replaced by what `mend` makes of them (or of `origin`'s)."""
    odd = pc.fill_null(odd, fill_value=False)
    if not pc.any(odd).as_py():
        return column
    texts = _bytes((column if origin is None else origin).filter(odd))
    return pc.replace_with_mask(
        column, odd, pa.array([mend(text.decode(errors="replace")) for text in texts], pa.string())
    )


def _bytes(texts: pa.StringArray) -> list[Any]:
    return list(texts.cast(pa.binary()).to_pylist())
