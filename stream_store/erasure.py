"""Erasing what a stream holds of a subject, for those who ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stream_store.redaction import is_redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stream_store.stream import Stream

    Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """The events of some subjects: those that have content, and how many have none any more."""

    ids: tuple[int, ...]
    redacted: int

    @property
    def events(self) -> int:
        return len(self.ids) + self.redacted


def find_subjects(stream: Stream, subjects: Sequence[str], tell: Tell | None = None) -> Found:
    """Read the whole stream for the events of these subjects."""
    wanted = pa.array(sorted(set(subjects)), pa.string())
    begin, tail = stream.info().trimmed_through, stream.tail()
    ids: list[int] = []
    redacted = 0
    for batch in stream.read(begin, tail):
        rows = batch.rows.filter(pc.is_in(batch.rows.column("subject"), value_set=wanted))
        if rows.num_rows:
            gone = is_redacted(rows)
            redacted += int(pc.sum(gone).as_py())
            ids += rows.column("id").filter(pc.invert(gone)).to_pylist()
        if tell is not None:
            tell(batch.last_id - begin, tail - begin)
    return Found(tuple(ids), redacted)
