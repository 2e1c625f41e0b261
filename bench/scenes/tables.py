"""Tables that change: upsert and scd2, by how much of the table a batch touches, and by the table's size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.events import batches
from bench.measure import Measure
from bench.scene import Findings
from bench.spark import bench_session, spec_of
from outbox.batch import EventBatch
from spark_sink.materializer import Materializer
from stream_store import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scene import Run

NAME = "tables"
TITLE = "Tables that change: upsert and scd2"
ABOUT = """\
A table of as many keys as the base has events; then one batch of events is merged into it, of which either 1% or all
belong to keys that the table has. The rate counts the batch's events from the call to the durable commit. An append
commit of the same size is measured on the same table sizes: it does not depend on them, a merge reads the table."""

BASE_FULL, BASE_QUICK = (1_000_000, 10_000_000), (20_000,)
BATCH_FULL, BATCH_QUICK = 100_000, 5_000
OVERLAPS = {"1%": 0.01, "100%": 1.0}


def run(run: Run) -> Findings:
    spark = bench_session()
    measures = []
    curves: dict[str, list[tuple[int, float]]] = {}
    for base in BASE_QUICK if run.quick else BASE_FULL:
        batch_rows = run.rows(BATCH_FULL, BATCH_QUICK)
        url = f"file://{run.folder / f'stream-{base}'}"
        specs = {mode: spec_of(str(run.folder / f"{mode}-{base}"), mode=mode) for mode in ("append", "upsert", "scd2")}
        with open_stream(url, "write") as stream:
            stream.bind("bench", "/bench")
            for batch in batches(base):
                stream.append(_with_keys(batch, base, 1.0, fresh=False))
            seconds = {mode: _run(spark, url, [spec]) for mode, spec in specs.items()}
            run.say(f"{base:,} events: " + ", ".join(f"{mode} {took:.1f} s" for mode, took in seconds.items()))
            for label, share in OVERLAPS.items():
                for batch in _more(stream.tail(), batch_rows, base, share):
                    stream.append(batch)
                for mode, spec in specs.items():
                    took = _run(spark, url, [spec])
                    rate = batch_rows / took
                    run.say(f"{mode}, {label} of {batch_rows:,} into {base:,}: {rate:,.0f}/s")
                    name = f"{mode}: {batch_rows:,} events, {label} of them of known keys, into {base:,}"
                    measures.append(Measure(name, "events/s", (rate,)))
                    curves.setdefault(f"{mode}, {label}", []).append((base, rate))
    return Findings(measures, series={"rates": curves})


def _run(spark: Any, url: str, specs: list[Any]) -> float:
    with Materializer(spark, url, specs) as materializer:
        started = time.perf_counter()
        materializer.run_once()
        return time.perf_counter() - started


def _with_keys(batch: EventBatch, base: int, share: float, *, fresh: bool) -> EventBatch:
    """The batch with a key for each event: of the base, or new ones."""
    known = int(len(batch) * share) if fresh else len(batch)
    keys = [f"k{(event_id - 1) % base}" for event_id in batch.ids[:known].to_pylist()]
    keys += [f"n{event_id}" for event_id in batch.ids[known:].to_pylist()]
    columns = list(batch.rows.columns)
    columns[batch.rows.schema.get_field_index("subject")] = pa.array(keys, pa.string())
    return EventBatch(batch.prev_id, pa.record_batch(columns, schema=batch.rows.schema))


def _more(tail: int, rows: int, base: int, share: float) -> Iterator[EventBatch]:
    at = tail
    for batch in batches(rows):
        ids = pa.array(range(at + 1, at + len(batch) + 1), pa.int64())
        moved = EventBatch(at, pa.record_batch([ids, *batch.rows.columns[1:]], schema=batch.rows.schema))
        yield _with_keys(moved, base, share, fresh=True)
        at += len(batch)
