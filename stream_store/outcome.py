"""The append outcomes, decided: a pure function of the batch and what the stream holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stream_store.stream import Appended, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox.batch import EventBatch


def judge(
    batch: EventBatch,
    tail: int,
    trimmed_through: int,
    held: Callable[[int, int], pa.Table],
) -> Appended:
    """Decide what an append of `batch` onto a stream with this tail is.

    `held(first, last)` returns the stream's rows with first <= id <= last; it is called
    only when the batch lies wholly at or below the tail.
    """
    if batch.prev_id == tail:
        return Appended(Outcome.APPENDED, batch.last_id)
    if batch.prev_id > tail:
        return Appended(Outcome.TAIL_LOST, tail, batch.first_id)
    if batch.last_id > tail:
        return Appended(Outcome.STALE, tail)
    if batch.first_id <= trimmed_through:
        return Appended(Outcome.LATE, tail, batch.first_id)
    ours = pa.Table.from_batches([batch.rows])
    theirs = held(batch.first_id, batch.last_id)
    missing = ours.filter(pc.invert(pc.is_in(ours["id"], value_set=theirs["id"].combine_chunks())))
    if missing.num_rows:
        return Appended(Outcome.LATE, tail, missing["id"][0].as_py())
    theirs = theirs.filter(pc.is_in(theirs["id"], value_set=ours["id"].combine_chunks()))
    if not ours.equals(theirs):
        return Appended(Outcome.CONFLICT, tail, _first_difference(ours, theirs))
    return Appended(Outcome.DUPLICATE, tail)


def _first_difference(ours: pa.Table, theirs: pa.Table) -> int:
    """The lowest ID whose content differs between two tables with the same IDs."""
    differs = [
        position
        for position in range(ours.num_rows)
        if not ours.slice(position, 1).equals(theirs.slice(position, 1))
    ]
    return int(ours["id"][differs[0]].as_py())
