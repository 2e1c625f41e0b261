"""The Redis stream beside its client library by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.measure import Measure, at_least
from bench.rivals import redis_pipeline
from bench.scene import Findings
from stream_store import open_stream
from tests.servers.redis import DURABLE, EVERY_SECOND, RedisServer

if TYPE_CHECKING:
    from bench.scene import Run
    from outbox.batch import EventBatch

NAME = "redis"
TITLE = "The Redis stream"
ABOUT = """\
Appending to a `redis://` stream and reading it back, in batches of 10,000 events of about 200 bytes, beside what Redis' own
client does by itself on the same server: no chain, no compare-and-set, no Arrow. Server and client share the machine's
cores."""

EVENTS_FULL, EVENTS_QUICK = 300_000, 30_000
BATCH_ROWS = 10_000
SHARE = 0.8


def append_and_read(url: str, events: list[EventBatch]) -> tuple[float, float]:
    """Events per second into and out of a new stream."""
    count = sum(len(batch) for batch in events)
    with open_stream(url, "write") as stream:
        started = time.perf_counter()
        for batch in events:
            stream.append(batch)
        append = count / (time.perf_counter() - started)
        started = time.perf_counter()
        assert sum(len(batch) for batch in stream.read(0)) == count
        return append, count / (time.perf_counter() - started)


def run(run: Run) -> Findings:
    events = list(batches(run.rows(EVENTS_FULL, EVENTS_QUICK), BATCH_ROWS))
    measures, remarks = [], []
    for settings, name in ((DURABLE, "appendfsync always"), (EVERY_SECOND, "appendfsync everysec")):
        ours, bare, read, bare_read = [], [], [], []
        for number in range(run.rounds):
            server = RedisServer(*settings, on_disk=True).start()
            try:
                append, reading = append_and_read(f"{server.url}/ours", events)
                with server.client() as client:
                    remarks[:1] = [f"Redis {client.info('server')['redis_version']} on the same machine."]
                    bare.append(redis_pipeline.append_all(client, "bare", events))
                    bare_read.append(redis_pipeline.read_all(client, "bare"))
            finally:
                server.destroy()
            ours.append(append)
            read.append(reading)
            run.say(
                f"redis {name}, round {number + 1}: append {append:,.0f} ({bare[-1]:,.0f} bare), read {reading:,.0f}"
            )
        measures += compared(f"redis://, {name}: append", ours, bare, "a bare XADD pipeline")
        measures += compared(f"redis://, {name}: read", read, bare_read, "a bare XRANGE loop")
    return Findings(measures, remarks)


def compared(name: str, ours: list[float], bare: list[float], rival: str) -> list[Measure]:
    """Our rate, the rival's, and the ratio by rounds."""
    ratios = tuple(one / other for one, other in zip(ours, bare, strict=True))
    return [
        Measure(name, "events/s", tuple(ours)),
        Measure(f"{name}, {rival}", "events/s", tuple(bare)),
        Measure(f"{name} against {rival}", "×", ratios, at_least(SHARE)),
    ]
