"""Entries of a Redis stream as Arrow: see encoding.py for what an entry is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import SCHEMA
from outbox.errors import StreamCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What the client library makes of XRANGE: the entry's ID, and fields and values in turn.
Entry = tuple[bytes, list[bytes]]

_COLUMNS = tuple(field.name.encode() for field in SCHEMA if field.name != "id")


@dataclass(frozen=True, slots=True)
class Page:
    """Events in ID order, and for each the ID that it follows."""

    rows: pa.RecordBatch
    previous: pa.Int64Array


def decode(entries: Sequence[Entry], url: str) -> Page:
    """The entries as columns. `StreamCorrupt` names the first one that is no event of ours."""
    try:
        ids = [int(entry[0].removesuffix(b"-0")) for entry in entries]
        columns = _same_fields(entries) or _any_fields(entries)
        arrays = [pa.array(ids, pa.int64()), *(_column(field, columns) for field in list(SCHEMA)[1:])]
        previous = pa.array([int(value) for value in columns[b"previd"] if value is not None], pa.int64())
        rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        if len(previous) < len(entries) or any(rows.column(name).null_count for name in ("type", "time")):
            raise ValueError("a field is missing")
        return Page(rows, previous)
    except (ValueError, pa.ArrowInvalid, KeyError) as error:
        if len(entries) > 1:
            for entry in entries:
                decode([entry], url)
        shown = entries[0][0].decode("utf-8", "replace") if entries else "?"
        raise StreamCorrupt(
            f"{url}: the entry {shown} is no event that this program wrote ({error}): keep other writers away from the "
            "stream's keys, and see `outbox stream check`"
        ) from None


def _same_fields(entries: Sequence[Entry]) -> Mapping[bytes, Sequence[bytes | None]] | None:
    """The values by field where all entries have the same fields, as most have: by slicing alone."""
    first = entries[0][1]
    width = len(first)
    flat = list(chain.from_iterable(entry[1] for entry in entries))
    count = len(entries)
    if len(flat) != width * count:
        return None
    for at in range(0, width, 2):
        # All the same object is found quickly; else they are compared.
        if flat[at::width].count(first[at]) != count:
            return None
    found: dict[bytes, Sequence[bytes | None]] = {first[at]: flat[at + 1 :: width] for at in range(0, width, 2)}
    return {**dict.fromkeys(_COLUMNS, [None] * count), **found}


def _any_fields(entries: Sequence[Entry]) -> Mapping[bytes, Sequence[bytes | None]]:
    rows = [dict(zip(entry[1][::2], entry[1][1::2], strict=True)) for entry in entries]
    return {name: [row.get(name) for row in rows] for name in (b"previd", *_COLUMNS)}


def _column(field: pa.Field, columns: Mapping[bytes, Sequence[bytes | None]]) -> pa.Array:
    values = pa.array(columns[field.name.encode()], pa.binary())
    if pa.types.is_binary(field.type):
        return values
    text = values.cast(pa.string())
    return _times(text) if pa.types.is_timestamp(field.type) else text


def _times(text: pa.StringArray) -> pa.TimestampArray:
    kind = pa.timestamp("us", tz="UTC")
    if pc.all(pc.ends_with(text, "Z")).as_py():
        return text.cast(kind)
    # Years of more than four digits stand there as microseconds.
    numbers = pc.if_else(pc.ends_with(text, "Z"), None, text).cast(pa.int64())
    usual = pc.if_else(pc.ends_with(text, "Z"), text, None).cast(kind).cast(pa.int64())
    return pc.coalesce(usual, numbers).cast(kind)
