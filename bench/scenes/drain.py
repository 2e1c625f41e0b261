"""Draining a backlog: the relay against a bare read, a naive relay and Debezium."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bench import fill
from bench.measure import Measure, at_least
from bench.relay_process import drain_once
from bench.rivals import debezium
from bench.rivals.process import run_rival
from bench.scene import Findings
from tests.servers import mariadb, postgresql
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.relay_process import Drained
    from bench.scene import Run

NAME = "drain"
TITLE = "Draining a backlog"
ABOUT = """\
`outbox relay --once`, a process of its own, drains a table of rows of about 200 bytes from PostgreSQL (defaults, `fsync`
on) into a `file://` stream. The rate counts from the relay's first read, after its start path, to the moment another
process sees the last row durable. Deleting the rows comes after that, because reading goes first in a backlog: "with
clean-up" counts to the end of it. Each contestant of a round gets its own copy of the same database, vacuumed, in the
page cache and not in PostgreSQL's buffers.

- *bare ADBC read*: one statement for the whole table, in no order, batches thrown away. From the statement to the last row.
- *naive relay*: psycopg, 1,000 rows at a time, a JSON line for each, one `fsync`, one DELETE and one COMMIT per 1,000
  rows, no fence. From the first read to the last commit.
- *Debezium*: the embedded engine with its outbox event router reads the same rows, written in the same commits, by
  logical decoding (pgoutput) on a server with `wal_level=logical`. From the first to the last event handed to a consumer
  that only counts, or over the second half of the events where that is faster (Java is warm then). Nothing is serialized
  or made durable, so it does less than the relay."""

ROWS_FULL, ROWS_QUICK = 1_000_000, 50_000
SMALL_ROWS_FULL, SMALL_ROWS_QUICK = 200_000, 20_000


def drain(url: str, stream: Path, rows: int) -> Drained:
    """Drain rows 1 to `rows` into a new stream."""
    shutil.rmtree(stream, ignore_errors=True)
    drained = drain_once(url, stream, rows)
    shutil.rmtree(stream)
    return drained


def run(run: Run) -> Findings:
    rows = run.rows(ROWS_FULL, ROWS_QUICK)
    rates: dict[str, list[float]] = {name: [] for name in ("relay", "whole", "adbc", "naive", "debezium")}
    startups: list[float] = []
    server = PostgresServer().start()
    try:
        filled = postgresql.fresh_database(server.url())
        fill.install_outbox(filled)
        with run.step(f"{rows:,} rows into PostgreSQL"):
            fill.fill_postgresql(filled, rows)
        row_bytes = fill.row_bytes_postgresql(filled)
        for number in range(run.rounds):
            copy = fill.copy_postgresql(server.url(), filled, "for_adbc")
            rates["adbc"].append(_rate(run_rival("adbc", copy), rows))
            copy = fill.copy_postgresql(server.url(), filled, "for_relay")
            drained = drain(copy, run.folder / "stream", rows)
            startups.append(drained.startup_seconds)
            rates["relay"].append(rows / drained.durable_seconds)
            rates["whole"].append(rows / drained.done_seconds)
            copy = fill.copy_postgresql(server.url(), filled, "for_naive")
            rates["naive"].append(_rate(run_rival("naive", copy, str(run.folder / "lines")), rows))
            run.say(
                f"round {number + 1}: "
                + ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items() if found)
            )
    finally:
        server.destroy()
    remarks = [
        f"{rows:,} rows, {row_bytes:.0f} bytes of columns each.",
        f"The process takes {sorted(startups)[len(startups) // 2]:.2f} s to start and go through its start path "
        "(Python, drivers, connections, the canary); not in the rate.",
    ]
    try:
        debezium.build()
        rates["debezium"] = _drain_with_debezium(run, rows)
        remarks.append(f"Debezium {debezium.version()} with its defaults and 2 GB of heap.")
    except debezium.Missing as missing:
        remarks.append(f"Debezium was not measured: {missing}.")
    return Findings([*_measures(rates), *_others(run)], remarks)


def _rate(found: dict[str, float], rows: int) -> float:
    assert found["rows"] == rows, found
    return rows / found["seconds"]


def _measures(rates: dict[str, list[float]]) -> list[Measure]:
    def ratio(of: str, by: str) -> tuple[float, ...]:
        return tuple(mine / theirs for mine, theirs in zip(rates[of], rates[by], strict=True))

    measures = [
        Measure("relay against a bare ADBC read", "×", ratio("relay", "adbc"), at_least(0.75)),
        Measure("relay with clean-up against a bare ADBC read", "×", ratio("whole", "adbc")),
        Measure("relay with clean-up against the naive relay", "×", ratio("whole", "naive")),
        Measure("relay: PostgreSQL to file://", "rows/s", tuple(rates["relay"])),
        Measure("relay: the same with clean-up", "rows/s", tuple(rates["whole"])),
        Measure("bare ADBC read", "rows/s", tuple(rates["adbc"])),
        Measure("naive relay", "rows/s", tuple(rates["naive"])),
    ]
    if rates["debezium"]:
        measures.insert(1, Measure("relay against Debezium", "×", ratio("relay", "debezium"), at_least(10)))
        measures.append(Measure("Debezium's embedded engine", "rows/s", tuple(rates["debezium"])))
    return measures


def _drain_with_debezium(run: Run, rows: int) -> list[float]:
    rates = []
    server = debezium.start_server()
    try:
        for number in range(run.rounds):
            url = postgresql.fresh_database(server.url())
            fill.install_outbox(url)
            debezium.create_slot(url)
            fill.fill_postgresql(url, rows)
            folder = run.folder / f"debezium-{number}"
            folder.mkdir()
            rates.append(debezium.drain(debezium.write_config(url, folder), rows))
            debezium.drop_slot(url)
            fill.drop_postgresql(server.url(), url)
            run.say(f"round {number + 1}: Debezium {rates[-1]:,.0f}/s")
    finally:
        server.destroy()
    return rates


def _others(run: Run) -> list[Measure]:
    """MariaDB and SQLite, for information."""
    rows = run.rows(SMALL_ROWS_FULL, SMALL_ROWS_QUICK)
    note = f"{rows:,} rows; for information"
    measures = []
    server = MariaDbServer().start()
    try:
        rates = []
        for _ in range(run.rounds):
            url = mariadb.fresh_database(server.url())
            fill.install_outbox(url)
            fill.fill_mariadb(url, rows)
            rates.append(rows / drain(url, run.folder / "stream", rows).durable_seconds)
        measures.append(Measure("relay: MariaDB to file://", "rows/s", tuple(rates), note=note))
        run.say(str(measures[-1]))
    finally:
        server.destroy()
    rates = []
    for number in range(run.rounds):
        path = run.folder / f"drain-{number}.db"
        fill.install_outbox(f"sqlite:///{path}")
        fill.fill_sqlite(path, rows)
        rates.append(rows / drain(f"sqlite:///{path}", run.folder / "stream", rows).durable_seconds)
        path.unlink()
    measures.append(Measure("relay: SQLite to file://", "rows/s", tuple(rates), note=note))
    return measures
