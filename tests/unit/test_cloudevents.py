"""Every line of `outbox tap` is one CloudEvents object, whatever was stored."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.batch import SCHEMA, EventBatch
from stream_store.cloudevents import TAKEN, TypeFilter, for_terminal, to_lines
from stream_store.json_text import as_buffer

MOMENT = datetime(2026, 3, 1, 12, 30, 0, 120, tzinfo=UTC)
BLANK = {"subject": None, "data": None, "data_bytes": None, "datacontenttype": None, "headers": None}


def batch(*rows: dict[str, Any], prev_id: int = 0) -> EventBatch:
    whole = [
        {"id": prev_id + 1 + n, "type": "order.paid", "time": MOMENT, **BLANK, **row} for n, row in enumerate(rows)
    ]
    return EventBatch(prev_id, pa.RecordBatch.from_pylist(whole, schema=SCHEMA))


def text_of(events: EventBatch, source: str = "shop", types: TypeFilter | None = None) -> str:
    return b"".join(as_buffer(lines).to_pybytes() for lines in to_lines(events, source, types)).decode()


def objects(events: EventBatch, **more: Any) -> list[dict[str, Any]]:
    lines = text_of(events, **more).split("\n")
    assert lines.pop() == ""
    return [json.loads(line, object_pairs_hook=unique_members) for line in lines]


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_a_line_is_a_cloudevent_with_its_predecessor() -> None:
    events = batch(
        {"subject": "o-17", "data": '{"total":1.50}', "headers": '{"traceparent":"00-ab","n":3}'},
        {"id": 45},
        prev_id=41,
    )
    assert text_of(events) == (
        '{"specversion":"1.0","id":"42","source":"shop","type":"order.paid","subject":"o-17",'
        '"time":"2026-03-01T12:30:00.000120Z","datacontenttype":"application/json","previd":"41",'
        '"traceparent":"00-ab","n":3,"data":{"total":1.50}}\n'
        '{"specversion":"1.0","id":"45","source":"shop","type":"order.paid",'
        '"time":"2026-03-01T12:30:00.000120Z","previd":"42"}\n'
    )


def test_data_is_byte_exact() -> None:
    data = '{ "b":1.500,"a":12345678901234567890123,  "é":"\\u00e9 😀","b":2}'
    assert text_of(batch({"data": data})).endswith(f'"data":{data}}}\n')


def test_pretty_printed_data_stays_on_one_line() -> None:
    assert objects(batch({"data": '{\r\n  "a": [\n 1\n]}\n'}, {}))[0]["data"] == {"a": [1]}


def test_json_null_is_not_a_tombstone() -> None:
    null, tombstone = objects(batch({"data": "null"}, {}))
    assert null["data"] is None
    assert "data" not in tombstone
    assert "data_base64" not in tombstone
    assert "datacontenttype" not in tombstone


def test_binary_data_is_base64() -> None:
    (event,) = objects(batch({"data_bytes": b"\x00\xff", "datacontenttype": "image/png"}))
    assert event["data_base64"] == base64.b64encode(b"\x00\xff").decode()
    assert event["datacontenttype"] == "image/png"
    assert "data" not in event


@pytest.mark.parametrize("stored", ["nope", '{"a":1', '1,"id":"999"', '1}\n{"id":"2"', '"\x1b[2J"', ""])
@pytest.mark.parametrize("count", [1, 300, 3000])
def test_data_that_is_not_json_is_kept_as_base64_text(stored: str, count: int) -> None:
    events = objects(batch({"data": stored}, *[{"data": '{"a":[[[[1]]]]}'}] * count))
    assert base64.b64decode(events[0]["data_base64"]).decode() == stored
    assert events[0]["datacontenttype"] == "text/plain"
    assert [event["data"] for event in events[1:]] == [{"a": [[[[1]]]]}] * count


def test_text_that_is_not_utf8_does_not_break_the_line() -> None:
    events = batch({"data": '"x"', "subject": "x", "headers": '{"a":"x"}', "datacontenttype": "x"}, {"subject": "fine"})
    broken = [
        pa.array([b"\xff", b"fine"], pa.binary()).view(pa.string())
        if field.name in ("subject", "datacontenttype")
        else column
        for field, column in zip(SCHEMA, events.rows.columns, strict=True)
    ]
    broken[SCHEMA.get_field_index("data")] = pa.array([b'"\xff"', None], pa.binary()).view(pa.string())
    broken[SCHEMA.get_field_index("headers")] = pa.array([b'{"a":"\xff"}', None], pa.binary()).view(pa.string())
    first, second = objects(EventBatch(0, pa.RecordBatch.from_arrays(broken, schema=SCHEMA)))
    assert first["subject"] == "\ufffd"
    assert first["a"] == "\ufffd"
    assert base64.b64decode(first["data_base64"]) == b'"\xff"'
    assert second["subject"] == "fine"


def test_quotes_backslashes_and_controls_are_escaped() -> None:
    odd = 'a"b\\c\n\r\t\x00\x1b[31m\x7f\x9b é😀'
    line = text_of(batch({"type": odd, "subject": odd}), source=odd)
    assert line.isprintable() or line[:-1].isprintable()
    (event,) = objects(batch({"type": odd, "subject": odd}), source=odd)
    assert (event["type"], event["subject"], event["source"]) == (odd, odd, odd)


def test_no_terminal_control_gets_through_to_a_terminal() -> None:
    events = batch(
        {"data": '"\x9b31m\x7f é"'}, {"data": '"\\u001b[31m"', "headers": '{"a":"\x9b"}'}, {"data": '"\x1b[31m"'}
    )
    (lines,) = to_lines(events, "shop")
    shown = as_buffer(for_terminal(lines)).to_pybytes().decode()
    assert all(character == "\n" or character.isprintable() for character in shown)
    assert [json.loads(line) for line in shown.splitlines()] == objects(events)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("{}", {}),
        (" { } ", {}),
        ('{"n":null}', {}),
        ('{ "a" : "x" , "b" : true }', {"a": "x", "b": True}),
        ('{"a":"}","b":"{ "}', {"a": "}", "b": "{ "}),
        ('{"a":": \\"q\\" :"}', {"a": ': "q" :'}),
        ('{\n"a":\n1}', {"a": 1}),
        ('{"dataschema":"https://example.com/s"}', {"dataschema": "https://example.com/s"}),
        ('{"a":"\\u001b"}', {"a": "\x1b"}),
    ],
)
def test_headers_become_attributes(headers: str, expected: dict[str, Any]) -> None:
    plain, event = objects(batch({}, {"headers": headers}))
    known = set(plain)
    assert {name: value for name, value in event.items() if name not in known} == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("[1]", {}),
        ("nope", {}),
        ("", {}),
        ('{"a":1', {}),
        ('{"a":"x"},"id":"9"', {}),
        ('{"id":"9","a":"x"}', {"a": "x"}),
        ('{"data":1,"previd":"7"}', {}),
        ('{"Odd-Name":"x","a":"y"}', {"a": "y"}),
        ('{"a":{"b":1}}', {}),
        ('{"a":1.5,"b":99999999999}', {}),
        ('{"a":"1","a":"2"}', {"a": "1"}),
        ('{"outboxheaders":"x","A":"y"}', {}),
        ("[" * 5000, {}),
    ],
)
def test_headers_that_cannot_be_attributes_are_kept(headers: str, expected: dict[str, Any]) -> None:
    plain, event = objects(batch({"headers": "{}"}, {"headers": headers}))
    known = set(plain)
    assert {name: value for name, value in event.items() if name not in known} == {**expected, "outboxheaders": headers}
    assert (event["id"], event["previd"]) == ("2", "1")


def test_a_filter_keeps_the_true_predecessor() -> None:
    events = batch({"type": "order.paid"}, {"type": "user.new"}, {"type": "order.sent"}, {"type": "x[1]"}, prev_id=7)
    assert [(e["id"], e["previd"]) for e in objects(events, types=TypeFilter(("order.*",)))] == [
        ("8", "7"),
        ("10", "9"),
    ]
    assert [e["id"] for e in objects(events, types=TypeFilter(("user.new", "x[?]")))] == ["9", "11"]
    assert objects(events, types=TypeFilter(("order",))) == []


def test_a_large_batch_comes_in_steps_without_a_seam() -> None:
    events = objects(batch(*[{"data": str(n)} for n in range(70_000)]))
    assert [event["data"] for event in events] == list(range(70_000))
    assert [event["previd"] for event in events] == [str(n) for n in range(70_000)]


_TEXTS = st.text(max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_ROWS = st.fixed_dictionaries(
    {
        "type": st.text(min_size=1, max_size=20),
        "subject": st.none() | _TEXTS,
        "datacontenttype": st.none() | _TEXTS,
        "headers": st.none() | _TEXTS | st.dictionaries(_TEXTS | st.sampled_from(sorted(TAKEN)), _JSON).map(json.dumps),
        "time": st.datetimes(timezones=st.just(UTC)),
    }
)
_DATA = st.one_of(
    st.just({}),
    st.tuples(_JSON, st.booleans(), st.sampled_from([None, 1])).map(
        lambda made: {"data": json.dumps(made[0], ensure_ascii=made[1], indent=made[2])}
    ),
    _TEXTS.map(lambda text: {"data": text}),
    st.binary().map(lambda payload: {"data_bytes": payload}),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(_ROWS, _DATA), min_size=1, max_size=5))
def test_any_row_makes_one_object_with_what_was_stored(made: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    rows = [{**row, **data} for row, data in made]
    for row, event in zip(rows, objects(batch(*rows)), strict=True):
        assert event["type"] == row["type"]
        assert event.get("subject") == row["subject"]
        assert datetime.fromisoformat(event["time"]) == row["time"]
        if "data_bytes" in row:
            assert base64.b64decode(event["data_base64"]) == row["data_bytes"]
        elif "data" not in row:
            assert not {"data", "data_base64"} & set(event)
        elif "data" in event:
            assert event["data"] == json.loads(row["data"])
        else:
            assert base64.b64decode(event["data_base64"]).decode() == row["data"]
