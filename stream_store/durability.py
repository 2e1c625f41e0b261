"""How durable an event is when its append is acknowledged: the option `acks` of a stream URL.

| `acks` | an append is acknowledged when | a row is deleted when |
|---|---|---|
| `write` | the stream has it, perhaps in memory only | `settle` has made it durable |
| `majority` | it is durable, and more than half of the copies have it | the same |
| `all`, the default | it is durable, and every copy has it | the same |

One exception: a Redis server before 7.2 with `appendfsync everysec` has no way to ask for a sync, so an
append is acknowledged at every level up to a second or two before it is durable. Rows are deleted
through what `settle` answers there too.

Where a stream has one copy, `majority` and `all` are the same. Whatever the level, the relay
delivers exactly once: what a crash takes back is still in the out table and is appended again
under the same IDs.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Acks(Enum):
    """What an acknowledged append has behind it."""

    WRITE = "write"
    MAJORITY = "majority"
    ALL = "all"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Acks:
        """The level that a stream URL asks for; the strongest unless it says otherwise."""
        text = options.get("acks", cls.ALL.value)
        try:
            return cls(text.lower())
        except ValueError:
            known = ", ".join(level.value for level in cls)
            raise UsageError(f"acks={text} in the stream URL: the levels are {known}") from None

    def replicas_needed(self, replicas: int) -> int:
        """How many of a primary's replicas must have an event, the primary itself being one copy more."""
        if self is Acks.WRITE:
            return 0
        return replicas if self is Acks.ALL else (replicas + 1) // 2
