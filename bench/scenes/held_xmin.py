"""The relay beside a session that holds an old snapshot, so that vacuum can remove nothing."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from bench import fill, statements
from bench.measure import Measure
from bench.relay_process import Drained, RelayProcess, drain_once
from bench.scene import Findings
from bench.scenes.idle import probe
from bench.watch import Watch
from tests.servers import postgresql
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scene import Run

NAME = "held-xmin"
TITLE = "Draining beside a held snapshot"
ABOUT = """\
Two databases of one server get the same load for the same time: rows are inserted at a steady rate, and the relay, a
daemon, relays and deletes them. In one of them a REPEATABLE READ transaction sits idle all the while, so that nothing
deleted can be vacuumed away: every row that passed leaves a dead one, and every update of the info row too. Then single
events are timed from COMMIT answered to durable, the daemons stop, and each database in turn gets fresh rows that
`outbox relay --once` drains. PostgreSQL tells the two databases' horizons apart, so the second one is the same without
the held snapshot."""

ROWS_PER_SECOND = 2_000
ROWS_PER_COMMIT = 20
DRAIN_ROWS_FULL, DRAIN_ROWS_QUICK = 200_000, 20_000
PROBES_FULL, PROBES_QUICK = 40, 8
PROBE_PAUSE_SECONDS = 0.3

INSERT = """
INSERT INTO outbox (type, subject, data)
SELECT 'order.placed', 'order-' || n, ('{"order": ' || n || ', "token": "' || md5(n::text) || md5((n * 7)::text) || '"}')::json
FROM generate_series(1, %s) AS n
"""
DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = %s"


@dataclass
class Side:
    """One of the two databases."""

    name: str
    url: str
    stream: Path
    probes_ms: list[float] = field(default_factory=list)
    drains: list[Drained] = field(default_factory=list)

    def dead(self, table: str) -> int:
        with psycopg.connect(self.url) as connection:
            found = connection.execute(DEAD, (table,)).fetchone()
        return int(found[0]) if found else 0


def run(run: Run) -> Findings:
    rows = run.rows(DRAIN_ROWS_FULL, DRAIN_ROWS_QUICK)
    remarks = []
    server = PostgresServer(settings=(statements.EXTENSION,)).start()
    try:
        held, free = (
            Side(name, postgresql.fresh_database(server.url()), run.folder / name) for name in ("held", "free")
        )
        sides = (held, free)
        for side in sides:
            fill.install_outbox(side.url)
        with (
            psycopg.connect(server.url(), autocommit=True) as admin,
            psycopg.connect(held.url, application_name="holder") as holder,
        ):
            statements.create_extension(admin)
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT txid_current(), count(*) FROM outbox")
            passed = _churn(run, sides, admin)
            remarks.append(
                f"{run.churn_minutes:g} minutes of {ROWS_PER_SECOND:,} rows/s in commits of {ROWS_PER_COMMIT}: "
                f"{passed:,} rows passed through each out table. Dead rows then: {held.dead('outbox'):,} in the out table "
                f"and {held.dead('outbox_info'):,} of the info row beside the held snapshot, {free.dead('outbox'):,} and "
                f"{free.dead('outbox_info'):,} without it."
            )
            remarks.append(_profile("During the load", admin, held, free))
            profiles = _drain_in_turns(run, sides, admin, rows)
            remarks.append(statements_table(f"During the drain of {rows:,} rows (the last round)", *profiles))
            holder.rollback()
    finally:
        server.destroy()
    return Findings(_measures(held, free, rows), remarks, {"drain": {side.name: _rate(side, rows) for side in sides}})


def _churn(run: Run, sides: tuple[Side, ...], admin: psycopg.Connection) -> int:
    """Load both databases while their relays run, then time single events; the rows that passed."""
    seconds = run.churn_minutes * 60
    relays = [RelayProcess(side.url, side.stream) for side in sides]
    try:
        for relay in relays:
            relay.wait_until_leading()
        statements.reset(admin)
        counts: list[int] = []
        writers = [threading.Thread(target=_insert, args=(side.url, seconds, counts)) for side in sides]
        with run.step(f"{ROWS_PER_SECOND:,} rows/s into both for {run.churn_minutes:g} min"):
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
        if len(counts) != len(sides):
            raise RuntimeError("a writer ended early; see above")
        time.sleep(2)
        for side, relay in zip(sides, relays, strict=True):
            relay.require_alive()
            with Watch(side.stream) as watch:
                side.probes_ms = probe(side.url, watch, run.rows(PROBES_FULL, PROBES_QUICK), PROBE_PAUSE_SECONDS)
            run.say(f"{side.name}: single events in {statistics.median(side.probes_ms):.1f} ms")
    finally:
        for relay in relays:
            relay.stop()
    return min(counts)


def _insert(url: str, seconds: float, counts: list[int]) -> None:
    interval = ROWS_PER_COMMIT / ROWS_PER_SECOND
    start = time.monotonic()
    commits = 0
    with psycopg.connect(url, autocommit=True) as connection:
        while (due := start + commits * interval) < start + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            connection.execute(INSERT, (ROWS_PER_COMMIT,))
            commits += 1
    counts.append(commits * ROWS_PER_COMMIT)


def _drain_in_turns(
    run: Run, sides: tuple[Side, ...], admin: psycopg.Connection, rows: int
) -> list[dict[str, statements.Statement]]:
    """Drain fresh rows of each side, round by round; the statements of the last round."""
    profiles: list[dict[str, statements.Statement]] = []
    for number in range(run.rounds):
        profiles = []
        for side in sides:
            tail = fill.fill_postgresql(side.url, rows)
            statements.reset(admin)
            side.drains.append(drain_once(side.url, side.stream, tail))
            profiles.append(statements.read(admin, side.url))
        run.say(
            f"round {number + 1}: " + ", ".join(f"{side.name} {_rate(side, rows)[-1]:,.0f} rows/s" for side in sides)
        )
    return profiles


def _rate(side: Side, rows: int) -> list[float]:
    return [rows / drained.durable_seconds for drained in side.drains]


def _measures(held: Side, free: Side, rows: int) -> list[Measure]:
    def each(side: Side, what: str) -> tuple[float, ...]:
        return tuple(getattr(drained, what) for drained in side.drains)

    def ratio(what: str) -> tuple[float, ...]:
        return tuple(theirs / mine for mine, theirs in zip(each(held, what), each(free, what), strict=True))

    return [
        Measure("drain rate beside a held snapshot against without", "×", ratio("durable_seconds")),
        Measure("the same with clean-up", "×", ratio("done_seconds")),
        Measure("drain beside a held snapshot", "rows/s", tuple(_rate(held, rows))),
        Measure("drain without", "rows/s", tuple(_rate(free, rows))),
        Measure(
            "start path beside a held snapshot",
            "s",
            each(held, "startup_seconds"),
            note="the whole start of the process",
        ),
        Measure("start path without", "s", each(free, "startup_seconds"), note="the whole start of the process"),
        Measure("single event beside a held snapshot, median", "ms", (statistics.median(held.probes_ms),)),
        Measure("single event without, median", "ms", (statistics.median(free.probes_ms),)),
    ]


def _profile(when: str, admin: psycopg.Connection, held: Side, free: Side) -> str:
    return statements_table(when, statements.read(admin, held.url), statements.read(admin, free.url))


def statements_table(when: str, held: dict[str, statements.Statement], free: dict[str, statements.Statement]) -> str:
    return f"{when}, the statements that took the most time beside the held snapshot:\n\n" + statements.compare(
        held, free, ("held", "free")
    )
