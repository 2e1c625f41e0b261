"""The object-store stream beside bare obstore, on the local store."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.measure import Measure, at_least
from bench.rivals.bare_obstore import get_seconds, put_seconds
from bench.scene import Findings
from stream_store import open_stream
from stream_store.file.frame import encode_events
from stream_store.objects.layout import batch_name
from stream_store.objects.stream import ObjectStream

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scene import Run
    from outbox.batch import EventBatch

NAME = "objects"
TITLE = "The object-store stream"
ABOUT = """\
Appending to an `object+file://` stream and reading it back, beside bare obstore that puts (put-if-absent) and gets
objects of the same bytes in the same folder, one after the other. An append is one more request than a put, the look at the
floor; a read decodes and checks what a bare get only fetches. Merging is on, with its default of 256 objects.
Opening is timed with a hundred thousand batches that nobody has merged."""

EVENTS_FULL, EVENTS_QUICK = 1_000_000, 100_000
OPENED_FULL, OPENED_QUICK = 100_000, 10_000
BUDGET = at_least(0.8)


def run(run: Run) -> Findings:
    large = list(batches(run.rows(EVENTS_FULL, EVENTS_QUICK)))
    events = sum(len(batch) for batch in large)
    appends, bare_puts, put_ratios, reads, get_ratios = [], [], [], [], []
    for number in range(run.rounds):
        append_seconds, read_seconds, bare_put, bare_get = _round(run.folder / f"objects-{number}", large)
        appends.append(events / append_seconds)
        bare_puts.append(events / bare_put)
        put_ratios.append(bare_put / append_seconds)
        reads.append(events / read_seconds)
        get_ratios.append(bare_get / read_seconds)
        run.say(f"round {number + 1}: append {put_ratios[-1]:.2f} of bare, read {get_ratios[-1]:.2f} of bare")
    objects = run.rows(OPENED_FULL, OPENED_QUICK)
    with run.step(f"made {objects:,} objects"):
        folder = _fill(run.folder / "many", objects)
    opens = [_open_seconds(folder, objects) * 1e3 for _ in range(max(run.rounds, 3))]
    shutil.rmtree(folder)
    return Findings(
        [
            Measure("append, 50,000 events at a time", "events/s", tuple(appends)),
            Measure("a bare put of the same bytes", "events/s", tuple(bare_puts)),
            Measure("append, as a share of the bare put", "×", tuple(put_ratios), BUDGET),
            Measure("read", "events/s", tuple(reads), note="checksums and the chain checked"),
            Measure("read, as a share of the bare get", "×", tuple(get_ratios), BUDGET),
            Measure(f"opening and finding the tail, {objects:,} objects", "ms", tuple(opens)),
        ]
    )


def _round(folder: Path, large: list[EventBatch]) -> tuple[float, float, float, float]:
    from obstore.store import LocalStore

    payloads = [b"".join(memoryview(part) for part in encode_events(batch, 0, 0).parts) for batch in large]
    store = LocalStore(folder / "bare", mkdir=True)
    bare_put = put_seconds(store, payloads)
    bare_get = get_seconds(store, len(payloads))
    url = f"object+file://{folder}/stream"
    with open_stream(url, "write") as stream:
        started = time.perf_counter()
        for batch in large:
            stream.append(batch)
        append_seconds = time.perf_counter() - started
    with open_stream(url) as stream:
        started = time.perf_counter()
        read = sum(len(batch) for batch in stream.read(0))
        read_seconds = time.perf_counter() - started
    assert read == sum(len(batch) for batch in large)
    shutil.rmtree(folder)
    return append_seconds, read_seconds, bare_put, bare_get


def _fill(folder: Path, objects: int) -> Path:
    """Batches of one event, written as files: it is the opening that is measured."""
    with open_stream(f"object+file://{folder}", "write") as stream:
        assert isinstance(stream, ObjectStream)
        for batch in batches(objects, 1):
            path = folder / batch_name(batch.prev_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(memoryview(part) for part in encode_events(batch, 0, stream._seed).parts))
    return folder


def _open_seconds(folder: Path, objects: int) -> float:
    started = time.perf_counter()
    with open_stream(f"object+file://{folder}") as stream:
        assert stream.tail() == objects
    return time.perf_counter() - started
