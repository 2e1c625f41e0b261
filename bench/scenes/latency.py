"""From COMMIT to durable in the stream, under a steady load."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bench import fill
from bench.measure import Measure, at_most, percentile
from bench.relay_process import RelayProcess
from bench.rivals import debezium
from bench.scene import Findings
from bench.sleeper import Sleeper
from bench.watch import Watch
from bench.writers import write_paced
from tests.servers import postgresql
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scene import Run
    from bench.writers import Commit

NAME = "latency"
TITLE = "From COMMIT to durable in the stream"
ABOUT = """\
8 writer processes insert 1,000 rows a second in total, a row per transaction, while `outbox relay` runs as a daemon and
cleans up behind itself. A row's latency counts from the moment its COMMIT was answered to the writer, to the moment
another process sees it durable in the stream; both by the same machine's clock. Writers, database, relay and observer
share the cores. The first 15 seconds of each round are not counted. Beside them a process sleeps for 2 ms at a time and
notes by how much it overslept: that is what the machine adds to each step of anybody, and a row's way has about eight.

Debezium's embedded engine with its outbox event router gets the same load on a server with `wal_level=logical`; its
latency ends when the event is handed to a consumer, where nothing is durable yet."""

WRITERS = 8
ROWS_PER_SECOND = 1_000
SECONDS_FULL, SECONDS_QUICK = 30.0, 5.0
# Java takes longer than Python to reach its speed; both get the same.
WARM_SECONDS_FULL, WARM_SECONDS_QUICK = 15.0, 5.0
SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)


def run(run: Run) -> Findings:
    rounds = [_measure_relay(run, number) for number in range(run.rounds)]
    answered = [[latency for latency, _ in found] for found, _, _ in rounds]
    sent = [[latency for _, latency in found] for found, _, _ in rounds]
    measures = [
        Measure("relay, p50", "ms", _percentiles(answered, 0.5), at_most(5)),
        Measure("relay, p99", "ms", _percentiles(answered, 0.99), at_most(20)),
        Measure("relay, p99.9", "ms", _percentiles(answered, 0.999)),
        Measure("relay, the slowest row", "ms", _percentiles(answered, 1.0)),
        Measure(
            "relay, p50 from when COMMIT was sent", "ms", _percentiles(sent, 0.5), note="with the commit's own sync"
        ),
        Measure(
            "relay, p99 from when COMMIT was sent", "ms", _percentiles(sent, 0.99), note="with the commit's own sync"
        ),
        Measure("a process that only sleeps, late by, p99", "ms", _percentiles([late for _, _, late in rounds], 0.99)),
        Measure("rows written during the relay's rounds", "rows/s", tuple(rate for _, rate, _ in rounds)),
    ]
    series = {"relay": _curve(answered)}
    remarks = []
    try:
        debezium.build()
        theirs = [_measure_debezium(run, number) for number in range(run.rounds)]
        measures += [
            Measure(f"Debezium, {label}", "ms", _percentiles(theirs, share))
            for label, share in (("p50", 0.5), ("p99", 0.99), ("the slowest row", 1.0))
        ]
        series["Debezium"] = _curve(theirs)
        remarks.append(f"Debezium {debezium.version()}: its defaults, with `poll.interval.ms=1` (default 500).")
    except debezium.Missing as missing:
        remarks.append(f"Debezium was not measured: {missing}.")
    return Findings(measures, remarks, series)


def _measure_relay(run: Run, number: int) -> tuple[list[tuple[float, float]], float, list[float]]:
    """Milliseconds of each row from COMMIT answered and from COMMIT sent, the rows a second, a sleeper's lateness."""
    stream = run.folder / "stream"
    server = PostgresServer().start()
    try:
        url = postgresql.fresh_database(server.url())
        fill.install_outbox(url)
        with RelayProcess(url, stream) as relay:
            relay.wait_until_leading()
            with Watch(stream) as watch, Sleeper() as sleeper:
                commits = _load(run, url)
                watch.wait_for(commits[-1].event_id)
                counted = _after_warming(run, commits)
                found = [
                    (
                        (watch.durable_at_ns(commit.event_id) - commit.answered_ns) / 1e6,
                        (watch.durable_at_ns(commit.event_id) - commit.sent_ns) / 1e6,
                    )
                    for commit in counted
                ]
            relay.require_alive()
    finally:
        server.destroy()
    shutil.rmtree(stream)
    rate = _rate(counted)
    latencies = [latency for latency, _ in found]
    run.say(f"round {number + 1}: {_spoken(latencies)} at {rate:,.0f} rows/s, {len(found):,} rows")
    return found, rate, sleeper.late_ms


def _measure_debezium(run: Run, number: int) -> list[float]:
    folder: Path = run.folder / f"debezium-{number}"
    folder.mkdir()
    server = debezium.start_server()
    try:
        url = postgresql.fresh_database(server.url())
        fill.install_outbox(url)
        debezium.create_slot(url)
        with debezium.Follower(debezium.write_config(url, folder)) as engine:
            # One row first: Java takes its time to start.
            write_paced(url, 1, 1, 1)
            engine.wait_for(1)
            commits = _load(run, url)
            engine.wait_for(1 + len(commits))
            handed_over = engine.finish()
    finally:
        server.destroy()
    found = [(handed_over[commit.event_id] - commit.answered_ns) / 1e6 for commit in _after_warming(run, commits)]
    run.say(f"round {number + 1}: Debezium {_spoken(found)}")
    return found


def _load(run: Run, url: str) -> list[Commit]:
    seconds = _warm_seconds(run) + run.seconds(SECONDS_FULL, SECONDS_QUICK)
    return write_paced(url, WRITERS, ROWS_PER_SECOND, seconds)


def _warm_seconds(run: Run) -> float:
    return run.seconds(WARM_SECONDS_FULL, WARM_SECONDS_QUICK)


def _after_warming(run: Run, commits: list[Commit]) -> list[Commit]:
    start_ns = min(commit.sent_ns for commit in commits) + _warm_seconds(run) * 1e9
    return [commit for commit in commits if commit.sent_ns >= start_ns]


def _rate(commits: list[Commit]) -> float:
    first, last = min(commit.sent_ns for commit in commits), max(commit.sent_ns for commit in commits)
    return len(commits) / ((last - first) / 1e9)


def _percentiles(rounds: list[list[float]], share: float) -> tuple[float, ...]:
    return tuple(percentile(latencies, share) for latencies in rounds)


def _curve(rounds: list[list[float]]) -> list[tuple[float, float]]:
    together = [latency for latencies in rounds for latency in latencies]
    return [(share, percentile(together, share)) for share in SHARES]


def _spoken(latencies: list[float]) -> str:
    return ", ".join(
        f"{name} {percentile(latencies, share):.1f} ms" for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )
