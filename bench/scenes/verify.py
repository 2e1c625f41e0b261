"""`outbox verify`: proving large tables, and what that takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.events import batches
from bench.measure import Measure
from bench.relay_process import ROOT
from bench.scene import Findings
from bench.spark import SCHEMA, bench_session, sink_once, spec_of
from stream_store import open_stream

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "verify"
TITLE = "Verify: a stream against its Delta tables"
ABOUT = """\
`outbox verify --stream … --table …` as a process of its own, with its default settings (2 GB for Spark's driver, which is
all of Spark here), on tables that are right: every event of the stream and every row of the tables is read, made into a
digest and compared. 50,000 keys. The rate is that of one table, without the start of Spark. Memory is the most that the
program, Spark and its Python workers had resident together, looked at twice a second."""

EVENTS_FULL, EVENTS_QUICK = (1_000_000, 10_000_000), (100_000,)
TABLES: dict[str, dict[str, str]] = {
    "append": {},
    "append, typed columns": {"schema": SCHEMA},
    "upsert": {"mode": "upsert"},
    "scd2": {"mode": "scd2"},
}


def run(run: Run) -> Findings:
    measures, curve = [], []
    rates: dict[str, list[tuple[int, float]]] = {}
    for events in EVENTS_QUICK if run.quick else EVENTS_FULL:
        url = f"file://{run.folder / f'stream-{events}'}"
        specs = {
            name: spec_of(str(run.folder / f"t{at}-{events}"), **more) for at, (name, more) in enumerate(TABLES.items())
        }
        with run.step(f"{events:,} events into a stream"), open_stream(url, "write") as stream:
            stream.bind("bench", "/bench")
            for batch in batches(events):
                stream.append(batch)
        for name, spec in specs.items():
            with run.step(f"{events:,} events into a table ({name})"):
                sink_once(bench_session(), url, spec)
        names = [str(spec.table) for spec in specs.values()]
        document, seconds, peak_bytes = verify(url, names)
        assert document["ok"], document
        for name, table in zip(specs, document["tables"], strict=True):
            run.say(f"{name}: {table['seconds']:.1f} s, {events / table['seconds']:,.0f} events/s")
            measures.append(Measure(f"{name}: {events:,} events", "events/s", (events / table["seconds"],)))
            rates.setdefault(name, []).append((events, events / table["seconds"]))
        measures.append(Measure(f"all of it, with the start of Spark: {events:,} events", "s", (seconds,)))
        measures.append(Measure(f"the most memory at {events:,} events", "MB", (peak_bytes / 1e6,)))
        run.say(f"{seconds:.0f} s, {peak_bytes / 1e6:,.0f} MB")
        curve.append((events, peak_bytes / 1e6))
    return Findings(measures, series={"peak": curve, "rates": rates})


def verify(url: str, tables: list[str]) -> tuple[dict[str, Any], float, int]:
    """The program's answer, how long it took, and the most memory that it and its children had."""
    flags = [word for table in tables for word in ("--table", table)]
    command = [sys.executable, "-m", "cli.main", "verify", "--stream", url, *flags, "--json"]
    started = time.monotonic()
    peak_bytes = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak_bytes = max(peak_bytes, resident_bytes(process.pid))
            time.sleep(0.5)
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
    return document, time.monotonic() - started, peak_bytes


def resident_bytes(pid: int) -> int:
    """What a process and its children have in memory, pages that they share counted once each."""
    total = 0
    for each in [pid, *_children(pid)]:
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text("ascii")
        except OSError:  # it has ended
            continue
        total += next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            numbers = [int(number) for number in path.read_text("ascii").split()]
        except OSError:
            continue
        for number in numbers:
            found += [number, *_children(number)]
    return found
