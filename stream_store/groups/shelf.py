"""What a member has read of the stream: rows near the group's head, ready to be claimed.

Reading happens outside the group's lock. Claims then are decided by IDs and subjects alone.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import EventsTrimmed, StreamCorrupt, TailLost, Trimmed
from stream_store.cloudevents import TypeFilter, rows_to_lines
from stream_store.groups.decision import Window
from stream_store.groups.state import NO_KEY, Order, Preference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stream_store.groups.state import Settings
    from stream_store.stream import Stream

READ_AHEAD_ROWS = 10_000
READ_AHEAD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Events, and the ID that each of them follows in the stream."""

    rows: pa.RecordBatch
    previous: pa.Int64Array

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def batch(self) -> EventBatch:
        """The events as one batch. Between two of them there may be others than dead ones."""
        return EventBatch(int(self.previous[0].as_py()), self.rows)

    def lines(self, source: str) -> dict[int, str]:
        """Each event as a CloudEvents line, by its ID."""
        lines = [line for column in rows_to_lines(self.rows, self.previous, source) for line in column.to_pylist()]
        return dict(zip(self.rows.column(0).to_pylist(), (line.rstrip("\n") for line in lines), strict=True))


def key_of(subject: str | None) -> int:
    """A subject as a number. Two that share one merely wait for each other."""
    return NO_KEY if subject is None else crc32(subject.encode(errors="surrogatepass")) + 1


class Shelf:
    """The rows around a group's head, read ahead in one piece."""

    def __init__(self, stream: Stream, group_name: str, settings: Settings) -> None:
        self._stream = stream
        self._group_name = group_name
        self._settings = settings
        self._types = TypeFilter(settings.types) if settings.types else None
        self._window = Window(0, 0)
        self._rows = _empty()

    def window(self, head: int, wanted: int) -> Window:
        """All there is to know for a claim above `head`, read now unless it is on the shelf."""
        if self._settings.preference is Preference.LATEST:
            self._read(max(head, self._stream.tail() - wanted, self._stream.info().trimmed_through), wanted)
        elif not self._window.reaches_past(head):
            self._read(head, wanted)
        return self._window

    def find(self, ids: Sequence[int]) -> Rows:
        """The rows of these events: from the shelf, or from the stream."""
        if self._window.after < ids[0] and ids[-1] <= self._window.through:
            return _chosen(self._rows, self._window.ids, ids, self._stream.url)
        try:
            # Only what is wanted is kept: between the first and the last there may be the whole stream.
            wanted = pa.array(ids, pa.int64())
            parts = [_only(batch, wanted) for batch in self._stream.read(ids[0] - 1, ids[-1])]
        except Trimmed as error:
            raise self._trimmed(ids[0] - 1, error) from error
        found = _joined([part for part in parts if len(part)])
        return _chosen(found, found.rows.column(0).to_pylist(), ids, self._stream.url)

    def _read(self, head: int, wanted: int) -> None:
        # Before the events: what is appended meanwhile is not said to be missing.
        tail = self._stream.tail()
        if tail < head:
            raise TailLost(
                f"group {self._group_name} stands at ID {head}, but {self._stream.url} ends at ID {tail}: the stream went "
                "back in time; restore it, then `outbox group reset` to where the group should go on"
            )
        batches: list[EventBatch] = []
        rows = size_bytes = 0
        through = tail
        try:
            for batch in self._stream.read(head, tail):
                batches.append(batch)
                rows += len(batch)
                size_bytes += batch.rows.nbytes
                if rows >= max(wanted, READ_AHEAD_ROWS) or size_bytes >= READ_AHEAD_BYTES:
                    through = batch.last_id
                    break
        except Trimmed as error:
            raise self._trimmed(head, error) from error
        self._rows = self._filtered(batches)
        self._window = Window(head, through, self._rows.rows.column(0).to_pylist(), self._keys(self._rows))

    def _keys(self, rows: Rows) -> Sequence[int]:
        if self._settings.order is not Order.SUBJECT:
            return ()
        encoded = rows.rows.column("subject").dictionary_encode()
        keys = [key_of(subject) for subject in encoded.dictionary.to_pylist()]
        return [NO_KEY if index is None else keys[index] for index in encoded.indices.to_pylist()]

    def _filtered(self, batches: list[EventBatch]) -> Rows:
        found = _joined([Rows(each.rows, _previous(each)) for each in batches])
        if self._types is None or not len(found):
            return found
        return Rows(*self._types.choose(found.rows, found.previous))

    def _trimmed(self, after: int, error: Exception) -> EventsTrimmed:
        return EventsTrimmed(
            f"group {self._group_name} needs what follows ID {after}, and {error}: `outbox group reset --to earliest` "
            "goes on with what is left, which skips the events in between"
        )


def _chosen(found: Rows, known: Sequence[int], ids: Sequence[int], url: str) -> Rows:
    first = bisect_left(known, ids[0])
    last = bisect_left(known, ids[-1]) + 1
    if last - first == len(ids):
        chosen = Rows(found.rows.slice(first, last - first), found.previous.slice(first, last - first))
    else:
        wanted = set(ids)
        at: Any = pa.array([position for position in range(first, min(last, len(known))) if known[position] in wanted])
        chosen = Rows(found.rows.take(at.cast(pa.int64())), found.previous.take(at.cast(pa.int64())))
    if chosen.rows.column(0).to_pylist() != list(ids):
        missing = sorted(set(ids) - set(chosen.rows.column(0).to_pylist()))
        raise StreamCorrupt(
            f"{url} no longer has event {missing[0]}, which it had when a group took it: look at the stream"
        )
    return chosen


def _previous(batch: EventBatch) -> pa.Int64Array:
    return pa.concat_arrays([pa.array([batch.prev_id], pa.int64()), batch.ids[:-1]])


def _only(batch: EventBatch, wanted: pa.Int64Array) -> Rows:
    """The events of a batch that have one of these IDs, copied: a slice would keep the whole batch."""
    at = pc.indices_nonzero(pc.is_in(batch.ids, value_set=wanted))
    return Rows(batch.rows.take(at), _previous(batch).take(at))


def _joined(parts: Sequence[Rows]) -> Rows:
    if not parts:
        return _empty()
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches([part.rows for part in parts])
    return Rows(rows, pa.concat_arrays([part.previous for part in parts]))


def _empty() -> Rows:
    return Rows(pa.RecordBatch.from_pylist([], schema=SCHEMA), pa.array([], pa.int64()))
