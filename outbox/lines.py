"""JSON lines as events: what `outbox flux` reads, and `outbox tap` writes.

A line is one object in CloudEvents' JSON format. `id`, `source`, `specversion` and `previd`
are passed over: the out table gives the event an ID of its own, and its source is the
outbox's. The text of `data` is kept byte for byte.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outbox.errors import InvalidEvent
from outbox.event import JSON_CONTENT_TYPE
from outbox.row import HEADER_NAME_CHARACTERS_MAX, Words

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSED_OVER = frozenset(("id", "source", "specversion", "previd"))
_FIELDS = frozenset(("type", "subject", "datacontenttype", "time", "data", "data_base64"))
# As a line and the program call what the encoder speaks of.
LINE_WORDS = Words("data", "data_base64", "--max-data-bytes")
# What stands in a line as text, and what it looks like.
_TEXTS = {
    "type": "order.paid",
    "subject": "order-17",
    "datacontenttype": "application/avro",
    "time": "2026-03-01T12:00:00Z",
    "data_base64": "aGVsbG8=",
}
_OBJECT = 'one event a line as a JSON object, such as {"type":"order.paid","subject":"order-17","data":{"total":3}}'
_EXTENSION = re.compile(rf"[a-z0-9]{{1,{HEADER_NAME_CHARACTERS_MAX}}}")
# What is longer than any whole number of 32 bits need not be read: Python's int refuses 4300 digits.
_INTEGER = re.compile(r"-?[0-9]{1,10}")

_BLANK = re.compile(r"[ \t\r\n]*")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


# Numbers stay text: of most members only the place matters, and an int of more than 4300
# digits would be an error.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str, parse_float=str)


def parse_line(line: bytes) -> dict[str, Any]:
    """The arguments of `emit` that a line stands for, or `InvalidEvent`: the field, what is wrong, what is expected."""
    try:
        members = _members(line.decode())
    except InvalidEvent:
        raise
    except UnicodeDecodeError as error:
        raise InvalidEvent(
            f"it is not UTF-8 at byte {error.start + 1}: convert it first, for example with iconv"
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"it is not JSON: {_where(error)}; expected is {_OBJECT}") from None
    return _arguments(members)


def _where(error: json.JSONDecodeError) -> str:
    # Some of Python's messages end in "at" themselves.
    return f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"


def _arguments(members: dict[str, str]) -> dict[str, Any]:
    if members.get("type", "null") == "null":
        raise InvalidEvent('it has no type: every event needs one, a string such as "order.paid"')
    if "data" in members and "data_base64" in members:
        raise InvalidEvent("it has both data and data_base64: give one of them, or none for a tombstone")
    # CloudEvents: an attribute that is null is not set.
    plain = {
        name: _value(name, text)
        for name, text in members.items()
        if name != "data" and name not in PASSED_OVER and text != "null"
    }
    content_type = plain.get("datacontenttype")
    if "data" in members and content_type == JSON_CONTENT_TYPE:
        content_type = None  # as the out table has it
    return {
        "type": plain.get("type"),
        "subject": plain.get("subject"),
        "data_json": members.get("data"),
        "data_bytes": _payload(plain["data_base64"]) if "data_base64" in plain else None,
        "datacontenttype": content_type,
        "headers": {name: value for name, value in plain.items() if name not in _FIELDS},
        "time": _time(plain["time"]) if "time" in plain else None,
    }


def _members(text: str) -> dict[str, str]:
    """The object's members as they are spelled: name, and the text of the value."""
    found = {}
    for name, value in _spelled(text):
        if name in found:
            raise InvalidEvent(f"it has {name!r} twice: give each field once")
        found[name] = value
    return found


