"""The Kafka stream beside the Kafka client by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.measure import Measure, at_least, percentile
from bench.rivals import bare_kafka
from bench.scene import Findings
from stream_store import open_stream
from stream_store.kafka.records import encode
from tests.servers.kafka import JAVA, KafkaServer, fresh_topic, version

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "kafka"
TITLE = "The Kafka stream"
ABOUT = """\
Appending to a `kafka://` stream and reading it back, beside a bare confluent-kafka producer that writes the same records
in transactions of the same size, and a bare consumer that takes key, value and headers of each. One broker on the same two
cores. The stream also makes the records from Arrow, keeps its state in the same transaction, waits until readers see the
commit; and it makes Arrow of what it reads and checks the chain."""

EVENTS_FULL, EVENTS_QUICK = 500_000, 50_000
SMALL_FULL, SMALL_QUICK = 300, 50
BATCH_ROWS = 25_000


def run(run: Run) -> Findings:
    events = run.rows(EVENTS_FULL, EVENTS_QUICK)
    large = list(batches(events, BATCH_ROWS))
    small = list(batches(run.rows(SMALL_FULL, SMALL_QUICK), 1))
    figures: dict[str, list[float]] = {}
    # Without the switch that makes it start quickly and run slowly.
    server = KafkaServer(tuple(flag for flag in JAVA if "Tiered" not in flag)).start()
    try:
        for number in range(run.rounds + 1):
            found = _round(server.servers, large, small, events)
            if number == 0 and not run.quick:
                continue  # the broker is cold
            for name, value in found.items():
                figures.setdefault(name, []).append(value)
            run.say(f"round {number}: " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))
    finally:
        server.destroy()
    take = {name: tuple(values) for name, values in figures.items()}
    ratio = {
        name: tuple(ours / bare for ours, bare in zip(take[name], take[f"bare {name}"], strict=True))
        for name in ("append", "read")
    }
    return Findings(
        [
            Measure(f"append, {BATCH_ROWS:,} events a transaction", "events/s", take["append"]),
            Measure("the same by a bare producer", "events/s", take["bare append"]),
            Measure("append against the bare producer", "×", ratio["append"], at_least(0.8)),
            Measure("append of one event, p50", "ms", take["one"]),
            Measure("the same by a bare producer, p50", "ms", take["bare one"]),
            Measure("read", "events/s", take["read"]),
            Measure("the same by a bare consumer", "events/s", take["bare read"]),
            Measure("read against the bare consumer", "×", ratio["read"], at_least(0.8)),
            Measure("open for writing, with the tail found", "ms", take["open"]),
        ],
        [f"Kafka {version()}, one broker; {events:,} events of about 200 bytes."],
    )


def _round(servers: str, large: list, small: list, events: int) -> dict[str, float]:
    found = {}
    topic = fresh_topic(servers).rpartition("/")[2]
    bare_kafka.create(servers, topic)
    found["bare append"] = events / sum(
        bare_kafka.append_seconds(servers, topic, [list(encode(b, "/bench")) for b in large])
    )
    found["bare read"] = events / bare_kafka.read_seconds(servers, topic, events)
    url = fresh_topic(servers)
    with open_stream(url, "write") as stream:
        stream.bind("bench", "/bench")
        started = time.perf_counter()
        for batch in large:
            stream.append(batch)
        found["append"] = events / (time.perf_counter() - started)
    with open_stream(url) as stream:
        started = time.perf_counter()
        read = sum(len(batch) for batch in stream.read(0))
        found["read"] = events / (time.perf_counter() - started)
    assert read == events, (read, events)
    started = time.perf_counter()
    open_stream(url, "write").close()
    found["open"] = (time.perf_counter() - started) * 1e3
    with open_stream(fresh_topic(servers), "write") as stream:
        spent = []
        for batch in small:
            started = time.perf_counter()
            stream.append(batch)
            spent.append((time.perf_counter() - started) * 1e3)
    found["one"] = percentile(spent, 0.5)
    topic = fresh_topic(servers).rpartition("/")[2]
    bare_kafka.create(servers, topic)
    bare = bare_kafka.append_seconds(servers, topic, [list(encode(batch, "/bench")) for batch in small])
    found["bare one"] = percentile([each * 1e3 for each in bare], 0.5)
    return found
