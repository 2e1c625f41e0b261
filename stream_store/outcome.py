"""The append outcomes, decided: a pure function of the batch and what the stream holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from outbox.errors import UsageError
from stream_store.redaction import CHANGED_COLUMNS, is_redacted
from stream_store.stream import Appended, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox.batch import EventBatch
    from stream_store.stream import StreamInfo


def judge(
    batch: EventBatch,
    tail: int,
    trimmed_through: int,
    held: Callable[[int, int], pa.Table],
) -> Appended:
    """Decide what an append of `batch` onto a stream with this tail is.

    `held(first, last)` returns the stream's rows with first <= id <= last; it is called
    only when the batch lies wholly at or below the tail. The stream may hold more rows in
    that range than the batch: some of them may have been deleted from the out table since.
    """
    if batch.prev_id == tail:
        return Appended(Outcome.APPENDED, batch.last_id)
    if batch.prev_id > tail:
        return Appended(Outcome.TAIL_LOST, tail, batch.first_id)
    if batch.last_id > tail:
        return Appended(Outcome.STALE, tail)
    if batch.first_id <= trimmed_through:
        return Appended(Outcome.LATE, tail, batch.first_id)
    return _compare(batch, tail, held(batch.first_id, batch.last_id))


def _compare(batch: EventBatch, tail: int, theirs: pa.Table) -> Appended:
    """DUPLICATE, unless the stream misses a row of the batch or holds another in its place."""
    ours = pa.Table.from_batches([batch.rows])
    if not ours["id"].equals(theirs["id"]):
        missing = pc.index(pc.is_in(ours["id"], value_set=theirs["id"].combine_chunks()), False).as_py()
        if missing >= 0:
            return Appended(Outcome.LATE, tail, ours["id"][missing].as_py())
        theirs = theirs.filter(pc.is_in(theirs["id"], value_set=ours["id"].combine_chunks()))
    conflict = first_difference(ours, theirs)
    if conflict is not None:
        return Appended(Outcome.CONFLICT, tail, ours["id"][conflict].as_py())
    return Appended(Outcome.DUPLICATE, tail)


def first_difference(ours: pa.Table, theirs: pa.Table) -> int | None:
    """The first row whose content differs between two tables of equal length, or None."""
    at = pc.index(differences(ours, theirs), True).as_py()
    return None if at < 0 else int(at)


def differences(ours: pa.Table, theirs: pa.Table) -> pa.ChunkedArray:
    """True for each row whose content differs.

    Where the stream's row (`theirs`) was redacted, its content says nothing any more: a row that
    was kept in the out table is the same event when all the rest is equal.
    """
    result = pa.chunked_array([pa.repeat(False, ours.num_rows)])
    erased = None
    for name in ours.column_names:
        if ours[name].equals(theirs[name]):
            continue
        differs = _differs(ours[name], theirs[name])
        if name in CHANGED_COLUMNS:
            erased = is_redacted(theirs) if erased is None else erased
            differs = pc.and_not(differs, erased)
        result = pc.or_(result, differs)
    return result


def _differs(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> pa.ChunkedArray:
    """True where two values differ; NULL equals NULL and nothing else."""
    values = pc.fill_null(pc.not_equal(ours, theirs), False)
    return pc.or_(values, pc.xor(pc.is_null(ours), pc.is_null(theirs)))


def require_sound(batch: EventBatch) -> None:
    """Refuse a batch that no stream may hold: it would break every reader behind it."""
    if not batch.rows.schema.equals(SCHEMA):
        raise ValueError(f"a batch has the schema of outbox.batch.SCHEMA, not\n{batch.rows.schema}")
    for field in SCHEMA:
        if not field.nullable and batch.rows.column(field.name).null_count:
            raise ValueError(f"column {field.name} has a NULL in the batch {batch.first_id} to {batch.last_id}")
    ids = batch.ids
    if len(batch) > 1 and not pc.all(pc.less(ids[:-1], ids[1:])).as_py():
        raise ValueError(f"IDs do not strictly increase in the batch {batch.first_id} to {batch.last_id}")


def require_unused(info: StreamInfo) -> None:
    """Refuse to let a stream begin anew that has held something, or has begun once already."""
    if info.tail or info.trimmed_through or info.lost or info.compacted:
        raise UsageError(
            f"{info.url} is in use, through ID {info.tail}: only a stream that has never held anything can begin at "
            "another ID; name a new place"
        )
