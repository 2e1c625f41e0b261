"""A table that is not there yet: what the stream keeps for it, and how far it has looked for a schema.

What has been looked at is not looked at again, also by the next process, and what has nothing
for the table need not be kept for it. The stream knows such a table by a name of its own: one
that has got on under its real name and is not there was dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_sink import evolution
from spark_sink.spans import Span
from spark_sink.spec import INFER
from stream_store.readers import TABLE, reached

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_sink.spec import TableSpec
    from stream_store import Stream


class Waiting:
    """One table, before it is made. `reports`: whether the stream is told of it."""

    def __init__(self, stream: Stream, spec: TableSpec, name: str, *, reports: bool) -> None:
        self._stream = stream
        self._spec = spec
        self._table_name = name
        self._name = f"{name} (no event yet)"
        self._reports = reports
        # Through `through` no schema was found, through `after` no event for the table at all.
        self._looked: Span | None = None

    def be_known(self, *, exists: bool) -> None:
        """Have the stream keep for the table what it has not got yet: nobody may delete it for another's sake."""
        known = self._stream.readers()
        if reached(known, TABLE, self._table_name) is None and reached(known, TABLE, self._name) is None:
            waits = self._spec.schema == INFER and not exists
            self._stream.report(TABLE, self._name if waits else self._table_name, 0)

    def first_schema(self) -> pa.Schema | None:
        """The schema that the table is to be made with; `NoEventYet` when there is no event to infer it from."""
        if self._looked is None:
            told = reached(self._stream.readers(), TABLE, self._name) if self._reports else None
            self._looked = Span(told or 0, told or 0)
        clear, looked = self._looked.after, max(self._looked.through, self._stream.info().trimmed_through)
        try:
            return evolution.first_schema(self._stream, self._spec, looked)
        except evolution.NoEventYet as error:
            if clear == self._looked.through:  # nothing has been found so far
                clear = error.clear_through
            if self._reports and clear > self._looked.after:
                self._stream.report(TABLE, self._name, clear)
            self._looked = Span(clear, error.looked_through)
            raise

    def end(self) -> None:
        """The table is there, and known by its own name."""
        if self._reports and self._spec.schema == INFER:
            self._stream.forget(TABLE, self._name)
