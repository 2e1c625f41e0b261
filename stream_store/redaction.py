"""Redaction: an event whose content was erased on request. Its ID, type, subject and time stay, and so does the chain.

A redacted event has no data, no headers, and a content type that says so: it is no tombstone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox import row
from outbox.batch import first_above

if TYPE_CHECKING:
    from collections.abc import Iterable

REDACTED_CONTENT_TYPE = row.REDACTED_CONTENT_TYPE
_ERASED = ("data", "data_bytes", "headers")
# Where a redacted event differs from what it was.
CHANGED_COLUMNS = (*_ERASED, "datacontenttype")


def id_set(ids: Iterable[int]) -> pa.Int64Array:
    """IDs as `redacted` takes them: each once, ascending."""
    return pa.array(sorted(set(ids)), pa.int64())


def between(ids: pa.Int64Array, after: int, through: int) -> pa.Int64Array:
    """Those of an `id_set` with after < id <= through, without looking at the others."""
    start = first_above(ids, after)
    return ids.slice(start, first_above(ids, through) - start)


def count_content(rows: pa.RecordBatch, ids: pa.Int64Array) -> int:
    """How many rows with one of these IDs still have their content."""
    chosen = pc.is_in(rows.column("id"), value_set=ids)
    return int(pc.sum(pc.and_not(chosen, is_redacted(rows))).as_py() or 0)


def redacted(rows: pa.RecordBatch, ids: pa.Int64Array) -> pa.RecordBatch:
    """The rows, those with one of these IDs without their content."""
    chosen = pc.is_in(rows.column("id"), value_set=ids)
    kept = pc.if_else(chosen, pa.scalar(None, pa.int64()), pa.array(range(rows.num_rows), pa.int64()))
    columns = []
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name in _ERASED:
            # Not by if_else, which leaves the bytes of what became NULL in the buffer. This copies the others.
            column = column.take(kept)
        elif field.name == "datacontenttype":
            column = pc.if_else(chosen, pa.scalar(REDACTED_CONTENT_TYPE, field.type), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def is_redacted(rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray | pa.ChunkedArray:
    """True for each row whose content was erased. The content type alone could be what somebody emitted."""
    found = pc.fill_null(pc.equal(rows.column("datacontenttype"), REDACTED_CONTENT_TYPE), False)
    for name in _ERASED:
        found = pc.and_(found, pc.is_null(rows.column(name)))
    return found
