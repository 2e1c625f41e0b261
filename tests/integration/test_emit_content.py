"""Content comes back from every database byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbox import Outbox
from outbox.row import Encoder
from tests.integration.targets import connect, install_outbox, stored

outbox = Outbox()
DEEP = "[" * 500 + "]" * 500
NASTY = [
    "",
    "\\",
    "'",
    '"',
    "%s",
    "%(a)s",
    ":a",
    "?",
    "$1",
    "{}",
    "\t\n\r",
    "\x7f\x85\u2028",
    "🦊👩‍👩‍👧",
    "\ufeff",
    "\uffff",
    "e\u0301",
    "İ",
    " a ",
]

texts = st.text(st.characters(exclude_categories=["Cs"]))
subjects = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=1024)
types = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=255)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)
spaces = st.sampled_from(["", " ", "\n\t"])
json_texts = st.builds(
    lambda value, before, after, indent: before + json.dumps(value, indent=indent) + after,
    values,
    spaces,
    spaces,
    st.sampled_from([None, 1]),
)
header_values = (
    st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(st.characters(exclude_categories=["Cs", "Cc"]))
)
headers = st.none() | st.dictionaries(st.from_regex(r"x[a-z0-9]{0,63}", fullmatch=True), header_values)
payloads = (
    st.fixed_dictionaries({"data": values})
    | st.fixed_dictionaries({"data_json": json_texts})
    | st.fixed_dictionaries({"data_bytes": st.binary(), "datacontenttype": st.just("application/octet-stream")})
    | st.just({})
)
events = st.builds(lambda payload, **rest: {**payload, **rest}, payloads, type=types, subject=subjects, headers=headers)


@pytest.fixture
def installed_url(database_url: str) -> str:
    return install_outbox(database_url)


def round_trip(url: str, event: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    with connect(url) as connection:
        cursor = connection.cursor()
        cursor.execute("DELETE FROM outbox")
        outbox.emit_many(connection, event)
        connection.commit()
    return [row[:6] for row in stored(url)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(events, min_size=1, max_size=5))
def test_any_content_comes_back_as_it_was_encoded(installed_url, batch):
    encode = Encoder().encode
    assert round_trip(installed_url, batch) == [encode(**event)[:6] for event in batch]


def test_known_nasty_content(installed_url):
    numbers = ["9" * 4000, "1e400", "-0.0", "1.10", "12345678901234567890.123456789", "1E+2"]
    batch: list[dict[str, Any]] = [
        {"type": f"t{text}t".replace("\t\n\r", "").replace("\x7f\x85", ""), "subject": text, "data": {text: text}}
        for text in NASTY
    ]
    batch += [{"type": "number", "data_json": number} for number in numbers]
    batch += [
        {"type": "nul", "data": "a\0b"},
        {"type": "nul", "data_json": '"a\\u0000b"'},
        {"type": "deep", "data_json": DEEP},
        {"type": "deep", "data": json.loads(DEEP)},
        {"type": "blanks", "data_json": ' {\n"b" : 1 , "a": 2,"b":3\t} '},
        {"type": "scalar", "data_json": "null"},
        {"type": "scalar", "data": ""},
        {"type": "empty bytes", "data_bytes": b"", "datacontenttype": "a/b"},
        {"type": "all bytes", "data_bytes": bytes(range(256)), "datacontenttype": "a/b"},
        {"type": "x" * 255, "subject": "🦊" * 1024},
        {"type": "large", "data": "ü" * 500_000},
        {"type": "headers", "headers": {f"h{number}": text for number, text in enumerate(NASTY) if text.isprintable()}},
    ]
    encode = Encoder().encode
    assert round_trip(installed_url, batch) == [encode(**event)[:6] for event in batch]
