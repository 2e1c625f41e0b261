"""The columns of an event in Spark, and where the fields of its data go beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from outbox.batch import SCHEMA
from outbox.errors import UsageError
from spark_sink.mode import DELETE
from spark_sink.spec import OWN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

# The order is that of a reader's interest, not that of the stored batch.
EVENT_COLUMNS = ("id", "type", "subject", "time", "data", "data_bytes", "datacontenttype", "headers")
PREV_ID = "prev_id"
# Where events of several streams are read together, which of them an event is from.
STREAM = "stream"
ERROR = "_error"
# Names that begin so are the product's: those that only a step of the sink sees, and the event's own.
OWN_PREFIX = "_outbox_"
RESERVED_PREFIXES = ("_event_", OWN_PREFIX)

_REFUSED = re.compile(r"[ ,;{}()\n\t=\ud800-\udfff]")
_TAKEN = frozenset((*EVENT_COLUMNS, PREV_ID, STREAM))


def field_column(name: str) -> str:
    """The column of a data field: its own name, or with `data_` before it when an event's column has that.

    Spark does not tell `Id` from `id`, so neither does this rule.
    """
    lower = name.lower()
    if lower == ERROR or lower.startswith(RESERVED_PREFIXES):
        prefixes = " and ".join(f"{prefix}…" for prefix in RESERVED_PREFIXES)
        raise UsageError(f"a field cannot be called {name!r}: {ERROR}, {prefixes} are columns of the sink")
    return f"data_{name}" if lower in _TAKEN else name


def column_field(column: str) -> str:
    """The data field of a column: what `field_column` makes the column of."""
    name = column.removeprefix("data_")
    return name if field_column(name) == column else column


def is_usable(name: str) -> bool:
    """Whether a field that nobody declared may become a column: none of the product's, nor one that Delta refuses."""
    lower = name.lower()
    taken = lower in (ERROR, DELETE, *OWN_COLUMNS) or lower.startswith(RESERVED_PREFIXES)
    return is_usable_member(name) and not taken


def is_usable_member(name: str) -> bool:
    """Whether Delta takes a name, of a column or in a struct: it refuses some characters."""
    return bool(name) and not _REFUSED.search(name)


def event_schema(columns: Sequence[str] | None = None, *, prev_id: bool = False) -> pa.Schema:
    """The event's columns: all in their order, or those asked for in the order asked for.

    All may be NULL as far as Spark knows: what is NOT NULL here would become a constraint of
    every table that is made of it.
    """
    names = list(EVENT_COLUMNS if columns is None else columns)
    for name in names:
        if name not in (*EVENT_COLUMNS, PREV_ID):
            raise UsageError(f"an event has no column {name!r}; it has {', '.join(EVENT_COLUMNS)} and {PREV_ID}")
    if prev_id and PREV_ID not in names:
        names.insert(names.index("id") + 1 if "id" in names else 0, PREV_ID)
    return pa.schema([pa.field(name, pa.int64() if name == PREV_ID else SCHEMA.field(name).type) for name in names])


def typed_schema(schema: pa.Schema) -> pa.Schema:
    """The typed columns of a data schema, and the last one: why a row could not be parsed."""
    fields = [field.with_name(field_column(field.name)).with_nullable(True) for field in schema]
    seen: dict[str, str] = {}
    for field, column in zip(schema, fields, strict=True):
        other = seen.get(column.name.lower())
        if other is not None:
            raise UsageError(f"the fields {other!r} and {field.name!r} would both be the column {column.name!r}")
        seen[column.name.lower()] = field.name
    return pa.schema([*fields, pa.field(ERROR, pa.string())])
