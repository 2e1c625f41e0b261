"""What an inbox costs over the INSERTs that its handler runs."""

from __future__ import annotations

import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import psycopg

from bench.events import batches
from bench.measure import Measure
from bench.scene import Findings
from outbox import Inbox
from outbox.database import DatabaseUrl
from outbox.event import events
from outbox.inbox import install
from stream_store import open_stream
from tests.servers import mariadb, postgresql
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.scene import Run
    from outbox.event import Event

NAME = "inbox"
TITLE = "Exactly once into a database, beside bare INSERTs"
ABOUT = """\
An `Inbox` that takes a `file://` stream into a table, against a loop that reads the same stream and runs the same INSERT
with the same number of events in a transaction, and remembers nothing: killed, it would lose or double events. One
process, the driver's own connection. For information: there is no budget."""

EVENTS_FULL, EVENTS_QUICK = 20_000, 1_000
# With one event in a transaction the disk decides; fewer of them show it as well.
SINGLES_SHARE = 0.1
COLUMNS = "(id bigint, type varchar(255), subject varchar(1024), data text)"


def run(run: Run) -> Findings:
    count = run.rows(EVENTS_FULL, EVENTS_QUICK)
    stream = f"file://{run.folder / 'stream'}"
    with open_stream(stream, "write") as opened:
        opened.bind("6f6b4b1e-0000-4000-8000-00000000beef", "/bench")
        for batch in batches(count, 1_000):
            opened.append(batch)
    measures = [*_sqlite(run, stream, count)]
    server = PostgresServer().start()
    try:
        url = postgresql.fresh_database(server.url())
        measures += _compare(run, "PostgreSQL", url, lambda: psycopg.connect(url), "%s", stream, count)
    finally:
        server.destroy()
    maria = MariaDbServer().start()
    try:
        url = mariadb.fresh_database(maria.url())
        measures += _compare(run, "MariaDB", url, lambda: mariadb.connect(url), "%s", stream, count)
    finally:
        maria.destroy()
    shutil.rmtree(run.folder / "stream")
    return Findings(measures, [f"{count:,} events of about 200 bytes; a tenth of them where each is a transaction."])


def _sqlite(run: Run, stream: str, count: int) -> list[Measure]:
    path = run.folder / "inbox.db"
    return _compare(run, "SQLite", f"sqlite:///{path}", lambda: sqlite3.connect(path), "?", stream, count)


def _compare(
    run: Run, name: str, url: str, connect: Callable[[], Any], mark: str, stream: str, count: int
) -> list[Measure]:
    install(DatabaseUrl.parse(url))
    sql = f"INSERT INTO effects (id, type, subject, data) VALUES ({', '.join([mark] * 4)})"
    _run(connect, f"CREATE TABLE effects {COLUMNS}")

    def handle(connection: Any, taken: Sequence[Event]) -> None:
        cursor = connection.cursor()
        for event in taken:
            cursor.execute(sql, (event.id, event.type, event.subject, event.data_json))
        cursor.close()

    measures = []
    for batch_events, share in ((100, 1.0), (1, SINGLES_SHARE)):
        wanted = int(count * share)
        ratios, bare_rates, inbox_rates = [], [], []
        for number in range(run.rounds):
            bare = _bare(connect, stream, handle, batch_events, wanted)
            _empty(connect, wanted)
            inbox = _inbox(connect, stream, handle, batch_events, wanted, f"round-{batch_events}-{number}", count)
            _empty(connect, wanted)
            ratios.append(bare / inbox)
            bare_rates.append(wanted / bare)
            inbox_rates.append(wanted / inbox)
        of = f"{name}, {batch_events} in a transaction"
        measures += [
            Measure(f"{of}: inbox against bare INSERTs", "×", tuple(ratios)),
            Measure(f"{of}: inbox", "events/s", tuple(inbox_rates)),
            Measure(f"{of}: bare INSERTs", "events/s", tuple(bare_rates)),
        ]
        run.say("; ".join(str(measure) for measure in measures[-3:]))
    return measures


def _bare(connect: Callable[[], Any], stream: str, handle: Any, batch_events: int, wanted: int) -> float:
    started = time.perf_counter()
    connection = connect()
    taken: list[Event] = []
    with open_stream(stream) as opened:
        for batch in opened.read(0, wanted):
            for event in events(batch):
                taken.append(event)
                if len(taken) == batch_events:
                    handle(connection, taken)
                    connection.commit()
                    taken = []
    connection.close()
    return time.perf_counter() - started


def _inbox(
    connect: Callable[[], Any], stream: str, handle: Any, batch_events: int, wanted: int, consumer: str, count: int
) -> float:
    started = time.perf_counter()
    with open_stream(stream) as opened:
        inbox = Inbox(connect, consumer, batch_events=batch_events, start=count - wanted + 1)
        inbox.run(opened, batch_handler=handle, once=True)
    return time.perf_counter() - started


def _run(connect: Callable[[], Any], sql: str) -> list[tuple[Any, ...]]:
    connection = connect()
    cursor = connection.cursor()
    cursor.execute(sql)
    found = list(cursor.fetchall()) if cursor.description else []
    connection.commit()
    connection.close()
    return found


def _empty(connect: Callable[[], Any], wanted: int) -> None:
    ((found,),) = _run(connect, "SELECT count(*) FROM effects")
    assert found == wanted, (found, wanted)
    _run(connect, "DELETE FROM effects")
