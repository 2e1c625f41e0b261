"""A line for `outbox flux` is an event, or an error that says why not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli import flux
from outbox.batch import SCHEMA, EventBatch
from outbox.errors import InvalidEvent
from outbox.lines import LINE_WORDS, _members, parse_line
from outbox.row import RESERVED_HEADERS, Encoder
from stream_store.cloudevents import to_lines
from stream_store.json_text import as_buffer


def test_all_members_of_an_event() -> None:
    line = (
        b'{"specversion":"1.0","id":"9","source":"/x","previd":"8","type":"order.paid","subject":"o-1",'
        b'"time":"2026-03-01T13:00:00.000001+01:00","datacontenttype":"application/vnd.x+json",'
        b'"traceparent":"00-1","n":3,"flag":true,"unset":null,"data": { "a" : 1.500 } }\r'
    )
    assert parse_line(line) == {
        "type": "order.paid",
        "subject": "o-1",
        "data_json": '{ "a" : 1.500 }',
        "data_bytes": None,
        "datacontenttype": "application/vnd.x+json",
        "headers": {"traceparent": "00-1", "n": 3, "flag": True},
        "time": datetime.fromisoformat("2026-03-01T13:00:00.000001+01:00"),
    }


def test_a_type_alone_is_a_tombstone() -> None:
    row = Encoder().encode(**parse_line(b'{"type":"gone"}'))
    assert row == ("gone", None, None, None, None, None, None)


def test_members_may_be_spelled_in_any_valid_way() -> None:
    line = b' {\t"t\\u0079pe" : "\\u00e9\\n" , "n":-0 ,"subject"\r:"",\n"data":[ ]} '
    found = parse_line(line)
    assert (found["type"], found["subject"], found["data_json"]) == ("é\n", "", "[ ]")
    assert found["headers"] == {"n": 0}
    with pytest.raises(InvalidEvent, match="no type"):
        parse_line(b" { } ")


def test_json_null_is_data() -> None:
    assert parse_line(b'{"type":"t","data":null}')["data_json"] == "null"


def test_the_usual_content_type_is_stored_as_none() -> None:
    assert parse_line(b'{"type":"t","data":1,"datacontenttype":"application/json"}')["datacontenttype"] is None
    of_bytes = parse_line(b'{"type":"t","data_base64":"e30=","datacontenttype":"application/json"}')
    assert (of_bytes["data_bytes"], of_bytes["datacontenttype"]) == (b"{}", "application/json")


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", '{"a":1,"a":2}', '"\\u00e9"'])
def test_data_is_kept_as_it_is_spelled(text: str) -> None:
    assert parse_line(b'{"data":' + text.encode() + b',"type":"t"}')["data_json"] == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"nope", "not a JSON object"),
        (b'{"type":"t"', "',' or '}' is missing at character 12"),
        (b'{"type" "t"}', "':' is missing"),
        (b'{"type":"t",}', "name in double quotes"),
        (b"{type:1}", "name in double quotes"),
        (b'{"type":"t"} {}', "there is more behind the object"),
        (b'{"type":"t","data":NaN}', "data is not JSON: NaN is no JSON number; use null or a string"),
        (b'{"type":"t","data":{"a":[-Infinity]}}', "data is not JSON: -Infinity is no JSON number"),
        (b'{"type":"t","ext":NaN}', "ext is not JSON: NaN"),
        (b'{"type":"t","data":01}', "',' or '}' is missing"),
        (b'{"type":"t","n":-}', "n is not JSON: Expecting value at character 17; expected is a JSON value"),
        (b'{"type":"t","n":+1}', "not JSON"),
        (b'{"type":"t","n":truer}', "is missing"),
        (b'{"type":"t" "n":1}', "',' or '}' is missing"),
        (b'{"ty\\xpe":"t"}', "not JSON"),
        (b'{"type', "not JSON"),
        (b"{", "name in double quotes"),
        (b'{"type":', "not JSON"),
        (b'{"type":"t","type":"t"}', "it has 'type' twice"),
        (b'{"type":"t","t\\u0079pe":"t"}', "it has 'type' twice"),
        (b'{"type":"t","data":"\x1b"}', "data is not JSON: Invalid control character at character 21"),
        (b'{"type":"\xff"}', "not UTF-8 at byte 10: convert it first"),
        (b'\xef\xbb\xbf{"type":"t"}', "byte order mark: save the file as UTF-8 without one"),
        (b'{"subject":"s"}', 'it has no type: every event needs one, a string such as "order.paid"'),
        (b'{"type":"a","type":"b"}', "it has 'type' twice"),
        (b'{"type":"t","data":1,"data_base64":""}', "both data and data_base64"),
        (b'{"type":"t","datacontenttype":"a/b","data_base64":"!"}', "data_base64 is not base64"),
        (
            b'{"type":"t","datacontenttype":"a/b","data_base64":7}',
            'the number 7: expected is a string such as "aGVsbG8="',
        ),
        (b'{"type":"t","data_base64":""}', "data_base64 needs a datacontenttype"),
        (b'{"type":"t","time":"noon"}', "time 'noon' is no time: expected is a time of RFC 3339 with its zone"),
        (b'{"type":"t","time":"2026-02-30T12:00:00Z"}', "time '2026-02-30T12:00:00Z' is no time"),
        (b'{"type":"t","time":7}', 'time is the number 7: expected is a string such as "2026-03-01T12:00:00Z"'),
        (b'{"type":"t","time":"2026-03-01T12:00:00"}', "has no time zone: expected is a time of RFC 3339"),
        (b'{"type":"t","time":"0999-01-01T00:00:00Z"}', "outside the years 1000 to 9999"),
        (b'{"type":null}', "it has no type"),
        (b'{"type":7}', 'type is the number 7: expected is a string such as "order.paid"'),
        (b'{"type":""}', "type has 0 characters, 1 to 255 are allowed"),
        (b'{"type":"t","subject":7}', "subject is the number 7: expected is a string"),
        (b'{"type":"t","subject":["a"]}', "subject is an array: expected is a string"),
        (b'{"type":"t","datacontenttype":true}', "datacontenttype is true: expected is a string"),
        (b'{"type":"t","Odd-Name":"x"}', "'Odd-Name' is no field of an event: expected are type, subject"),
        (b'{"type":"t","data_json":"x"}', "'data_json' is no field of an event"),
        (b'{"type":"t","nested":{}}', "nested is an object: an extension is a string"),
        (b'{"type":"t","n":1.5}', "n is the number 1.5: an extension is a string, a whole number of 32 bits"),
        (b'{"type":"t","n":' + b"9" * 5000 + b"}", "n is the number 9999999999999999999999999999999999999999…"),
        (b'{"type":"t","n":3000000000}', "n = 3000000000 is beyond CloudEvents' 32-bit integers"),
        (b'{"type":"t","data":"' + b"x" * 2_000_000 + b'"}', "data has 2,000,002 bytes, the limit is 1,048,576"),
        (b'{"type":"t","data":"\\ud800"}', "data has half a surrogate pair"),
        (b'{"type":"t","data":' + b"[" * 100_000, "data is nested too deeply"),
    ],
)
def test_a_bad_line_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(InvalidEvent) as raised:
        Encoder(words=LINE_WORDS).encode(**parse_line(line))
    assert reason in str(raised.value)


def test_a_line_without_an_end_says_which_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flux, "LINE_BYTES_MAX", 100)
    (tmp_path / "lines").write_bytes(b'{"type":"t"}\n' * 3 + b"x" * 101)
    with (tmp_path / "lines").open("rb") as opened, pytest.raises(InvalidEvent) as raised:
        list(flux.read_batches(opened.fileno(), 10))
    assert str(raised.value).startswith("line 4 is bad: it is longer than 100 B; expected is one event a line")


_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.from_regex("[a-z0-9]{1,20}", fullmatch=True).filter(lambda name: name not in RESERVED_HEADERS)
_EVENTS = st.fixed_dictionaries(
    {"type": _TEXT},
    optional={
        "subject": _TEXT,
        "headers": st.dictionaries(_NAMES, _TEXT | st.booleans() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "time": st.datetimes(min_value=datetime(1000, 1, 2), timezones=st.just(UTC)),
    },
)
_DATA = st.one_of(
    st.just({}),
    _JSON.map(lambda value: {"data_json": json.dumps(value, ensure_ascii=False)}),
    st.tuples(st.binary(), st.sampled_from(["image/png", "application/json"])).map(
        lambda made: {"data_bytes": made[0], "datacontenttype": made[1]}
    ),
)


@settings(max_examples=200)
@given(_EVENTS, _DATA)
def test_what_tap_writes_flux_reads_back(event: dict[str, Any], data: dict[str, Any]) -> None:
    row = Encoder().encode(**event, **data)
    stored = {**row._asdict(), "id": 1, "time": row.time or datetime(2026, 1, 1, tzinfo=UTC)}
    (lines,) = to_lines(EventBatch(0, pa.RecordBatch.from_pylist([stored], schema=SCHEMA)), "/shop")
    again = Encoder().encode(**parse_line(as_buffer(lines).to_pybytes()))
    assert again._replace(time=None) == row._replace(time=None)
    assert again.time == stored["time"]


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(["type", "subject", "data", "n", "é", 'q"', "id"]), _JSON, max_size=4),
    st.integers(0, 40),
    st.sampled_from([*'{}[],:"\\n0-', "NaN", "\x1b", "true", ""]),
    st.booleans(),
)
def test_a_line_is_refused_exactly_when_python_would(
    members: dict, position: int, inserted: str, escaped: bool
) -> None:
    text = json.dumps(members, ensure_ascii=escaped)
    text = text[:position] + inserted + text[position:]
    try:
        pairs = json.loads(text, object_pairs_hook=list, parse_constant=lambda _: 1 / 0)
        names = [name for name, _ in pairs]
        expected = dict(pairs) if text.strip().startswith("{") and len(set(names)) == len(names) else None
    except (ValueError, ZeroDivisionError, TypeError):
        expected = None
    try:
        found = {name: json.loads(value, object_pairs_hook=list) for name, value in _members(text).items()}
    except ValueError:
        found = None
    assert found == expected
