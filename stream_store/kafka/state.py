"""Who the stream is and where it ends: decided from the companion's last record and what the topic holds.

The record is written in the same transaction as each batch, so it is as old as the batch. It is a record of
a compacted topic, which Kafka keeps for ever; offsets committed with the transaction would do as well, if the
broker did not drop those of a group without members after a week (`offsets.retention.minutes`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from outbox.errors import StreamCorrupt, TailLost

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """What the companion's last record says."""

    stream_id: str
    outbox_id: str | None = None
    source: str | None = None
    # The stream begins behind this ID (`Stream.begin`).
    begin: int = 0
    compacted: bool = False
    lost: tuple[tuple[int, int], ...] = ()
    # The tail when this was written, and an offset that the topic reached with it.
    tail: int = 0
    end_offset: int = 0

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes | None, where: str) -> State:
        try:
            said: Mapping[str, object] = json.loads(value or b"")
            if said["format"] != FORMAT:
                raise StreamCorrupt(
                    f"{where} has format {said['format']}: a later version of this program has written it"
                )
            fields = {name: said[name] for name in cls.__slots__}
            lost = tuple((int(after), int(through)) for after, through in fields.pop("lost"))  # type: ignore[attr-defined]
            return cls(lost=lost, **fields)  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError) as error:
            raise StreamCorrupt(
                f"{where} cannot be understood ({error}): somebody else has written there. Let only relays write to it; "
                "see docs/stream-kafka.md for how to go on"
            ) from error

    def past_lost(self, reached: int) -> int:
        """The ID that the next event follows, when `reached` is the last one: lost ranges are jumped over."""
        for after, through in self.lost:
            if after <= reached < through:
                reached = through
        return reached

    def before_lost(self, follows: int) -> int:
        """The last ID that was not lost, at or before what an event follows."""
        for after, through in reversed(self.lost):
            if after < follows <= through:
                follows = after
        return follows

    def losing(self, tail: int, through: int) -> State:
        return replace(self, lost=(*self.lost, (tail, through)), tail=through)


class Place(NamedTuple):
    """Where an event stands."""

    id: int
    prev_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the topic shows to a reader of committed records: from `low` to before `end`."""

    low: int
    end: int
    # None when there is no event between the two; control records and aborted transactions may be.
    last: Place | None


def tail_of(seen: Seen, state: State, url: str) -> int:
    """Where the stream ends.

    The events themselves say it, while there are any: what the companion says may be more, when the topic has
    lost its end, and then the stream did go back in time.
    """
    if seen.last is not None:
        return state.past_lost(seen.last.id)
    if seen.low == 0:
        # Nothing was ever deleted, so there never was an event, or the topic was made anew.
        return state.past_lost(state.begin)
    if seen.end < state.end_offset:
        raise TailLost(
            f"{url} holds no event, and ends at offset {seen.end} though it reached {state.end_offset} with ID {state.tail}: the "
            "topic was truncated or made anew. Restore it, or relay into a new topic and run `outbox rebase`"
        )
    return state.tail


def require_kept(seen: Seen, state: State, url: str) -> None:
    """Refuse a topic that was made anew under a writer which went on: what was before is gone, though the tail is not.

    `seen` is to be younger than `state`; only then does the topic reach as far as the companion says.
    """
    if seen.last is not None and seen.end < state.end_offset and seen.last.id >= state.tail:
        raise TailLost(
            f"{url} ends with ID {seen.last.id} at offset {seen.end}, though it reached offset {state.end_offset} with ID "
            f"{state.tail}: the topic was made anew under its writer, and what it held is gone. Restore it, or relay into a new "
            "topic and run `outbox rebase`"
        )


def trimmed_of(seen: Seen, first: Place | None, state: State, url: str) -> int:
    """The ID through which events are no longer held, whoever has deleted them: we, or Kafka's retention."""
    if first is not None:
        # More than where the stream began also when the topic was made anew under a writer, which went on.
        return max(state.begin, state.before_lost(first.prev_id))
    return state.begin if seen.low == 0 else max(state.begin, state.before_lost(tail_of(seen, state, url)))