def _spelled(text: str) -> Iterator[tuple[str, str]]:
    opening = _OPENING.match(text)
    if opening is None:
        if text.startswith("\ufeff"):
            raise InvalidEvent("it begins with a byte order mark: save the file as UTF-8 without one")
        raise InvalidEvent(f"it is not a JSON object: expected is {_OBJECT}")
    position = opening.end()
    mark = opening[1] or ","
    while mark == ",":
        member = _MEMBER.match(text, position)
        if member is None:
            raise _missing_name(text, _skip(text, position))
        start = member.end()
        name = json.loads(f'"{member["name"]}"') if "\\" in member["name"] else member["name"]
        if member["simple"] is None:
            position = _end_of_value(name, text, start)
            value = text[start:position]
        else:
            position, value = start, member["simple"]
        yield name, value
        after = _MARK.match(text, position)
        if after is None:
            raise json.JSONDecodeError("',' or '}' is missing", text, _skip(text, position))
        mark, position = after[1], after.end()
    end = _skip(text, position)
    if end != len(text):
        raise json.JSONDecodeError("there is more behind the object", text, end)


# One match a member: names, and the simple values that most attributes have, cost little then.
_OPENING = re.compile(r"[ \t\r\n]*+\{(?:[ \t\r\n]*+(\}))?")
_MEMBER = re.compile(
    r'[ \t\r\n]*+"(?P<name>(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"[ \t\r\n]*+:[ \t\r\n]*+'
    r'(?P<simple>(?:"[^"\\\x00-\x1f]*+"|-?(?:0|[1-9][0-9]*+)|true|false|null)(?=[ \t\r\n]*+[,}]))?+'
)
_MARK = re.compile(r"[ \t\r\n]*+([,}])")


def _end_of_value(name: str, text: str, start: int) -> int:
    try:
        _, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise InvalidEvent(
            f"{_shown(name)} is not JSON: {_where(error)}; expected is a JSON value, text in double quotes"
        ) from None
    except RecursionError:
        raise InvalidEvent(f"{_shown(name)} is nested too deeply for Python's json module: make it flatter") from None
    except ValueError as error:
        raise InvalidEvent(f"{_shown(name)} is not JSON: {error}; use null or a string") from None
    return end


def _missing_name(text: str, position: int) -> json.JSONDecodeError:
    if text[position : position + 1] != '"':
        return json.JSONDecodeError("a name in double quotes is missing", text, position)
    _, end = _DECODER.raw_decode(text, position)  # raises when the name itself is wrong
    return json.JSONDecodeError("':' is missing", text, _skip(text, end))


def _skip(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    assert blank is not None, "nothing at all is a match too"
    return blank.end()


def _value(name: str, text: str) -> Any:
    """The value of an attribute; most are texts without an escape."""
    if name not in _TEXTS and not _EXTENSION.fullmatch(name):
        raise InvalidEvent(
            f"{_shown(name)} is no field of an event: expected are {', '.join(_TEXTS)} and data, and for an extension of "
            f"your own a name of 1 to {HEADER_NAME_CHARACTERS_MAX} lower-case letters and digits"
        )
    if text[0] == '"':
        return text[1:-1] if "\\" not in text else json.loads(text)
    if name in _TEXTS:
        raise InvalidEvent(f'{name} is {_kind(text)}: expected is a string such as "{_TEXTS[name]}"')
    if text in ("true", "false"):
        return text == "true"
    if not _INTEGER.fullmatch(text):
        raise InvalidEvent(
            f"{name} is {_kind(text)}: an extension is a string, a whole number of 32 bits, true or false; put the rest "
            "into data"
        )
    return int(text)


def _kind(text: str) -> str:
    """What a value that is no string is, in the words of JSON."""
    short = text if len(text) <= 40 else f"{text[:40]}…"
    return {"{": "an object", "[": "an array", "t": "true", "f": "false"}.get(text[0], f"the number {short}")


def _shown(name: str) -> str:
    return name if name in _FIELDS or _EXTENSION.fullmatch(name) else repr(name[:80])


def _payload(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise InvalidEvent(
            f"data_base64 is not base64 ({error}): expected are bytes in base64 with their padding, such as aGVsbG8="
        ) from None


def _time(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        wrong = "is no time" if found is None else "has no time zone"
        raise InvalidEvent(
            f"time {value[:40]!r} {wrong}: expected is a time of RFC 3339 with its zone, such as 2026-03-01T12:00:00Z"
        )
    return found
