"""Consumer groups on SQLite state."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.measure import Measure, at_least
from bench.scene import Findings
from stream_store import Group, open_stream

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "groups"
TITLE = "Consumer groups"
ABOUT = """\
One member of a durable group takes a backlog from a `file://` stream, the group's state in the SQLite file beside it,
every commit fsynced. In batches of 10,000 each is acknowledged before the next; one by one each event becomes a Python
object and acknowledgements are written together, as they are by default. The handler does nothing."""

BATCHED_FULL, BATCHED_QUICK = 1_000_000, 100_000
SINGLE_FULL, SINGLE_QUICK = 200_000, 20_000


def run(run: Run) -> Findings:
    batched, single = run.rows(BATCHED_FULL, BATCHED_QUICK), run.rows(SINGLE_FULL, SINGLE_QUICK)
    figures: dict[str, list[float]] = {"batches": [], "none": [], "subject": [], "strict": []}
    for number in range(run.rounds):
        folder = run.folder / f"round-{number}"
        folder.mkdir()
        url = f"file://{folder / 'stream'}"
        with open_stream(url, "write") as stream:
            stream.bind("6f6b4b1e-0000-4000-8000-000000000002", "/bench")
            for batch in batches(batched):
                stream.append(batch)
        figures["batches"].append(_batches(url, batched))
        for order in ("none", "subject", "strict"):
            figures[order].append(_one_by_one(url, order, single))
        shutil.rmtree(folder)
        run.say(f"round {number + 1}: " + ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in figures.items()))
    return Findings(
        [
            Measure("delivered in batches of 10,000", "events/s", tuple(figures["batches"]), at_least(50_000)),
            Measure("delivered one by one", "events/s", tuple(figures["none"]), at_least(10_000)),
            Measure("delivered one by one, in order of each subject", "events/s", tuple(figures["subject"])),
            Measure("delivered one by one, in strict order", "events/s", tuple(figures["strict"])),
        ]
    )


def _batches(url: str, events: int) -> float:
    with Group.create(url, "batches") as group:
        started, count = time.perf_counter(), 0
        for delivery in group.consume_batches(10_000, wait_seconds=0):
            with delivery:
                count += len(delivery)
        seconds = time.perf_counter() - started
        assert (count, group.status().lag) == (events, 0)
    return count / seconds


def _one_by_one(url: str, order: str, events: int) -> float:
    with Group.create(url, order, order=order) as group:
        started, count = time.perf_counter(), 0
        for delivery in group.consume(wait_seconds=0):
            with delivery:
                count += 1
            if count == events:
                break
        return count / (time.perf_counter() - started)
