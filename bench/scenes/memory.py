"""The relay's memory does not grow with the backlog."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bench import fill
from bench.measure import Measure, at_most
from bench.relay_process import RelayProcess
from bench.scene import Findings
from tests.servers import postgresql
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "memory"
TITLE = "Memory"
ABOUT = """\
The most memory that the process of `outbox relay --once` had resident (the kernel's VmHWM: code, libraries and shared
pages included) while it drained a backlog from PostgreSQL into `file://` and cleaned up."""

BACKLOGS_FULL = (100_000, 1_000_000, 5_000_000)
BACKLOGS_QUICK = (20_000, 200_000)


def run(run: Run) -> Findings:
    measures = []
    backlogs = BACKLOGS_QUICK if run.quick else BACKLOGS_FULL
    stream = run.folder / "stream"
    server = PostgresServer().start()
    try:
        for rows in backlogs:
            url = postgresql.fresh_database(server.url())
            fill.install_outbox(url)
            with run.step(f"{rows:,} rows into PostgreSQL"):
                fill.fill_postgresql(url, rows)
            with RelayProcess(url, stream, "--once") as relay:
                relay.wait_until_durable(rows)
                relay.wait_until_done()
                peak_mb = relay.peak_bytes() / 1e6
            shutil.rmtree(stream)
            fill.drop_postgresql(server.url(), url)
            measures.append(Measure(f"peak at {rows:,} rows", "MB", (peak_mb,), at_most(300)))
            run.say(str(measures[-1]))
    finally:
        server.destroy()
    growth = measures[-1].value / measures[0].value
    measures.append(Measure(f"peak at {backlogs[-1]:,} rows against {backlogs[0]:,}", "×", (growth,)))
    curve = [(rows, measure.value) for rows, measure in zip(backlogs, measures, strict=False)]
    return Findings(measures, ["One drain each: the kernel's figure is a maximum, not a sample."], {"peak": curve})
