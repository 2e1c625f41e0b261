"""The outbox as an application sees it: `emit` writes an event in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from outbox.async_connections import open_async_connection, sync_runner
from outbox.connections import open_connection
from outbox.errors import InvalidEvent
from outbox.event import rfc3339
from outbox.names import OutTable
from outbox.queries import block, with_parameters
from outbox.row import DATA_BYTES_MAX, Encoder, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from outbox.async_connections import AsyncDriver
    from outbox.connections import Driver
    from outbox.event import Event

_FIELDS = ("type", "subject", "data", "data_json", "data_bytes", "datacontenttype", "headers", "time")


class Outbox:
    """The out table `name`; one instance serves all threads and connections.

    An event's data is one of `data` (any JSON value), `data_json` (JSON text, kept byte for
    byte) and `data_bytes` (with a `datacontenttype`). With none of them the event is a
    tombstone: its subject is gone. JSON's null is `data_json="null"`.

    Nothing is committed here, and nothing read back: the event is part of the caller's
    transaction, and gone if that rolls back. `InvalidEvent` and `NoTransaction` are raised
    before anything is written; what the database says passes through as the driver's error.

    `deferred=True` (SQLAlchemy only) checks the event now and inserts it just before the
    outermost COMMIT, so that a long transaction holds the stream back only at its end.
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
        """
        `source`: CloudEvents' name for where events come from; `outbox init` keeps it in the
        database. `json_default`: as in `json.dumps`, for values that JSON does not know.
        """
        self.table = OutTable(name, schema)
        self.source = source
        self._encode = Encoder(max_data_bytes, json_default).encode
        self._rendered: dict[Driver | AsyncDriver, tuple[str, str]] = {}

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({str(self.table)!r})"

    def emit(
        self,
        connection: Any,
        *,
        type: str,
        subject: str | None = None,
        data: Any = None,
        data_json: str | None = None,
        data_bytes: bytes | None = None,
        datacontenttype: str | None = None,
        headers: Mapping[str, str | int | bool] | None = None,
        time: datetime | None = None,
        deferred: bool = False,
    ) -> None:
        """Write one event on the caller's connection, in the caller's transaction."""
        row = self._encode(type, subject, data, data_json, data_bytes, datacontenttype, headers, time)
        self._write(connection, (row,), deferred)

    def emit_many(
        self, connection: Any, events: Iterable[Mapping[str, Any] | Event], *, deferred: bool = False
    ) -> None:
        """Write many events at once, in their order: `emit`'s arguments as dicts, or `Event`s.

        All of them are checked before the first is written.
        """
        rows = self._encode_many(events)
        if rows:
            self._write(connection, rows, deferred)

    async def emit_async(
        self,
        connection: Any,
        *,
        type: str,
        subject: str | None = None,
        data: Any = None,
        data_json: str | None = None,
        data_bytes: bytes | None = None,
        datacontenttype: str | None = None,
        headers: Mapping[str, str | int | bool] | None = None,
        time: datetime | None = None,
        deferred: bool = False,
    ) -> None:
        """`emit` on an asynchronous connection."""
        row = self._encode(type, subject, data, data_json, data_bytes, datacontenttype, headers, time)
        await self._write_async(connection, (row,), deferred)

    async def emit_many_async(
        self, connection: Any, events: Iterable[Mapping[str, Any] | Event], *, deferred: bool = False
    ) -> None:
        """`emit_many` on an asynchronous connection."""
        rows = self._encode_many(events)
        if rows:
            await self._write_async(connection, rows, deferred)

    def insert(self, driver: Driver, connection: Any, rows: Sequence[Row]) -> None:
        """Insert rows on an open connection. Applications call `emit` or `emit_many`."""
        if len(rows) == 1:
            driver.execute(connection, *self._statement(driver, rows[0]))
            return
        for sql, parameters in self._statements(driver, rows):
            driver.execute_many(connection, sql, parameters)

    def _write(self, connection: Any, rows: Sequence[Row], deferred: bool) -> None:
        if deferred:
            from outbox.deferred import defer

            defer(connection, self, rows)
        else:
            driver, opened = open_connection(connection)
            self.insert(driver, opened, rows)

    async def _write_async(self, connection: Any, rows: Sequence[Row], deferred: bool) -> None:
        run_sync = sync_runner(connection)
        if run_sync is not None:
            await run_sync(self._write, rows, deferred)
            return
        if deferred:
            self._write(connection, rows, deferred)  # refuses, with the reason
        driver, opened = open_async_connection(connection)
        if len(rows) == 1:
            await driver.execute(opened, *self._statement(driver, rows[0]))
            return
        for sql, parameters in self._statements(driver, rows):
            await driver.execute_many(opened, sql, parameters)

    def _encode_many(self, events: Iterable[Mapping[str, Any] | Event]) -> list[Row]:
        rows: list[Row] = []
        for event in events:
            try:
                rows.append(self._encode(**_fields(event)))
            except InvalidEvent as error:
                raise InvalidEvent(f"event {len(rows)} (counted from 0): {error}") from error
        return rows

    def _statement(self, driver: Driver | AsyncDriver, row: Row) -> tuple[str, tuple[Any, ...]]:
        """The INSERT of one row."""
        at_now, at_time = self._rendered.get(driver) or self._render(driver)
        if row[-1] is None:
            return at_now, row[:-1]
        return at_time, (*row[:-1], _TIME_TO_COLUMN[driver.dialect](row[-1]))

    def _statements(
        self, driver: Driver | AsyncDriver, rows: Sequence[Row]
    ) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        """As few INSERTs as keep the rows in their order: IDs are drawn in it."""
        for sql, run in groupby((self._statement(driver, row) for row in rows), key=itemgetter(0)):
            yield sql, [parameters for _, parameters in run]

    def _render(self, driver: Driver | AsyncDriver) -> tuple[str, str]:
        def render(name: str) -> str:
            sql, parameters = with_parameters(block(driver.dialect, name, self.table), driver.paramstyle)
            assert tuple(parameters) == Row._fields[: len(parameters)], parameters
            return sql

        statements = self._rendered[driver] = (render("emit"), render("emit_at_time"))
        return statements


# PostgreSQL has a type for moments; MySQL and SQLite keep UTC by agreement.
_TIME_TO_COLUMN: dict[str, Callable[[Any], Any]] = {
    "postgresql": lambda time: time,
    "mysql": lambda time: time.replace(tzinfo=None),
    "sqlite": rfc3339,
}


def _fields(event: Mapping[str, Any] | Event) -> dict[str, Any]:
    """The arguments of `encode`."""
    if not isinstance(event, Mapping):
        # `data` is left out: an Event keeps the text, which stays byte-exact.
        return {name: getattr(event, name) for name in _FIELDS if name != "data"}
    fields = dict(event)
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise InvalidEvent(f"unknown field {unknown[0]!r}: an event has {', '.join(_FIELDS)}")
    if "type" not in fields:
        raise InvalidEvent("type is missing: give a str such as 'order.paid'")
    return fields
