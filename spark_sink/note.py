"""What each of our commits says of itself, in the commit's `userMetadata`.

`DESCRIBE HISTORY` shows it, so a person can follow the table's way through the stream, and
readers that cannot see Delta's transaction markers find the bookmark in it.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Notes of these roles say nothing of how far the table has come, nor that anybody has looked at
# what others did to it before.
ASIDE = frozenset({"repair", "redrive", "schema"})


# A property of the table: the name that its bookmark has got since it was put back by public means.
GENERATION = "outbox.generation"


def app_id_of(outbox_id: str, table_id: str, properties: Mapping[str, str], role: str = "main") -> str:
    """The name of a bookmark: whose, of which table (not of a clone of it), and of what in it."""
    return "/".join(filter(None, ("outbox", outbox_id, table_id, role, properties.get(GENERATION))))


def has_same_owner(app_id: str, other: str) -> bool:
    """Whether two names of bookmarks differ in their generation at most."""
    return app_id.split("/")[:4] == other.split("/")[:4]


def own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Note:
    """Events with after < id <= through are in this commit; `bookmark` is what the table has reached."""

    app_id: str
    bookmark: int
    after: int
    through: int
    # `batch`, `repair` (a range written anew), `rebuild`, `reset` (the bookmark moved back),
    # `redrive`, `accept` (a person has looked at what others did), `create`, `schema`.
    role: str = "batch"
    rows: int | None = None
    # The event that the first of the range follows.
    prev_id: int | None = None
    # The version of the table that was looked at before: what came between is judged with it.
    seen: int | None = None
    # Of a repair in several commits, but for its last: the whole range that was asked for.
    part: str | None = None
    writer: str = field(default_factory=own_name)

    def encode(self) -> str:
        return json.dumps({"outbox": asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> Note | None:
        """The note of a commit; None when it is not one of ours."""
        if not text or '"outbox"' not in text:
            return None
        try:
            found = json.loads(text)["outbox"]
            return cls(**{name: found.get(name) for name in cls.__slots__})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def is_aside(self) -> bool:
        return self.role in ASIDE
