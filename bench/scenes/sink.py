"""The Spark sink: a backlog into Delta, and small batches."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bench.events import batches
from bench.measure import Measure, at_least, at_most, percentile
from bench.rivals import dlt_pipeline, spark_jobs
from bench.scene import Findings
from bench.spark import SCHEMA, bench_session, sink_once, spec_of
from spark_sink.materializer import Materializer
from spark_sink.reading import read_local
from spark_sink.spans import Span
from stream_store import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.scene import Run

NAME = "sink"
TITLE = "The sink: a stream into a Delta table"
ABOUT = """\
One local Spark session, warmed up, on all cores. A backlog of events of about 200 bytes goes from a `file://` stream into
a new append table (`Materializer.run_once`, which is what `outbox sink --once` calls: bookmark, read, commit by
compare-and-set, fsync of every file). Beside it, in the same session, turn by turn:

- *parquet → Delta*: the same rows from parquet files into a new Delta table, by Spark itself. No stream, no bookmark.
- *from_json job*: the body of a foreachBatch as tutorials have it, from the same parquet files, with `txnAppId` and
  `txnVersion`; beside our sink with the same fields as typed columns, wrong rows looked for.
- *dlt*: a pipeline in a process of its own, whose start is not counted, from the same parquet files into a Delta table by
  its filesystem destination: Arrow tables handed on as they are (its fastest way), and dicts of the parsed JSON, which is
  how it makes typed columns.

A small batch is 1,000 rows: from the call to the durable commit, beside a bare append of the same rows, which are in
memory already, and beside one with Delta's options for idempotent writes."""

EVENTS_FULL, EVENTS_QUICK = 1_000_000, 60_000
# One by one they take a minute for every 100,000.
DICTS_FULL, DICTS_QUICK = 100_000, 5_000
SMALL_ROWS = 1_000
SMALL_BATCHES_FULL, SMALL_BATCHES_QUICK = 15, 3


def run(run: Run) -> Findings:
    events = run.rows(EVENTS_FULL, EVENTS_QUICK)
    spark = bench_session()
    url = f"file://{run.folder / 'stream'}"
    parquet = str(run.folder / "parquet")
    with run.step(f"{events:,} events into a stream and into parquet"):
        _fill(url, events)
        _as_parquet(url, events, run.folder / "parquet")
    contests: dict[str, Callable[[str], None]] = {
        "sink": lambda table: sink_once(spark, url, spec_of(table)),
        "parquet": lambda table: spark_jobs.parquet_to_delta(spark, parquet, table),
        "typed": lambda table: sink_once(spark, url, spec_of(table, schema=SCHEMA)),
        "from_json": lambda table: spark_jobs.from_json_job(spark, parquet, SCHEMA, table, 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in contests}
    with run.step("warm-up"):
        for name, contest in contests.items():
            _time(run.folder / f"warm-{name}", contest)
    for number in range(run.rounds):
        for name, contest in contests.items():
            rates[name].append(events / _time(run.folder / f"{name}-{number}", contest))
        run.say(f"round {number + 1}: " + ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items()))
    dlt_rates = _dlt(run, events)
    small = [_small(run, spark, number) for number in range(run.rounds)]
    sink_ms, bare_ms, options_ms, p99_ms = (tuple(column) for column in zip(*small, strict=True))
    return Findings(
        [
            Measure("sink against parquet → Delta", "×", _ratio(rates, "sink", "parquet"), at_least(0.9)),
            Measure("typed sink against a from_json job", "×", _ratio(rates, "typed", "from_json")),
            Measure(
                "small batch: sink against a bare append",
                "×",
                tuple(ours / theirs for ours, theirs in zip(sink_ms, bare_ms, strict=True)),
                at_most(1.25),
            ),
            Measure("sink: stream → Delta", "rows/s", tuple(rates["sink"])),
            Measure("parquet → Delta", "rows/s", tuple(rates["parquet"])),
            Measure("sink: stream → typed Delta", "rows/s", tuple(rates["typed"])),
            Measure("from_json job: parquet → typed Delta", "rows/s", tuple(rates["from_json"])),
            *_against_dlt(rates, dlt_rates),
            Measure("small batch: sink", "ms", sink_ms, note="median of the round's batches"),
            Measure("small batch: sink, p99", "ms", p99_ms),
            Measure("small batch: bare append", "ms", bare_ms),
            Measure("small batch: append with txnAppId", "ms", options_ms),
        ],
        [
            f"{events:,} events; small batches of {SMALL_ROWS:,} rows.",
            f"dlt {dlt_pipeline.VERSION}; of dicts, {run.rows(DICTS_FULL, DICTS_QUICK):,}.",
        ],
        {"rates": {**rates, **dlt_rates}, "small_ms": {"sink": sink_ms, "bare": bare_ms, "options": options_ms}},
    )


