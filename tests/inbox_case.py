"""A consumer's database with an inbox, a table of effects, and streams to consume."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import sessionmaker

from outbox import Inbox
from outbox.connections import open_connection
from outbox.database import DatabaseUrl, Session
from outbox.inbox.engine import open_engine
from outbox.inbox.schema import INBOX, install
from outbox.queries import with_parameters
from stream_store import open_stream
from tests.integration.targets import connect
from tests.streams import OUTBOX_ID, write_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from outbox.event import Event
    from outbox.names import OutTable

# What a handler can be given.
KINDS = ["driver", "engine", "session"]
CONSUMER = "billing"
_SERIAL = {
    "postgresql": "seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "seq bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "seq integer PRIMARY KEY AUTOINCREMENT",
}


def execute(given: Any, sql: str, **parameters: Any) -> None:
    """Run a statement on whatever a handler is given."""
    driver, opened = open_connection(given)
    rendered, names = with_parameters(sql, driver.paramstyle)
    driver.execute(opened, rendered, tuple(parameters[name] for name in names))


def record(given: Any, event: Event) -> None:
    """The effect of an event: a row, whose number tells the order. Nothing keeps it from being there twice."""
    sql = "INSERT INTO effects (source, id, subject) VALUES (:source, :id, :subject)"
    execute(given, sql, source=event.source, id=event.id, subject=event.subject)


@dataclass
class InboxCase:
    """One database with its inbox; an effect is (source, id)."""

    url: str
    kind: str = "driver"
    table: OutTable = INBOX
    stream: str = field(default_factory=lambda: f"memory://{uuid.uuid4()}")
    _opened: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = DatabaseUrl.parse(self.url)
        install(self.database, self.table)
        self.run_sql(
            f"CREATE TABLE effects ({_SERIAL[self.database.dialect]}, source varchar(100), id bigint, subject varchar(100))"
        )

    def inbox(self, consumer: str = CONSUMER, **options: Any) -> Inbox:
        return Inbox(self.opened(), consumer, **{"table": self.table, "retry_seconds": 0.001, **options})

    def opened(self) -> Any:
        """The database as an application has it."""
        if self.kind == "driver":
            return lambda: connect(self.url)
        engine = open_engine(self.database, "test")
        self._opened.append(engine)
        return engine if self.kind == "engine" else sessionmaker(engine)

    def close(self) -> None:
        for engine in self._opened:
            engine.dispose()

    def write(
        self, *events: Mapping[str, Any], outbox_id: str = OUTBOX_ID, source: str = "/tests", url: str = ""
    ) -> None:
        write_stream(url or self.stream, events, frame_rows=4, outbox_id=outbox_id, source=source)

    def consume(self, handler: Callable[[Any, Event], object] = record, **options: Any) -> None:
        """Run a consumer to the stream's tail."""
        with open_stream(self.stream) as stream:
            self.inbox(**options).run(stream, handler, once=True)

    def run_sql(self, sql: str) -> list[tuple[Any, ...]]:
        with Session(self.database, self.table) as session:
            return session.run(sql)

    def effects(self) -> list[int]:
        return [event_id for _, event_id, _ in self.effect_rows()]

    def effect_rows(self) -> list[tuple[str, int, str | None]]:
        return [tuple(row) for row in self.run_sql("SELECT source, id, subject FROM effects ORDER BY seq")]  # type: ignore[misc]

    def parked(self) -> dict[int, str]:
        return {each.id: each.state for each in self.inbox().parked(limit=100_000)}

    def reached(self) -> int:
        (standing,) = self.inbox().status()
        return standing.reached

    def assert_exactly_once(self, expected: Iterable[int]) -> None:
        """Each of these events once, and those of a subject in their order."""
        rows = self.effect_rows()
        assert sorted(event_id for _, event_id, _ in rows) == sorted(expected)
        by_subject = sorted(rows, key=lambda row: (row[0], row[2] or ""))
        for (source, subject), run in itertools.groupby(by_subject, key=lambda row: (row[0], row[2])):
            ids = [event_id for _, event_id, _ in run]
            assert subject is None or ids == sorted(ids), (source, subject, ids)
