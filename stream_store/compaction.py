"""Compaction: the latest event of each subject, through an ID, into a new stream.

The stream itself stays as it is. The new one keeps the IDs; what was left out is jumped over by
its chain. It is marked compacted: no relay appends to it, and consumers go on in the live stream
behind its tail (snapshot.py). So its last event is the last of the range, whatever it is.

Two passes: the first keeps the last ID of each subject, nothing else, in memory; the second
copies these events. The new stream's tail is the cursor, and the ID through which it is to go is
kept in it as a known reader, so that a compaction that was killed ends as the one that it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import EventBatch
from outbox.errors import UsageError, WrongPartner
from stream_store.copying import append
from stream_store.gathering import GATHER_BYTES, GATHER_ROWS
from stream_store.readers import GROUP
from stream_store.redaction import between, id_set, is_redacted
from stream_store.snapshot import COMPACTION, unfinished_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stream_store.stream import Readable, Stream, StreamInfo

    Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did; the fields are a contract of `--json`."""

    source: str
    target: str
    through: int
    subjects: int
    # Of the whole new stream.
    tail: int
    events_read: int
    events_written: int


def compact(
    source: Readable,
    target: Stream,
    *,
    through: int | None = None,
    keep_tombstones: bool = False,
    tell: Tell | None = None,
) -> Compacted:
    """Make `target`, or go on making it. `through` is the source's tail by default."""
    there = source.info()
    wanted = source.tail() if through is None else min(through, source.tail())
    if wanted <= there.trimmed_through:
        raise UsageError(f"{there.url} holds no event through ID {wanted}: there is nothing to compact")
    through = _begin(there, target, wanted, asked=through is not None)
    chosen = _Chosen(source, there.trimmed_through, through, tell)
    written = 0
    for batch in _batched(chosen.kept(target.tail(), keep_tombstones=keep_tombstones, tell=tell), target.tail()):
        append(target, batch)
        written += len(batch)
    target.forget(GROUP, COMPACTION)
    return Compacted(there.url, target.url, through, chosen.subjects, target.tail(), chosen.events, written)


def _begin(there: StreamInfo, target: Stream, wanted: int, *, asked: bool) -> int:
    """Make the target ready, or see that it is one of ours that was not finished; through which ID it goes."""
    here = target.info()
    if not (here.tail or here.trimmed_through or here.lost or here.compacted):
        # Before it is marked: a snapshot that was begun and does not know how far would be taken for a finished one.
        target.report(GROUP, COMPACTION, wanted)
        target.begin(there.trimmed_through, compacted=True)
        if there.outbox_id is not None:
            target.bind(there.outbox_id, there.source or "")
        return wanted
    unfinished = unfinished_through(target)
    if not here.compacted or here.outbox_id not in (None, there.outbox_id):
        raise WrongPartner(f"{target.url} holds something else than a snapshot of {there.url}: name a new place")
    if unfinished is None:
        raise UsageError(
            f"{target.url} is a finished snapshot, through ID {here.tail}: name a new place for another one"
        )
    if here.trimmed_through != there.trimmed_through:
        raise WrongPartner(
            f"{target.url} was begun when {there.url} began behind ID {here.trimmed_through}, and now it begins behind "
            f"{there.trimmed_through}: name a new place"
        )
    if asked and wanted != unfinished:
        raise UsageError(
            f"{target.url} was begun as a snapshot through ID {unfinished}, not {wanted}: name a new place"
        )
    if there.outbox_id is not None:
        target.bind(there.outbox_id, there.source or "")
    return unfinished


class _Chosen:
    """The last ID of each subject in a range, found by reading it once."""

    def __init__(self, source: Readable, after: int, through: int, tell: Tell | None) -> None:
        self._source = source
        self._through = through
        self._after = after
        self._last_id = after
        self.events = 0
        last: dict[str, int] = {}
        for batch in source.read(after, through):
            # Later ones of a batch replace earlier ones: IDs ascend.
            last.update(zip(batch.rows.column("subject").to_pylist(), batch.ids.to_pylist(), strict=True))
            self.events += len(batch)
            self._last_id = batch.last_id
            self._say(tell, "looking for the latest", batch.last_id)
        last.pop(None, None)  # type: ignore[call-overload]
        self.subjects = len(last)
        self._ids = id_set(last.values())

    def kept(self, after: int, *, keep_tombstones: bool, tell: Tell | None) -> Iterator[pa.RecordBatch]:
        """The chosen events above an ID."""
        for batch in self._source.read(after, self._through):
            rows = batch.rows
            latest = pc.is_in(rows.column("id"), value_set=between(self._ids, batch.prev_id, batch.last_id))
            if not keep_tombstones:
                latest = pc.and_not(latest, _is_tombstone(rows))
            wanted = pc.or_(latest, pc.is_null(rows.column("subject")))
            wanted = pc.or_(wanted, pc.equal(rows.column("id"), self._last_id))
            self._say(tell, "writing the snapshot", batch.last_id)
            chosen = rows.filter(wanted)
            if chosen.num_rows:
                yield chosen

    def _say(self, tell: Tell | None, what: str, at: int) -> None:
        if tell is not None:
            tell(what, at - self._after, self._through - self._after)


def _is_tombstone(rows: pa.RecordBatch) -> pa.BooleanArray:
    blank = pc.and_(pc.is_null(rows.column("data")), pc.is_null(rows.column("data_bytes")))
    return pc.and_not(blank, is_redacted(rows))


def _batched(parts: Iterator[pa.RecordBatch], tail: int) -> Iterator[EventBatch]:
    """Rows from many batches, a few of each, as batches that follow each other."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in parts:
        held.append(part)
        rows += part.num_rows
        size_bytes += part.nbytes
        if rows >= GATHER_ROWS or size_bytes >= GATHER_BYTES:
            batch = EventBatch(tail, pa.concat_batches(held))
            yield batch
            tail = batch.last_id
            held, rows, size_bytes = [], 0, 0
    if held:
        yield EventBatch(tail, pa.concat_batches(held))
