"""Comparing the out table with its stream, row by row but not in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from stream_store.outcome import differences
from stream_store.redaction import is_redacted

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.source import Source
    from stream_store.stream import Stream

# IDs that are named one by one; all are counted.
NAMED_IDS_MAX = 100


@dataclass
class Found:
    """IDs of one kind: how many, and the first of them by name."""

    count: int = 0
    ids: list[int] = field(default_factory=list)

    def add(self, ids: pa.ChunkedArray, *, name_all: bool = False) -> None:
        self.count += len(ids)
        room = len(ids) if name_all else NAMED_IDS_MAX - len(self.ids)
        self.ids += ids.slice(0, max(room, 0)).to_pylist()


@dataclass
class Comparison:
    """What the out table has at or below the stream's tail, seen from the stream."""

    rows: int = 0
    same: int = 0
    missing: Found = field(default_factory=Found)
    conflicting: Found = field(default_factory=Found)
    # Rows that still hold what was erased from the stream.
    unredacted: Found = field(default_factory=Found)


def compare(
    source: Source,
    stream: Stream,
    *,
    through: int,
    limit_rows: int = 50_000,
    name_all: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Compare every row of the out table with id <= `through` to the stream's event of that ID."""
    result = Comparison()
    trimmed_through = stream.info().trimmed_through
    after = -(2**63)  # somebody may have written negative IDs
    while after < through:
        before = after
        for rows in source.read(after, limit_rows, through=through):
            ours = pa.Table.from_batches([rows.events])
            first, last = ours["id"][0].as_py(), ours["id"][-1].as_py()
            theirs = held(stream, max(first - 1, trimmed_through), last)
            result.rows += ours.num_rows
            in_stream = pc.is_in(ours["id"], value_set=theirs["id"].combine_chunks())
            result.missing.add(ours.filter(pc.invert(in_stream))["id"], name_all=name_all)
            ours = ours.filter(in_stream)
            theirs = theirs.filter(pc.is_in(theirs["id"], value_set=ours["id"].combine_chunks()))
            differs = differences(ours, theirs)
            result.conflicting.add(ours.filter(differs)["id"], name_all=name_all)
            result.unredacted.add(
                ours.filter(pc.and_not(is_redacted(theirs), is_redacted(ours)))["id"], name_all=name_all
            )
            result.same += int(ours.num_rows - (pc.sum(differs).as_py() or 0))
            after = last
            if progress is not None:
                progress(after)
        if after == before:
            break
    return result


def held(stream: Stream, after: int, through: int) -> pa.Table:
    """The stream's events with after < id <= through."""
    batches = [batch.rows for batch in stream.read(after, through)] if after < through else []
    return pa.Table.from_batches(batches, schema=SCHEMA)