def _dlt(run: Run, events: int) -> dict[str, list[float]]:
    """dlt's rates; none where it cannot be had."""
    try:
        with run.step(f"dlt {dlt_pipeline.VERSION} in an environment of its own"):
            dlt_pipeline.build()
    except dlt_pipeline.Missing as error:
        run.say(f"without dlt: {error}")
        return {}
    sizes = {"arrow": events, "dicts": run.rows(DICTS_FULL, DICTS_QUICK)}
    found: dict[str, list[float]] = {f"dlt {way}": [] for way in sizes}
    for number in range(run.rounds):
        for way, rows in sizes.items():
            lake = run.folder / f"dlt-{way}-{number}"
            lake.mkdir()
            found[f"dlt {way}"].append(dlt_pipeline.rate(run.folder / "parquet", lake, way, rows))
            shutil.rmtree(lake)
        run.say(f"round {number + 1}: " + ", ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in found.items()))
    return found


def _against_dlt(rates: dict[str, list[float]], dlt_rates: dict[str, list[float]]) -> list[Measure]:
    if not dlt_rates:
        return []
    both = {**rates, **dlt_rates}
    return [
        Measure("sink against dlt", "×", _ratio(both, "sink", "dlt arrow")),
        Measure("typed sink against dlt", "×", _ratio(both, "typed", "dlt dicts")),
        Measure("dlt: Arrow → Delta", "rows/s", tuple(dlt_rates["dlt arrow"])),
        Measure("dlt: dicts → typed Delta", "rows/s", tuple(dlt_rates["dlt dicts"])),
    ]


def _fill(url: str, events: int) -> None:
    with open_stream(url, "write") as stream:
        stream.bind("bench", "/bench")
        for batch in batches(events):
            stream.append(batch)


def _as_parquet(url: str, events: int, folder: Path) -> None:
    folder.mkdir()
    step = max(events // 4, 1)
    for part, after in enumerate(range(0, events, step)):
        rows = read_local(url, Span(after, min(after + step, events)))
        pq.write_table(rows, folder / f"part-{part}.parquet")


def _time(table: Path, contest: Callable[[str], None]) -> float:
    started = time.perf_counter()
    contest(str(table))
    seconds = time.perf_counter() - started
    shutil.rmtree(table)
    return seconds


def _ratio(rates: dict[str, list[float]], ours: str, theirs: str) -> tuple[float, ...]:
    return tuple(one / other for one, other in zip(rates[ours], rates[theirs], strict=True))


def _small(run: Run, spark: object, number: int) -> tuple[float, float, float, float]:
    """Milliseconds of a small batch: sink, bare append, append with options, and the sink's p99."""
    count = int(run.rows(SMALL_BATCHES_FULL, SMALL_BATCHES_QUICK))
    url = f"file://{run.folder / f'small-{number}'}"
    tables = {name: str(run.folder / f"small-{name}-{number}") for name in ("sink", "bare", "options")}
    found: dict[str, list[float]] = {name: [] for name in tables}
    parts = list(batches(SMALL_ROWS * (count + 2), SMALL_ROWS))
    with open_stream(url, "write") as stream:
        stream.bind("bench", "/bench")
        with Materializer(spark, url, [spec_of(tables["sink"])]) as materializer:  # type: ignore[arg-type]
            for turn, batch in enumerate(parts):
                stream.append(batch)
                rows = read_local(url, Span(batch.prev_id, batch.last_id))
                for name, work in (
                    ("sink", materializer.run_once),
                    ("bare", lambda rows=rows: spark_jobs.bare_append(spark, rows, tables["bare"])),
                    (
                        "options",
                        lambda rows=rows, turn=turn: spark_jobs.append_by_options(spark, rows, tables["options"], turn),
                    ),
                ):
                    started = time.perf_counter()
                    work()
                    if turn >= 2:  # the first ones make the tables
                        found[name].append((time.perf_counter() - started) * 1e3)
    medians = {name: statistics.median(times) for name, times in found.items()}
    run.say(f"small batches, round {number + 1}: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in medians.items()))
    return medians["sink"], medians["bare"], medians["options"], percentile(found["sink"], 0.99)
