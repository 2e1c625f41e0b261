"""The rules of an event, and what an event looks like to whoever handles one."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import Event, EventBatch, InvalidEvent
from outbox.batch import SCHEMA
from outbox.event import events
from outbox.row import DATA_BYTES_MAX, HEADERS_BYTES_MAX, RESERVED_HEADERS, Encoder, Row

encode = Encoder().encode
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def refused(**event) -> str:
    with pytest.raises(InvalidEvent) as caught:
        encode(**{"type": "order.paid", **event})
    return str(caught.value)


def nested(levels: int) -> object:
    value: object = "bottom"
    for _ in range(levels):
        value = [value]
    return value


def test_row_has_compact_json_with_unicode_as_it_is():
    row = encode("order.paid", "o-17", {"name": "Zoë 🦊", "total": 1.5, "lines": [1, None, True]})
    assert row == Row(
        "order.paid", "o-17", '{"name":"Zoë 🦊","total":1.5,"lines":[1,null,true]}', None, None, None, None
    )


def test_no_data_is_a_tombstone_and_json_null_is_not():
    assert encode("order.deleted", "o-17")[2:4] == (None, None)
    assert encode("order.noted", "o-17", data_json="null").data == "null"


def test_falsy_data_is_data():
    assert [encode("t", data=value).data for value in (0, False, "", [], {})] == ["0", "false", '""', "[]", "{}"]


@pytest.mark.parametrize(
    "text",
    ["null", ' { "a" : 1.0 } ', "1e400", "-0", "9" * 5000, '"\\u0000"', '"\\ud83e\\udd8a"', '{"a":1,"a":2}', "[\n]"],
)
def test_json_text_is_kept_byte_for_byte(text):
    assert encode("t", data_json=text).data == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    )
)
def test_any_json_value_comes_back(value):
    text = encode("t", data=[value]).data
    assert Event(1, "t", data_json=text).data == [value]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "1 to 255"),
        ("x" * 256, "256 characters"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("\ud800", "surrogate"),
        (None, "of type NoneType"),
        (7, "of type int"),
        (["x"], "of type list"),
    ],
)
def test_bad_type_is_refused(bad, reason):
    with pytest.raises(InvalidEvent, match="type") as caught:
        encode(bad)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("x" * 1025, "1025 characters"),
        ("a\0b", "NUL"),
        ("\udcff", "surrogate"),
        (17, "of type int"),
        (b"x", "of type bytes"),
    ],
)
def test_bad_subject_is_refused(bad, reason):
    assert reason in refused(subject=bad)
    assert refused(subject=bad).startswith("subject")


def test_longest_and_empty_subject_are_fine():
    assert encode("x" * 255, "🦊" * 1024).subject == "🦊" * 1024
    assert encode("t", "").subject == ""


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(number):
    assert "NaN or Infinity" in refused(data={"a": [number]})


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "{", "", "'a'", '"a\nb"', "1 2", "[1,]", "\ufeff1", "01"]
)
def test_text_that_is_not_json_is_refused(text):
    assert "data_json is not JSON" in refused(data_json=text)


@pytest.mark.parametrize("key", [1, 1.5, -3, True, None, 10**20, 1e300, (1, 2)])
def test_keys_that_are_not_strings_are_refused(key):
    assert "key" in refused(data={"a": [{key: 1}]})


def test_string_keys_that_look_like_numbers_are_fine():
    assert encode("t", data={"1": {"true": 1}, "null": 2}).data == '{"1":{"true":1},"null":2}'


def test_keys_made_by_json_default_are_checked_too():
    with pytest.raises(InvalidEvent, match="key"):
        Encoder(json_default=lambda _: {1: 2}).encode("t", data=[object()])


def test_half_a_surrogate_pair_is_refused_wherever_it_stands():
    for bad in (
        {"data": "\ud800"},
        {"data": {"\udc00": 1}},
        {"data_json": '"\ud800"'},
        {"data_json": '["\\ud800"]'},
        {"data_json": '"\\uDC00x"'},
        {"headers": {"a": "\ud800"}},
    ):
        assert "surrogate" in refused(**bad)


def test_circular_and_bottomless_data_are_refused():
    loop: list[object] = []
    loop.append(loop)
    assert "circular" in refused(data=loop)
    assert "too deeply" in refused(data=nested(100_000))
    assert "too deeply" in refused(data_json="[" * 100_000 + "]" * 100_000)


def test_five_hundred_levels_are_fine():
    text = encode("t", data=nested(500)).data
    assert encode("t", data_json=text).data == text


def test_values_that_json_does_not_know_need_json_default():
    assert "json_default" in refused(data={"total": Decimal("1.50")})
    assert Encoder(json_default=str).encode("t", data={"total": Decimal("1.50")}).data == '{"total":"1.50"}'


def test_integer_beyond_pythons_digits_goes_as_text():
    assert "data_json" in refused(data=10**5000)
    event = Event(1, "t", data_json="9" * 5000)
    assert event.data == Decimal("9" * 5000)


def test_data_over_the_limit_is_refused_in_bytes_not_characters():
    small = Encoder(max_data_bytes=10)
    assert small.encode("t", data="x" * 8).data == '"xxxxxxxx"'
    for bad in (
        {"data": "x" * 9},
        {"data": "ééééé"},
        {"data_json": '"' + "x" * 9 + '"'},
        {"data_bytes": b"x" * 11, "datacontenttype": "text/plain"},
    ):
        with pytest.raises(InvalidEvent, match=r"the limit is 10: .*max_data_bytes"):
            small.encode("t", **bad)
    assert "1,048,576" in refused(data="x" * DATA_BYTES_MAX)


def test_only_one_kind_of_data_is_allowed():
    assert "exclude each other" in refused(data=1, data_json="1")
    assert "exclude each other" in refused(data_bytes=b"", data=0, datacontenttype="a/b")


def test_binary_needs_a_content_type():
    assert "datacontenttype" in refused(data_bytes=b"\x00\xff")
    assert encode("t", data_bytes=bytearray(b"\x00\xff"), datacontenttype="application/avro").data_bytes == b"\x00\xff"
    assert encode("t", data_bytes=b"", datacontenttype="application/avro").data_bytes == b""
    assert "of type str" in refused(data_bytes="text", datacontenttype="text/plain")


@pytest.mark.parametrize("bad", ["", "json", "a/b\n", "a/b c", "application/" + "x" * 250, "text/plain; ü", 5])
def test_bad_content_type_is_refused(bad):
    assert refused(data=1, datacontenttype=bad).startswith("datacontenttype")


def test_content_type_may_have_parameters():
    assert encode("t", data=1, datacontenttype="application/x+json; charset=utf-8").datacontenttype


@pytest.mark.parametrize(
    "name", ["", "TraceParent", "trace-parent", "a_b", "ü", "x" * 65, 5, *sorted(RESERVED_HEADERS)]
)
def test_bad_header_name_is_refused(name):
    assert refused(headers={name: "x"}).startswith("headers")


@pytest.mark.parametrize("value", [None, 1.5, [], {}, b"x", 2**31, -(2**31) - 1, "a\nb", "\x00", "\x9f"])
def test_bad_header_value_is_refused(value):
    assert refused(headers={"a": value}).startswith("headers")


def test_headers_are_json_and_bounded():
    row = encode("t", headers={"traceparent": "00-1-2-01", "dataschema": "https://a/b", "n": -3, "ok": True, "e": "ü"})
    assert row.headers == '{"traceparent":"00-1-2-01","dataschema":"https://a/b","n":-3,"ok":true,"e":"ü"}'
    assert encode("t", headers={}).headers is None
    assert "limit" in refused(headers={"a": "x" * HEADERS_BYTES_MAX})


def test_time_needs_a_zone_and_becomes_utc():
    assert "time zone" in refused(time=datetime(2026, 3, 1, 12))
    assert "of type str" in refused(time="2026-03-01")
    assert "years" in refused(time=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))))
    assert "years" in refused(time=datetime(999, 1, 1, tzinfo=UTC))
    assert encode("t", time=datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))).time == NOON


def test_enum_members_are_written_by_value():
    class Kind(enum.StrEnum):
        PAID = "order.paid"

    row = encode(Kind.PAID, Kind.PAID)
    assert (row.type, type(row.type), row.subject, type(row.subject)) == ("order.paid", str, "order.paid", str)


def test_cloudevent_has_the_fields_of_the_specification():
    event = Event(
        42,
        "order.paid",
        "o-17",
        data_json='{"total":1.50}',
        headers={"traceparent": "00-1-2-01"},
        time=NOON,
        source="shop",
        prev_id=40,
    )
    assert event.to_cloudevent() == {
        "specversion": "1.0",
        "id": "42",
        "source": "shop",
        "type": "order.paid",
        "subject": "o-17",
        "time": "2026-03-01T12:00:00.000000Z",
        "datacontenttype": "application/json",
        "previd": "40",
        "traceparent": "00-1-2-01",
        "data": {"total": 1.5},
    }


def test_cloudevent_of_binary_data_and_of_a_tombstone():
    event = Event(1, "t", data_bytes=b"\x00\xff", datacontenttype="application/avro")
    assert event.to_cloudevent() == {
        "specversion": "1.0",
        "id": "1",
        "source": "/outbox",
        "type": "t",
        "datacontenttype": "application/avro",
        "data_base64": "AP8=",
    }
    tombstone = Event(2, "t", "o-17")
    assert tombstone.is_tombstone
    assert tombstone.to_cloudevent() == {
        "specversion": "1.0",
        "id": "2",
        "source": "/outbox",
        "type": "t",
        "subject": "o-17",
    }
    assert not Event(3, "t", data_json="null").is_tombstone
    assert Event(3, "t", data_json="null").to_cloudevent()["data"] is None


def test_header_cannot_pose_as_a_core_attribute():
    assert Event(5, "t", headers={"id": "6", "type": "other"}).to_cloudevent()["id"] == "5"


def test_event_is_immutable_and_hashable():
    event = Event(1, "t", headers={"a": 1})
    with pytest.raises(AttributeError):
        event.type = "other"  # type: ignore[misc]
    assert {event, Event(1, "t", headers={"a": 1})} == {event}


def test_events_of_a_batch_follow_each_other():
    columns = {
        "id": [12, 15],
        "type": ["a", "b"],
        "subject": ["x", None],
        "data": ['{"a":1}', None],
        "data_bytes": [None, b"\x01"],
        "datacontenttype": [None, "application/avro"],
        "headers": ['{"h":1}', None],
        "time": [NOON, NOON],
    }
    first, second = events(EventBatch(10, pa.RecordBatch.from_pydict(columns, SCHEMA)), "shop")
    assert first == Event(12, "a", "x", data_json='{"a":1}', headers={"h": 1}, time=NOON, source="shop", prev_id=10)
    assert first.data == {"a": 1}
    assert (second.prev_id, second.data_bytes, second.data) == (12, b"\x01", None)
    assert json.dumps(second.to_cloudevent())
