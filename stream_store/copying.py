"""Copying a stream to another URL: the same IDs, the same chain, the same lost ranges.

The target's tail is the cursor, so a copy that was killed goes on where it was, and a second
copy of a stream that has grown brings only what is new. The target begins where the source
does, and is bound to the same outbox; known readers are not copied, they read the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.errors import StaleTail, StreamCorrupt, Trimmed, WrongPartner
from stream_store.gathering import gather
from stream_store.outcome import first_difference
from stream_store.stream import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox.batch import EventBatch
    from stream_store.stream import Stream, StreamInfo

    Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did; the fields are a contract of `--json`."""

    source: str
    target: str
    # The target's tail before and after.
    after: int
    through: int
    events: int
    lost_ids: int


def copy(source: Stream, target: Stream, tell: Tell | None = None) -> Copied:
    """Bring the target to the source's tail as it is now."""
    there, here = source.info(), target.info()
    _require_copy(source, there, target, here)
    if _is_unused(here) and (there.trimmed_through or there.compacted):
        target.begin(there.trimmed_through, compacted=there.compacted)
    if there.outbox_id is not None:
        target.bind(there.outbox_id, there.source or "")
    lost = lost_from(there)
    began = at = target.tail()
    events = lost_ids = 0
    for batch in gather(source.read(at, there.tail)):
        while batch.prev_id != at and at in lost:
            lost_ids += lost[at] - at
            target.lose(lost[at])
            at = lost[at]
        if batch.prev_id != at:
            raise StreamCorrupt(
                f"{source.url}: event {batch.first_id} follows ID {batch.prev_id}, what was read before it ends at {at}: "
                "run `outbox stream check`"
            )
        append(target, batch)
        at = batch.last_id
        events += len(batch)
        if tell is not None:
            tell(at - began, there.tail - began)
    while at in lost and lost[at] <= there.tail:
        lost_ids += lost[at] - at
        target.lose(lost[at])
        at = lost[at]
    return Copied(source.url, target.url, began, target.tail(), events, lost_ids)


def append(target: Stream, batch: EventBatch) -> None:
    """Append what must follow the tail; somebody else writes there when it does not."""
    answer = target.append(batch)
    if answer.outcome is not Outcome.APPENDED:
        raise StaleTail(
            f"{target.url} answers {answer.outcome.value} for the events {batch.first_id} to {batch.last_id}: somebody else "
            f"writes there, it ends at ID {answer.tail} now; run the command again when it is alone"
        )


def lost_from(info: StreamInfo) -> dict[int, int]:
    """The lost ranges that a stream still has, by the ID behind which they begin."""
    begin = info.trimmed_through
    return {max(after, begin): through for after, through in info.lost if through > begin}


def _is_unused(info: StreamInfo) -> bool:
    return not (info.tail or info.trimmed_through or info.lost or info.compacted)


def _require_copy(source: Stream, there: StreamInfo, target: Stream, here: StreamInfo) -> None:
    """Refuse a target that is not the beginning of the source."""
    if there.stream_id == here.stream_id:
        raise WrongPartner(
            f"{target.url} is the very stream {there.stream_id} that is to be copied: name another place"
        )
    if _is_unused(here):
        return
    reason = None
    if here.outbox_id not in (None, there.outbox_id):
        reason = f"belongs to outbox {here.outbox_id}, not to {there.outbox_id}"
    elif here.compacted != there.compacted:
        reason = "was made by compaction" if here.compacted else "is no compacted stream, and what is copied is one"
    elif here.tail > there.tail:
        reason = f"goes through ID {here.tail}, what is copied only through {there.tail}"
    elif here.tail < there.trimmed_through:
        raise Trimmed(
            f"{target.url} ends at ID {here.tail}, and {source.url} was trimmed through {there.trimmed_through}: what lies "
            "between is gone; copy into a new place"
        )
    elif here.tail > max(here.trimmed_through, there.trimmed_through) and not _ends_alike(source, there, target, here):
        reason = f"has another event at its end, ID {here.tail}"
    if reason is not None:
        raise WrongPartner(f"{target.url} {reason}: it is no copy of {source.url}; name a new place")


def _ends_alike(source: Stream, there: StreamInfo, target: Stream, here: StreamInfo) -> bool:
    """Whether the target's last event, or lost range, is the source's, too."""
    ended_by_loss = any(through == here.tail for _, through in here.lost)
    if ended_by_loss or any(through == here.tail for _, through in there.lost):
        return ended_by_loss and here.tail in lost_from(there).values()
    ours, theirs = (_event(stream, here.tail) for stream in (target, source))
    if ours is None or theirs is None:
        return False
    # One of them may have been redacted since.
    return first_difference(ours, theirs) is None or first_difference(theirs, ours) is None


def _event(stream: Stream, event_id: int) -> pa.Table | None:
    batches = list(stream.read(event_id - 1, event_id))
    return pa.Table.from_batches([batches[0].rows]) if batches else None
