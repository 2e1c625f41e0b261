"""The file stream by itself."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.machine import fsync_seconds
from bench.measure import Measure, percentile
from bench.scene import Findings
from stream_store import open_stream

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "stream"
TITLE = "The file stream by itself"
ABOUT = """\
Appending to a `file://` stream without a relay, each append durable (`fsync`) before the next, and reading it back in
the same process, from the page cache. For information: there is no budget. Megabytes are those of the events' Arrow
buffers."""

EVENTS_FULL, EVENTS_QUICK = 1_000_000, 100_000
SMALL_APPENDS_FULL, SMALL_APPENDS_QUICK = 1_000, 200


def run(run: Run) -> Findings:
    events = run.rows(EVENTS_FULL, EVENTS_QUICK)
    appends, append_mb, reads, small_p50, small_p99 = [], [], [], [], []
    folder = run.folder / "stream"
    large, small = list(batches(events)), list(batches(run.rows(SMALL_APPENDS_FULL, SMALL_APPENDS_QUICK), 1))
    size_mb = sum(batch.rows.nbytes for batch in large) / 1e6
    for number in range(run.rounds):
        with open_stream(f"file://{folder}", "write") as stream:
            started = time.perf_counter()
            for batch in large:
                stream.append(batch)
            seconds = time.perf_counter() - started
        appends.append(events / seconds)
        append_mb.append(size_mb / seconds)
        with open_stream(f"file://{folder}", "read") as stream:
            started = time.perf_counter()
            read = sum(len(batch) for batch in stream.read(0))
            reads.append(read / (time.perf_counter() - started))
        assert read == events, (read, events)
        shutil.rmtree(folder)
        latencies = []
        with open_stream(f"file://{folder}", "write") as stream:
            for batch in small:
                started = time.perf_counter()
                stream.append(batch)
                latencies.append((time.perf_counter() - started) * 1e3)
        shutil.rmtree(folder)
        small_p50.append(percentile(latencies, 0.5))
        small_p99.append(percentile(latencies, 0.99))
        run.say(
            f"round {number + 1}: append {append_mb[-1]:.0f} MB/s, small {small_p50[-1]:.2f} ms, read {reads[-1]:,.0f} events/s"
        )
    return Findings(
        [
            Measure("append, 50,000 events at a time", "events/s", tuple(appends)),
            Measure("append, the same in megabytes", "MB/s", tuple(append_mb)),
            Measure("append of one event, p50", "ms", tuple(small_p50)),
            Measure("append of one event, p99", "ms", tuple(small_p99)),
            Measure("a bare write and fsync of 4 KiB, median", "ms", (fsync_seconds(run.folder) * 1e3,)),
            Measure("read", "events/s", tuple(reads), note="checksums and the chain checked"),
        ]
    )
