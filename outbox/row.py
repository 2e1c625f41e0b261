"""The row that an event becomes, and every rule that an event has to keep.

Whatever is wrong is found here, before anything is written. The rules are those of the
strictest database (MySQL cuts a text that is too long, PostgreSQL stores no NUL, none
stores half a surrogate pair), so that an event which one database takes, all take.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from outbox.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TYPE_CHARACTERS_MAX = 255
SUBJECT_CHARACTERS_MAX = 1024
CONTENT_TYPE_CHARACTERS_MAX = 255
HEADER_NAME_CHARACTERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
DATA_BYTES_MAX = 1024 * 1024
# What a stream says of an event whose content was erased (stream_store.redaction).
REDACTED_CONTENT_TYPE = "application/vnd.outbox.redacted"

# The event's own attributes: a header must not give one of them a second time.
RESERVED_HEADERS = frozenset(
    ("id", "source", "specversion", "type", "subject", "time", "datacontenttype", "data", "data_base64", "previd")
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;[ -~]*)?")
_HEADER_NAME = re.compile(r"[a-z0-9]+")
_CONTAINERS = (dict, list, tuple)
# What json.dumps makes of a key that is a number, a bool or None; looking for it in the text
# is faster than looking at every key.
_COERCED_KEY = re.compile(r'"(?:-?[0-9][-+.e0-9]*|true|false|null)":')
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Row(NamedTuple):
    """The values of the out table's columns, in the order of the INSERT's parameters."""

    type: str
    subject: str | None
    data: str | None
    data_bytes: bytes | None
    datacontenttype: str | None
    headers: str | None
    time: datetime | None


class Words(NamedTuple):
    """What the errors call the things that whoever gave the event calls so."""

    data_json: str = "data_json"
    data_bytes: str = "data_bytes"
    max_data_bytes: str = "Outbox(max_data_bytes=…)"


class Encoder:
    """Makes rows of events, with one outbox's limits and JSON rule."""

    def __init__(
        self,
        max_data_bytes: int = DATA_BYTES_MAX,
        json_default: Callable[[Any], Any] | None = None,
        words: Words = Words(),  # noqa: B008 - never changes
    ) -> None:
        self._max_data_bytes = max_data_bytes
        self._words = words
        self._to_json = json.JSONEncoder(
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=None if json_default is None else _with_checked_keys(json_default),
        ).encode

    def encode(
        self,
        type: str,
        subject: str | None = None,
        data: Any = None,
        data_json: str | None = None,
        data_bytes: bytes | None = None,
        datacontenttype: str | None = None,
        headers: Mapping[str, str | int | bool] | None = None,
        time: datetime | None = None,
    ) -> Row:
        """The row of an event, or `InvalidEvent` that names the field and what to do."""
        if (data is not None) + (data_json is not None) + (data_bytes is not None) > 1:
            raise InvalidEvent(
                "data, data_json and data_bytes exclude each other: give one of them, or none for a tombstone"
            )
        if data is not None:
            data_json = self._encode_data(data)
        elif data_json is not None:
            data_json = self._check_data_json(data_json)
        elif data_bytes is not None:
            data_bytes = self._check_data_bytes(data_bytes, datacontenttype)
        return Row(
            _check_type(type) if type.__class__ is str else _check_type_of_subclass(type),
            None if subject is None else _check_subject(subject),
            data_json,
            data_bytes,
            None if datacontenttype is None else _check_content_type(datacontenttype),
            None if not headers else _encode_headers(headers),
            None if time is None else _to_utc(time),
        )

    def _encode_data(self, data: Any) -> str:
        try:
            text = self._to_json(data)
            if _COERCED_KEY.search(text):
                _check_keys(data)
        except RecursionError:
            raise InvalidEvent("data is nested too deeply for Python's json module: make it flatter") from None
        except InvalidEvent:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidEvent(_explain_data(error)) from error
        self._check_size("data", text)
        return text

    def _check_data_json(self, text: str) -> str:
        if not isinstance(text, str):
            raise InvalidEvent(f"data_json is {_kind(text)}, not JSON text: give a str, or pass a Python value as data")
        try:
            value = _SYNTAX.decode(text)
            if _ESCAPED_SURROGATE.search(text):
                # Syntactically JSON, but no consumer can write half a pair down again.
                _check_utf8(self._words.data_json, json.dumps(value, ensure_ascii=False))
        except InvalidEvent:
            raise
        except RecursionError:
            raise InvalidEvent("data_json is nested too deeply for Python's json module: make it flatter") from None
        except ValueError as error:
            raise InvalidEvent(
                f"data_json is not JSON: {error}; pass a Python value as data, binary as data_bytes"
            ) from None
        self._check_size(self._words.data_json, text)
        return str.__str__(text)

    def _check_data_bytes(self, payload: bytes, datacontenttype: str | None) -> bytes:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidEvent(f"data_bytes is {_kind(payload)}: give bytes, or pass a JSON value as data")
        if datacontenttype is None:
            raise InvalidEvent(
                f"{self._words.data_bytes} needs a datacontenttype that tells consumers how to read it, "
                "such as application/protobuf"
            )
        payload = bytes(payload)
        self._check_limit(self._words.data_bytes, len(payload))
        return payload

    def _check_size(self, name: str, text: str) -> None:
        # ASCII is the common case, and knowing it costs nothing.
        self._check_limit(name, len(text) if text.isascii() else len(_check_utf8(name, text)))

    def _check_limit(self, name: str, size_bytes: int) -> None:
        if size_bytes > self._max_data_bytes:
            raise InvalidEvent(
                f"{name} has {size_bytes:,} bytes, the limit is {self._max_data_bytes:,}: put it into an object store and "
                f"emit its address, or raise {self._words.max_data_bytes}"
            )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


