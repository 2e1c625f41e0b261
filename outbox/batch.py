"""A batch of events as Arrow: the unit in which the data moves from database to Delta.

Rows become Python objects only where a person handles one event.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("subject", pa.string()),
        pa.field("data", pa.string()),
        pa.field("data_bytes", pa.binary()),
        pa.field("datacontenttype", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in ID order, and the ID that the first of them follows.

    Inside the batch each event follows its neighbour. IDs that are jumped over, between
    `prev_id` and the first row or between two rows, are recorded as dead.
    """

    prev_id: int
    rows: pa.RecordBatch

    def __post_init__(self) -> None:
        assert self.rows.num_rows > 0, "a batch has at least one event"
        assert self.prev_id < self.first_id, (self.prev_id, self.first_id)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def ids(self) -> pa.Int64Array:
        return self.rows.column(0)

    @property
    def first_id(self) -> int:
        return int(self.rows.column(0)[0].as_py())

    @property
    def last_id(self) -> int:
        return int(self.rows.column(0)[-1].as_py())

    @property
    def nbytes(self) -> int:
        return int(self.rows.get_total_buffer_size())

    def after(self, reached: int) -> EventBatch | None:
        """The events above `reached`, or None when there are none.

        Their `prev_id` is that of the event which they follow, also when `reached` is a dead ID.
        """
        skip = 0 if reached <= self.prev_id else first_above(self.ids, reached)
        if skip == 0:
            return self
        if skip == len(self):
            return None
        return EventBatch(int(self.ids[skip - 1].as_py()), self.rows.slice(skip))

    def through(self, last: int) -> EventBatch | None:
        """The part of the batch up to and including `last`, or None when there is none."""
        keep = first_above(self.ids, last)
        if keep == 0:
            return None
        return self if keep == len(self) else EventBatch(self.prev_id, self.rows.slice(0, keep))


def first_above(ids: pa.Int64Array, value: int) -> int:
    """The position of the first ID above `value`, by bisection of sorted IDs."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if ids[middle].as_py() <= value:
            low = middle + 1
        else:
            high = middle
    return low


def concatenate(batches: Iterable[EventBatch]) -> EventBatch:
    """One batch of several that follow each other by the chain."""
    parts = list(batches)
    for before, after in itertools.pairwise(parts):
        assert after.prev_id == before.last_id, (before.last_id, after.prev_id)
    if len(parts) == 1:
        return parts[0]
    return EventBatch(parts[0].prev_id, pa.concat_batches([part.rows for part in parts]))
