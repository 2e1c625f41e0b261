"""The info hash: what a stream says of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.errors import StreamCorrupt, StreamUnavailable, Unsupported, WrongPartner

if TYPE_CHECKING:
    from stream_store.redis.address import Keys
    from stream_store.redis.link import Link

FORMAT = "1"


@dataclass(frozen=True, slots=True)
class Facts:
    """The hash, and whether the events are there at all."""

    stream_id: str
    outbox_id: str | None
    source: str | None
    # As the hash has it; see `tail`.
    recorded_tail: int
    trimmed_through: int
    lost: tuple[tuple[int, int], ...]
    compacted: bool
    has_events: bool
    unit_bytes: int
    unscrubbed: bool
    # The most that the server has had, or what a URL has said since.
    replicas: int

    @property
    def tail(self) -> int:
        """Events that were deleted or evicted as a whole are gone, whatever the hash says."""
        return self.recorded_tail if self.has_events else 0

    @property
    def lost_json(self) -> str:
        return encode_lost(self.lost)

    def is_lost(self, after: int, through: int) -> bool:
        """Whether every ID above `after` through `through` is recorded as lost."""
        for start, end in sorted(self.lost):
            if start <= after < end:
                after = end
        return after >= through


def encode_lost(lost: tuple[tuple[int, int], ...]) -> str:
    return json.dumps([list(span) for span in lost]) if lost else ""


def read_facts(link: Link, keys: Keys, url: str, stream_id: str | None) -> Facts | None:
    """The facts now; None when there is no stream. `stream_id` is the one that was there when it was opened."""
    words, exists = link.calls([("HGETALL", keys.info), ("EXISTS", keys.events)])
    found = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    if "stream_id" not in found:
        if stream_id is not None:
            raise StreamUnavailable(f"{url} was stream {stream_id} and has been removed from the server meanwhile")
        return None
    if stream_id not in (None, found["stream_id"]):
        raise WrongPartner(f"{url} was stream {stream_id} when it was opened and is {found['stream_id']} now")
    if found.get("format") != FORMAT:
        raise Unsupported(f"{url} has format {found.get('format')}, this program knows {FORMAT}: use a newer one")
    try:
        return Facts(
            stream_id=found["stream_id"],
            outbox_id=found.get("outbox_id") or None,
            source=found.get("source") or None,
            recorded_tail=int(found["tail"]),
            trimmed_through=int(found["trimmed_through"]),
            lost=tuple((int(after), int(through)) for after, through in json.loads(found.get("lost") or "[]")),
            compacted=found.get("compacted") == "1",
            has_events=exists == 1,
            unit_bytes=int(found.get("unit_bytes", "0")),
            unscrubbed=found.get("unscrubbed") == "1",
            replicas=int(found.get("replicas") or "0"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StreamCorrupt(f"{url}: the hash {keys.info} cannot be read ({error}): somebody has changed it") from error
