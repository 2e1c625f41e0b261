"""What `emit` costs a writer over the INSERT that it runs."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
from typing import TYPE_CHECKING, Any

import psycopg

from bench import fill
from bench.measure import Measure, at_most
from bench.scene import Findings
from outbox import Outbox
from tests.servers import mariadb, postgresql
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scene import Run

NAME = "emit"
TITLE = "The writer's cost of emit"
ABOUT = """\
`Outbox.emit` against the same INSERT written by hand, on one connection, in blocks that take turns. Both turn a dict into
JSON text; the hand-written INSERT checks nothing. "In a transaction" times the statements alone; "with COMMIT" is a
transaction for each event, as an application that does nothing else would have it. The figure is the median block of
one against the median block of the other."""

BLOCKS_FULL, BLOCKS_QUICK = 60, 10
BLOCK_EVENTS = 200
COMMITTED_BLOCK_EVENTS = 20
COLUMNS = "type, subject, data, data_bytes, datacontenttype, headers"


def run(run: Run) -> Findings:
    measures = _postgresql(run) + _mariadb(run) + _sqlite(run)
    return Findings(
        measures,
        [
            f"{run.rows(BLOCKS_FULL, BLOCKS_QUICK)} blocks of {BLOCK_EVENTS} events a round, or of {COMMITTED_BLOCK_EVENTS} with COMMIT."
        ],
    )


def _postgresql(run: Run) -> list[Measure]:
    server = PostgresServer().start()
    try:
        url = postgresql.fresh_database(server.url())
        fill.install_outbox(url)
        sql = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"
        with psycopg.connect(url) as connection:
            return _compare(run, "psycopg", connection, connection, sql, budget=True)
    finally:
        server.destroy()


def _mariadb(run: Run) -> list[Measure]:
    server = MariaDbServer().start()
    try:
        url = mariadb.fresh_database(server.url())
        fill.install_outbox(url)
        sql = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"
        with mariadb.connect(url) as connection, connection.cursor() as cursor:
            return _compare(run, "PyMySQL", connection, cursor, sql)
    finally:
        server.destroy()


def _sqlite(run: Run) -> list[Measure]:
    path = run.folder / "emit.db"
    fill.install_outbox(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    try:
        return _compare(
            run, "sqlite3", connection, connection, f"INSERT INTO outbox ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
        )
    finally:
        connection.close()


def _compare(run: Run, driver: str, connection: Any, cursor: Any, sql: str, *, budget: bool = False) -> list[Measure]:
    outbox = Outbox()

    def insert(number: int) -> None:
        cursor.execute(sql, ("order.placed", f"order-{number}", json.dumps(data_of(number)), None, None, None))

    def emit(number: int) -> None:
        outbox.emit(connection, type="order.placed", subject=f"order-{number}", data=data_of(number))

    blocks = run.rows(BLOCKS_FULL, BLOCKS_QUICK)
    ratios, bares, emits, committed = [], [], [], []
    for number in range(run.rounds + 1):
        bare, emitted = _take_turns(insert, emit, connection, blocks, BLOCK_EVENTS, each=False)
        with_commit = _take_turns(insert, emit, connection, blocks, COMMITTED_BLOCK_EVENTS, each=True)
        if number == 0:
            continue  # caches, plans and pages are warm after this one
        ratios.append(emitted / bare)
        bares.append(bare * 1e6)
        emits.append(emitted * 1e6)
        committed.append(with_commit[1] / with_commit[0])
    measures = [
        Measure(
            f"{driver}: emit against INSERT, in a transaction", "×", tuple(ratios), at_most(1.15) if budget else None
        ),
        Measure(f"{driver}: emit against INSERT, with COMMIT", "×", tuple(committed)),
        Measure(f"{driver}: INSERT", "µs", tuple(bares)),
        Measure(f"{driver}: emit", "µs", tuple(emits)),
    ]
    run.say("; ".join(str(measure) for measure in measures[:2]))
    return measures


def _take_turns(
    insert: Callable[[int], None], emit: Callable[[int], None], connection: Any, blocks: int, events: int, *, each: bool
) -> tuple[float, float]:
    """The seconds per event of both, from the median of their blocks."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for block in range(blocks):
        # Who goes first changes from block to block.
        for which in (0, 1) if block % 2 else (1, 0):
            write = (insert, emit)[which]
            started = time.perf_counter()
            for number in range(events):
                write(number)
                if each:
                    connection.commit()
            seconds[which].append((time.perf_counter() - started) / events)
            connection.commit()
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def data_of(number: int) -> dict[str, Any]:
    """An order, as an application would have it."""
    return {
        "order": number, "customer": f"c-{number % 9973}", "total": "17.50", "currency": "EUR",
        "token": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "paid": True,
    }  # fmt: skip
