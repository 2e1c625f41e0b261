"""JSON lines as events: what `outbox flux` reads, and `outbox tap` writes.

A line is one object in CloudEvents' JSON format. `id`, `source`, `specversion` and `previd`
are passed over: the out table gives the event an ID of its own, and its source is the
outbox's. The text of `data` is kept byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outbox.errors import InvalidEvent
from outbox.event import JSON_CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSED_OVER = frozenset(("id", "source", "specversion", "previd"))
_FIELDS = frozenset(("type", "subject", "datacontenttype", "time", "data", "data_base64"))

_BLANK = re.compile(r"[ \t\r\n]*")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


# Numbers stay text: of most members only the place matters, and an int of more than 4300
# digits would be an error.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str, parse_float=str)


def parse_line(line: bytes) -> dict[str, Any]:
    """The arguments of `emit` that a line stands for, or `InvalidEvent` with the reason."""
    try:
        members = _members(line.decode())
    except InvalidEvent:
        raise
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"it is not UTF-8 at byte {error.start}: convert it first, for example with iconv") from None
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise InvalidEvent("it is nested too deeply for Python's json module: make it flatter") from None
    except ValueError as error:
        raise InvalidEvent(f"it is not JSON: {error}") from None
    return _arguments(members)


def _arguments(members: dict[str, str]) -> dict[str, Any]:
    if "type" not in members:
        raise InvalidEvent("it has no type: every event needs one, such as order.paid")
    if "data" in members and "data_base64" in members:
        raise InvalidEvent("it has both data and data_base64: give one of them, or none for a tombstone")
    # CloudEvents: an attribute that is null is not set.
    plain = {
        name: _value(text)
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
            raise InvalidEvent(f"it has {name!r} twice")
        found[name] = value
    return found


def _spelled(text: str) -> Iterator[tuple[str, str]]:
    opening = _OPENING.match(text)
    if opening is None:
        raise InvalidEvent("it is not a JSON object: one event a line, in CloudEvents' JSON format")
    position = opening.end()
    mark = opening[1] or ","
    while mark == ",":
        member = _MEMBER.match(text, position)
        if member is None:
            raise _missing_name(text, _skip(text, position))
        start = member.end()
        if member["simple"] is None:
            _, position = _DECODER.raw_decode(text, start)
            value = text[start:position]
        else:
            position, value = start, member["simple"]
        name = member["name"]
        yield (json.loads(f'"{name}"') if "\\" in name else name), value
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


def _missing_name(text: str, position: int) -> json.JSONDecodeError:
    if text[position : position + 1] != '"':
        return json.JSONDecodeError("a name in double quotes is missing", text, position)
    _, end = _DECODER.raw_decode(text, position)  # raises when the name itself is wrong
    return json.JSONDecodeError("':' is missing", text, _skip(text, end))


def _skip(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    assert blank is not None, "nothing at all is a match too"
    return blank.end()


def _value(text: str) -> Any:
    """The value of a member; most are texts without an escape."""
    return text[1:-1] if text[0] == '"' and "\\" not in text else json.loads(text)


def _payload(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidEvent(f"data_base64 is not base64: {error}") from None


def _time(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidEvent(f"time {value!r} is not a time of RFC 3339, such as 2026-03-01T12:00:00Z") from None
