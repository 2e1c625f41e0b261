"""How fast `outbox tap` writes CloudEvents lines."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench.events import batches
from bench.measure import Measure, at_least
from bench.relay_process import ROOT
from bench.scene import Findings
from stream_store import open_stream

if TYPE_CHECKING:
    from bench.scene import Run

NAME = "tap"
TITLE = "outbox tap"
ABOUT = """\
`outbox tap` of a whole `file://` stream, one CloudEvents 1.0 JSON line an event of about 200 bytes, to /dev/null. The
rate counts the whole process, from its start to its end; "without start-up" leaves out what the same command takes for
no event at all."""

EVENTS_FULL, EVENTS_QUICK = 1_000_000, 100_000


def run(run: Run) -> Findings:
    events = run.rows(EVENTS_FULL, EVENTS_QUICK)
    url = f"file://{run.folder / 'stream'}"
    with open_stream(url, "write") as stream:
        stream.bind("bench", "/bench")
        for batch in batches(events):
            stream.append(batch)
    lines = subprocess.run(_command(url, "--from", str(events - 9)), cwd=ROOT, capture_output=True, check=True).stdout
    assert lines.count(b"\n") == 10, lines
    whole, bare = [], []
    for number in range(run.rounds):
        startup = _time(_command(url, "--from", "latest"))
        seconds = _time(_command(url))
        whole.append(events / seconds)
        bare.append(events / (seconds - startup))
        run.say(f"round {number + 1}: {whole[-1]:,.0f} events/s, {bare[-1]:,.0f} without start-up ({startup:.2f} s)")
    return Findings(
        [
            Measure("tap to /dev/null", "events/s", tuple(whole), at_least(300_000)),
            Measure("tap to /dev/null, without start-up", "events/s", tuple(bare)),
        ],
        [f"{events:,} events, lines of {len(lines) / 10:.0f} bytes."],
    )


def _command(url: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", "tap", "--stream", url, *flags]


def _time(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started
