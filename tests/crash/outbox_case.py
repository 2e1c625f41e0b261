"""One outbox and its stream, what was committed to it, and the proof that nothing else is in the stream."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import connector.relay
from connector import supervisor
from connector.options import DeleteAfter, RelayOptions
from connector.rebase import Step, apply
from connector.verify import Verification, verify
from outbox.database import DatabaseUrl, Session
from outbox.names import OutTable
from outbox.schema import install
from stream_store import check, open_stream
from tests.crash.relay_process import At, Orders
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPOCH = datetime(2024, 5, 1, tzinfo=UTC)
# Short, so that a test does not wait long for a dead leader's lease.
LEASE_SECONDS = 0.4


@dataclass(frozen=True)
class Row:
    """The content of one event."""

    type: str
    subject: str | None
    data: str | None
    data_bytes: bytes | None
    headers: str | None
    time: datetime


def row(number: int, salt: str = "") -> Row:
    """Every third has binary data, every seventh none."""
    binary, empty = number % 3 == 0, number % 7 == 0
    return Row(
        type=f"order.{number % 4}",
        subject=f"order-{number}{salt}",
        data=None if binary or empty else f'{{"n": {number}, "é": "{salt}☃"}}',
        data_bytes=b"\x00\xff" + str(number).encode() if binary and not empty else None,
        headers='{"traceparent": "00-1"}' if number % 2 else None,
        time=EPOCH + timedelta(seconds=number, microseconds=number * 1000),
    )


class OutboxCase:
    """An installed outbox with a stream, and the content of every committed row."""

    def __init__(self, database: str, folder: Path) -> None:
        self.url = database
        self.database = DatabaseUrl.parse(database)
        # As whom the relay connects.
        self.relay_database = self.database
        self.table = OutTable()
        self.folder = folder
        self.stream_folder = folder / "stream"
        self.stream = f"file://{self.stream_folder}"
        self.committed: dict[int, Row] = {}
        # MySQL's connections that write: there they cannot be told from the relay's by a name.
        self.writers: set[int] = set()
        self._numbers = itertools.count(1)
        self._runs = itertools.count(1)
        install(self.database, self.table)

    @property
    def dialect(self) -> str:
        return self.database.dialect

    # ---- writing

    def connect(self) -> Any:
        """A connection as an application would have it: transactions, no autocommit."""
        if self.dialect == "postgresql":
            return psycopg.connect(self.url)
        if self.dialect == "mysql":
            return mariadb.connect(self.url)
        return sqlite3.connect(self.database.path, timeout=30)

    def insert(self, connection: Any, content: Row, row_id: int | None = None) -> int:
        """One row in the connection's transaction; the ID it got."""
        columns = ["type", "subject", "data", "data_bytes", "headers", "time"] + (["id"] if row_id else [])
        when: Any = content.time
        if self.dialect == "mysql":
            when = when.strftime("%Y-%m-%d %H:%M:%S.%f")
        elif self.dialect == "sqlite":
            when = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        values = [content.type, content.subject, content.data, content.data_bytes, content.headers, when, row_id]
        mark = "?" if self.dialect == "sqlite" else "%s"
        # PostgreSQL takes an ID only from someone who insists.
        insisting = " OVERRIDING SYSTEM VALUE" if row_id and self.dialect == "postgresql" else ""
        cursor = connection.cursor()
        cursor.execute(
            f"INSERT INTO outbox ({', '.join(columns)}){insisting} VALUES ({', '.join([mark] * len(columns))}) RETURNING id",
            values[: len(columns)],
        )
        ((inserted,),) = cursor.fetchall()
        cursor.close()
        return int(inserted)

    def new_row(self) -> Row:
        return row(next(self._numbers))

    def write(self, count: int, *, dead_every: int = 4, rows_each: int = 3) -> None:
        """Transactions of a few rows; after every few an ID that never gets a row."""
        with contextlib.closing(self.connect()) as connection:
            if self.dialect == "mysql":
                self.writers.add(connection.thread_id())
            for number in range(1, count + 1):
                contents = [self.new_row() for _ in range(rows_each)]
                ids = [self.insert(connection, content) for content in contents]
                connection.commit()
                self.committed |= dict(zip(ids, contents, strict=True))
                if dead_every and number % dead_every == 0:
                    self.waste_id(connection)

    def waste_id(self, connection: Any) -> int:
        """Draw an ID and take it back. SQLite gives it out again unless the row was there and gone."""
        drawn = self.insert(connection, self.new_row())
        if self.dialect == "sqlite":
            connection.execute("DELETE FROM outbox WHERE id = ?", (drawn,))
            connection.commit()
        else:
            connection.rollback()
        return drawn

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A writer that goes on while the block runs."""
        over, failures = threading.Event(), []

        def work() -> None:
            try:
                while not over.is_set():
                    self.write(3, dead_every=2)
                    over.wait(0.005)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert not failures, failures

    # ---- relaying

    def options(self, **changes: Any) -> RelayOptions:
        options = RelayOptions(
            self.relay_database,
            self.table,
            self.stream,
            batch_rows=8,
            idle_poll_seconds=0.01,
            lease_seconds=LEASE_SECONDS,
        )
        return replace(options, **changes)

    def orders(self, at: At | None = None, *, act: str = "kill", once: bool = True, **changes: Any) -> Orders:
        folder = self.folder / f"relay-{next(self._runs)}"
        return Orders(self.options(**changes), folder, once=once, at=at, act=act)

    def relay_once(self, **changes: Any) -> int:
        """Drain the out table in this process; the exit code."""
        return supervisor.run([self.options(**changes)], once=True, stop=threading.Event())

    def rebase(self) -> list[str]:
        """What `outbox rebase` did, by kind."""
        return [step.kind for step in self.rebase_steps()]

    def rebase_steps(self) -> list[Step]:
        return apply(self.database, self.table, self.stream)

    # ---- looking

    def session(self) -> Session:
        return Session(self.database, self.table, application="outbox test")

    def value(self, sql: str) -> Any:
        with self.session() as session:
            ((found,),) = session.run(sql)
            return found

    def execute(self, *statements: str) -> None:
        with self.session() as session:
            for statement in statements:
                session.run(statement)

    def deleted_through(self) -> int:
        return int(self.value("SELECT deleted_through FROM outbox_info"))

    def drawn(self) -> int:
        """The last ID that the sequence has given out."""
        with self.session() as session:
            return int(session.row("standing")[0])

    def rows_in_table(self) -> list[int]:
        with self.session() as session:
            return [int(found) for (found,) in session.run("SELECT id FROM outbox ORDER BY id")]

    def streamed(self) -> dict[int, Row]:
        """What the stream holds, in its order."""
        found: dict[int, Row] = {}
        if self.stream.startswith("file:") and not (self.stream_folder / "stream.json").exists():
            return found  # no relay has made it yet
        with contextlib.closing(open_stream(self.stream)) as stream:
            for batch in stream.read(stream.info().trimmed_through):
                for event in batch.rows.to_pylist():
                    assert event["id"] not in found, f"{event['id']} stands in the stream twice"
                    names = ("type", "subject", "data", "data_bytes", "headers", "time")
                    found[event["id"]] = Row(*(event[name] for name in names))
        return found

    def tail(self) -> int:
        with contextlib.closing(open_stream(self.stream)) as stream:
            return stream.tail()

    def verify(self) -> Verification:
        return verify(self.database, self.table, self.stream)

    def move_committed(self, above: int, old: dict[int, Row]) -> None:
        """Rows got new IDs: those of the stream, once it is shown that their content is the old one."""
        moved = {event_id: content for event_id, content in self.streamed().items() if event_id > above}
        assert list(moved.values()) == [old[event_id] for event_id in sorted(old)]
        self.committed |= moved

    def assert_exactly_once(self, *, drained: bool = True, recorded_lost: int = 0) -> None:
        """Every committed row once, in order, with its content; every other ID recorded as dead."""
        streamed = self.streamed()
        assert list(streamed) == sorted(self.committed)
        assert streamed == self.committed
        found = self.verify()
        assert found.ok, found
        assert found.events == len(self.committed)
        assert found.recorded_lost == recorded_lost
        assert found.events + found.dead + found.recorded_lost == found.tail
        assert check(self.stream).ok
        if drained:
            assert self.rows_in_table() == []
            assert self.deleted_through() == self.tail() == max(self.committed, default=0)


NEVER = DeleteAfter("never")


@pytest.fixture(autouse=True)
def quick_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays in the test's own process look for the lease often."""
    monkeypatch.setattr(connector.relay, "STANDBY_POLL_SECONDS", 0.05)
