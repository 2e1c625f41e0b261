"""What an idle relay costs, and how soon it sees the first event."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from typing import TYPE_CHECKING

import psycopg

from bench import fill, statements
from bench.measure import Measure, at_most
from bench.relay_process import RelayProcess
from bench.scene import Findings
from bench.watch import Watch
from bench.writers import INSERT
from tests.servers import postgresql
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "idle"
TITLE = "An idle relay"
ABOUT = """\
`outbox relay` as a daemon on an out table into which nobody writes. Statements are all that the server counts for the
relay's database (pg_stat_statements), the lease's renewal and the cleaner's looks included. The processor share is the
relay's own, of one core, all threads. Then single events come, each after a pause: from COMMIT answered to durable in the
stream. The pause between polls grows to its limit within a second, so a few seconds of idling stand for an hour of it."""

SECONDS_FULL, SECONDS_QUICK = 20.0, 5.0
PROBES_FULL, PROBES_QUICK = 30, 5
PROBE_PAUSE_SECONDS = 2.0
SETTLE_SECONDS = 3.0


def run(run: Run) -> Findings:
    rates: list[float] = []
    cpu_shares: list[float] = []
    firsts: list[float] = []
    worst: list[float] = []
    resident_mb: list[float] = []
    stream = run.folder / "stream"
    server = PostgresServer(settings=(statements.EXTENSION,)).start()
    try:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            statements.create_extension(admin)
            for number in range(run.rounds):
                url = postgresql.fresh_database(server.url())
                fill.install_outbox(url)
                with RelayProcess(url, stream) as relay:
                    relay.wait_until_leading()
                    time.sleep(SETTLE_SECONDS)
                    share, rate = _idle(run, relay, admin, url)
                    rates.append(rate)
                    cpu_shares.append(share * 100)
                    resident_mb.append(relay.resident_bytes() / 1e6)
                    with Watch(stream) as watch:
                        latencies = probe(url, watch, run.rows(PROBES_FULL, PROBES_QUICK), PROBE_PAUSE_SECONDS)
                    firsts.append(statistics.median(latencies))
                    worst.append(max(latencies))
                shutil.rmtree(stream)
                run.say(
                    f"round {number + 1}: {rate:.1f} statements/s, {share:.2%} of a core, first event {firsts[-1]:.1f} ms, "
                    f"at most {worst[-1]:.1f} ms"
                )
    finally:
        server.destroy()
    return Findings(
        [
            Measure("statements while idle", "/s", tuple(rates), at_most(20)),
            Measure("share of a core while idle", "%", tuple(cpu_shares), at_most(1)),
            Measure("first event after idling, the slowest", "ms", tuple(worst), at_most(100)),
            Measure("first event after idling, median", "ms", tuple(firsts)),
            Measure("memory while idle", "MB", tuple(resident_mb), note="resident"),
        ],
        [
            f"{run.rows(PROBES_FULL, PROBES_QUICK)} single events a round, each after {PROBE_PAUSE_SECONDS:.0f} s without any; "
            f"the idle time was {run.seconds(SECONDS_FULL, SECONDS_QUICK):.0f} s a round."
        ],
    )


def _idle(run: Run, relay: RelayProcess, admin: psycopg.Connection, url: str) -> tuple[float, float]:
    """The share of a core and the statements a second over some idle time."""

    def look() -> tuple[float, float, int]:
        return time.monotonic(), relay.cpu_seconds(), statements.count(admin, url)

    since, cpu_before, calls_before = look()
    time.sleep(run.seconds(SECONDS_FULL, SECONDS_QUICK))
    until, cpu_after, calls_after = look()
    seconds = until - since
    return (cpu_after - cpu_before) / seconds, (calls_after - calls_before) / seconds


def probe(url: str, watch: Watch, events: int, pause_seconds: float) -> list[float]:
    """The milliseconds from COMMIT answered to durable, of single events with a pause before each."""
    latencies = []
    chance = random.Random(7)
    with psycopg.connect(url) as connection:
        for number in range(events):
            # Not in step with the relay's polls.
            time.sleep(pause_seconds + chance.uniform(0, 0.2))
            found = connection.execute(INSERT, ("probe", f"probe-{number}", fill.json_of(number))).fetchone()
            connection.commit()
            answered_ns = time.time_ns()
            assert found
            latencies.append((watch.wait_for(int(found[0])) - answered_ns) / 1e6)
    return latencies
