"""An outbox without a database, for the unit tests of applications."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox.event import Event
from outbox.outbox import Outbox
from outbox.row import DATA_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox.row import Row


class MemoryOutbox(Outbox):
    """Takes events as `Outbox` does, with the same checks, and keeps them in `events`.

    The connection is not looked at and may be None, so it knows of no transactions: a
    rollback takes nothing back, and a deferred event is there at once.
    """

    def __init__(
        self,
        name: str = "outbox",
        *,
        schema: str | None = None,
        source: str | None = None,
        max_data_bytes: int = DATA_BYTES_MAX,
        json_default: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(name, schema=schema, source=source, max_data_bytes=max_data_bytes, json_default=json_default)
        self.events: list[Event] = []
        self._last_id = 0

    def clear(self) -> None:
        """Forget the events. IDs go on rising, as those of a table do after a DELETE."""
        self.events.clear()

    def _write(self, connection: Any, rows: Sequence[Row], deferred: bool) -> None:  # noqa: ARG002
        for row in rows:
            self.events.append(
                Event(
                    self._last_id + 1,
                    row.type,
                    row.subject,
                    data_json=row.data,
                    data_bytes=row.data_bytes,
                    datacontenttype=row.datacontenttype,
                    headers=json.loads(row.headers) if row.headers else {},
                    time=row.time or datetime.now(UTC),
                    source=self.source or self.table.source,
                    prev_id=self._last_id,
                )
            )
            self._last_id += 1

    async def _write_async(self, connection: Any, rows: Sequence[Row], deferred: bool) -> None:
        self._write(connection, rows, deferred)
