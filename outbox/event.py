"""One event, for people who handle one: consumers, tests, a terminal.

Where events move in bulk they are an `EventBatch`. The names are those of CloudEvents 1.0.
"""

from __future__ import annotations

import base64
import decimal
import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outbox.batch import EventBatch

JSON_CONTENT_TYPE = "application/json"


@dataclass(frozen=True)
class Event:
    """An event as it stands in the out table or the stream.

    `data_json` is the stored JSON text, byte for byte; `data` is its value. With neither
    `data_json` nor `data_bytes` the event is a tombstone: its subject is gone.
    """

    id: int
    type: str
    subject: str | None = None
    data_json: str | None = field(default=None, kw_only=True)
    data_bytes: bytes | None = field(default=None, kw_only=True)
    datacontenttype: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    time: datetime | None = field(default=None, kw_only=True)
    source: str = field(default="/outbox", kw_only=True)
    prev_id: int | None = field(default=None, kw_only=True)

    @cached_property
    def data(self) -> Any:
        """The JSON value, parsed when it is first asked for; None also for a tombstone."""
        return None if self.data_json is None else parse_json(self.data_json)

    @property
    def is_tombstone(self) -> bool:
        return self.data_json is None and self.data_bytes is None

    def to_cloudevent(self) -> dict[str, Any]:
        """The event as an object of CloudEvents' JSON format.

        `previd`, the ID that this event follows, is an extension of ours. IDs are strings,
        as CloudEvents wants them, and because JSON numbers lose digits above 2^53.
        """
        attributes: dict[str, Any] = {
            "specversion": "1.0",
            "id": str(self.id),
            "source": self.source,
            "type": self.type,
        }
        if self.subject is not None:
            attributes["subject"] = self.subject
        if self.time is not None:
            attributes["time"] = rfc3339(self.time)
        if self.datacontenttype is not None:
            attributes["datacontenttype"] = self.datacontenttype
        elif self.data_json is not None:
            attributes["datacontenttype"] = JSON_CONTENT_TYPE
        if self.prev_id is not None:
            attributes["previd"] = str(self.prev_id)
        # The core attributes win: a header written by hand in SQL must not pose as one.
        attributes = {**self.headers, **attributes}
        if self.data_json is not None:
            attributes["data"] = self.data
        elif self.data_bytes is not None:
            attributes["data_base64"] = base64.b64encode(self.data_bytes).decode("ascii")
        return attributes


def events(batch: EventBatch, source: str = "/outbox") -> Iterator[Event]:
    """The events of a batch, one by one."""
    prev_id = batch.prev_id
    for row in batch.rows.to_pylist():
        row["headers"] = json.loads(row["headers"]) if row["headers"] else {}
        row["data_json"] = row.pop("data")
        yield Event(**row, source=source, prev_id=prev_id)
        prev_id = row["id"]


def parse_json(text: str) -> Any:
    """The value of a JSON text, of numbers with any count of digits too."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # Python refuses to make an int of more than 4300 digits; a Decimal keeps them all.
        return json.loads(text, parse_int=_int_or_decimal)


def _int_or_decimal(digits: str) -> int | decimal.Decimal:
    limit = sys.get_int_max_str_digits()
    return int(digits) if not limit or len(digits) <= limit else decimal.Decimal(digits)


def rfc3339(time: datetime) -> str:
    """UTC, to the microsecond, as CloudEvents and our SQLite column write it."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