# Numbers stay text: they are only looked at, and Python's int refuses 4300 digits.
_SYNTAX = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str, parse_float=str)


# An application has few types, so the check is made once for each.
@lru_cache(maxsize=1024)
def _check_type(name: str) -> str:
    if not name or len(name) > TYPE_CHARACTERS_MAX:
        raise InvalidEvent(f"type has {len(name)} characters, 1 to {TYPE_CHARACTERS_MAX} are allowed: {name[:40]!r}")
    if _CONTROL.search(name):
        raise InvalidEvent(
            f"type {name!r} has a control character in it: use letters, digits and dots, as in order.paid"
        )
    _check_utf8("type", name)
    return name


def _check_type_of_subclass(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidEvent(f"type is {_kind(name)}: give a str such as 'order.paid'")
    # A plain str: psycopg writes the *name* of a str-Enum's member, not its value.
    return _check_type(str.__str__(name))


def _check_subject(subject: Any) -> str:
    if not isinstance(subject, str):
        raise InvalidEvent(f"subject is {_kind(subject)}: give a str, such as str(order.id)")
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        raise InvalidEvent(
            f"subject has {len(subject)} characters, at most {SUBJECT_CHARACTERS_MAX} are allowed: "
            f"it names the entity, put the rest into data ({subject[:40]!r}…)"
        )
    if "\0" in subject:
        raise InvalidEvent(f"subject {subject[:80]!r} has a NUL character, which PostgreSQL cannot store: remove it")
    if not subject.isascii():
        _check_utf8("subject", subject)
    return subject if subject.__class__ is str else str.__str__(subject)


@lru_cache(maxsize=256)
def _check_media_type(name: str) -> str:
    if len(name) > CONTENT_TYPE_CHARACTERS_MAX or not _CONTENT_TYPE.fullmatch(name):
        raise InvalidEvent(
            f"datacontenttype {name[:80]!r} is not a media type of at most {CONTENT_TYPE_CHARACTERS_MAX} ASCII characters: "
            "write it like application/avro or text/csv; charset=utf-8"
        )
    if name.partition(";")[0].strip().lower() == REDACTED_CONTENT_TYPE:
        raise InvalidEvent(
            f"datacontenttype {REDACTED_CONTENT_TYPE} marks events whose content was erased from a stream: choose another"
        )
    return name


def _check_content_type(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidEvent(f"datacontenttype is {_kind(name)}: give a str such as 'application/avro'")
    return _check_media_type(str.__str__(name))


def _encode_headers(headers: Mapping[str, str | int | bool]) -> str:
    for name, value in headers.items():
        if not isinstance(name, str) or len(name) > HEADER_NAME_CHARACTERS_MAX or not _HEADER_NAME.fullmatch(name):
            raise InvalidEvent(
                f"headers: {str(name)[:80]!r} is not a CloudEvents attribute name: "
                f"use 1 to {HEADER_NAME_CHARACTERS_MAX} lower-case letters and digits"
            )
        if name in RESERVED_HEADERS:
            raise InvalidEvent(f"headers: {name} is an attribute of the event itself: choose another name")
        if isinstance(value, str):
            if _CONTROL.search(value):
                raise InvalidEvent(
                    f"headers: the value of {name} has a control character in it: remove it, or use data"
                )
            _check_utf8(f"headers: the value of {name}", value)
        elif not isinstance(value, int):
            raise InvalidEvent(f"headers: the value of {name} is {_kind(value)}: CloudEvents allows str, int and bool")
        elif not -(2**31) <= value < 2**31:
            raise InvalidEvent(f"headers: {name} = {value} is beyond CloudEvents' 32-bit integers: give it as a str")
    text = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    size_bytes = len(text.encode())
    if size_bytes > HEADERS_BYTES_MAX:
        raise InvalidEvent(
            f"headers have {size_bytes:,} bytes, the limit is {HEADERS_BYTES_MAX:,}: put content into data"
        )
    return text


def _to_utc(time: Any) -> datetime:
    if not isinstance(time, datetime):
        raise InvalidEvent(
            f"time is {_kind(time)}: give a datetime with a time zone, or leave it to the database's clock"
        )
    if time.utcoffset() is None:
        raise InvalidEvent(f"time {time.isoformat()} has no time zone: give one, such as datetime.now(UTC)")
    try:
        utc = time.astimezone(UTC)
    except OverflowError:
        utc = None
    # MySQL's datetime begins at the year 1000.
    if utc is None or utc.year < 1000:
        raise InvalidEvent(f"time {time.isoformat()} is outside the years 1000 to 9999 in UTC")
    return utc


def _check_keys(value: Any) -> None:
    """Refuse keys that json.dumps would turn into strings: 1 and "1" would become the same."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidEvent(
                        f"data has the key {key!r} of type {key.__class__.__name__}: JSON keys are str, make it one"
                    )
                if isinstance(item, _CONTAINERS):
                    rest.append(item)
        elif isinstance(value, list | tuple):
            rest.extend(item for item in value if isinstance(item, _CONTAINERS))


def _with_checked_keys(json_default: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        converted = json_default(value)
        _check_keys(converted)
        return converted

    return convert


def _check_utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(
            f"{name} has half a surrogate pair at position {error.start} ({text[error.start]!a}), which is no Unicode "
            "character: decode the text with the right encoding first"
        ) from None


def _explain_data(error: TypeError | ValueError) -> str:
    """What json.dumps meant, and what to do about it."""
    reason = str(error)
    if "Out of range float" in reason:
        return "data holds NaN or Infinity, which JSON does not have: use null or a string"
    if "Circular reference" in reason:
        return "data contains itself (a circular reference): emit a copy without the cycle"
    if "Exceeds the limit" in reason:
        return "data holds an integer of more than 4300 digits, which Python does not write: pass the JSON text as data_json"
    if "keys must be" in reason:
        return f"data has a key that is no str ({reason}): JSON keys are str, make it one"
    return f"data cannot become JSON: {reason}; convert it first, or give Outbox(json_default=…) a function that does"


def _kind(value: Any) -> str:
    return f"of type {value.__class__.__name__}"
