"""`python -m bench`: run the scenes, print their figures, write the report."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench import machine, results
from bench.plot import PICTURES, draw
from bench.relay_process import ROOT
from bench.report import write_report
from bench.scene import Run

if TYPE_CHECKING:
    from bench.scene import Scene

SCENES = {
    "drain": "drain",
    "latency": "latency",
    "idle": "idle",
    "emit": "emit",
    "memory": "memory",
    "held-xmin": "held_xmin",
    "tap": "tap",
    "stream": "stream",
    "objects": "objects",
    "kafka": "kafka",
    "redis": "redis",
    "groups": "groups",
    "inbox": "inbox",
    "sink": "sink",
    "tables": "tables",
    "verify": "verify",
}
CHURN_MINUTES_FULL, CHURN_MINUTES_QUICK = 10.0, 0.3
ROUNDS_FULL, ROUNDS_QUICK = 3, 1


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    # Quick figures never stand in the project's documentation.
    folder = arguments.output or (ROOT / "build" / "bench" if arguments.quick else ROOT / "docs")
    saved_at = folder / "benchmarks.json"
    if arguments.report:
        write(results.load(saved_at), folder)
        return 0
    failed = []
    with tempfile.TemporaryDirectory(prefix="outbox-bench-") as scratch:
        facts = machine.describe_machine(Path(scratch))
        print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
        for name in arguments.only or SCENES:
            try:
                scene = run_scene(name, arguments, Path(scratch) / name)
            except Exception:
                traceback.print_exc()
                failed.append(name)
                continue
            found = results.load(saved_at).merged(facts, scene)
            found.save(saved_at)
            write(found, folder)
    if failed:
        print(f"scenes that failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the relay's budgets on real servers and write docs/benchmarks.md."
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and one round, into build/bench: does it run?"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(SCENES),
        metavar="SCENE",
        help=f"of {', '.join(SCENES)}; merged into the saved results",
    )
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS_FULL} by default, {ROUNDS_QUICK} with --quick")
    parser.add_argument(
        "--churn-minutes",
        type=float,
        help=f"of held-xmin: {CHURN_MINUTES_FULL:g} by default, {CHURN_MINUTES_QUICK} with --quick",
    )
    parser.add_argument("--output", type=Path, help="the folder for benchmarks.json, benchmarks.md and its pictures")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing; write the report from the saved results"
    )
    return parser.parse_args(arguments)


def run_scene(name: str, arguments: argparse.Namespace, scratch: Path) -> results.SceneResult:
    scene = cast("Scene", importlib.import_module(f"bench.scenes.{SCENES[name]}"))
    scratch.mkdir()
    rounds = arguments.rounds or (ROUNDS_QUICK if arguments.quick else ROUNDS_FULL)
    churn_minutes = arguments.churn_minutes or (CHURN_MINUTES_QUICK if arguments.quick else CHURN_MINUTES_FULL)
    busy_share = machine.busy_share()
    print(f"\n{scene.TITLE} [{name}], {busy_share:.0%} of the cores are busy with something else", flush=True)
    started = time.monotonic()
    findings = scene.run(Run(rounds, arguments.quick, scratch, churn_minutes))
    for measure in findings.measures:
        print(f"  {measure}", flush=True)
    return results.SceneResult(
        name=name,
        title=scene.TITLE,
        about=scene.ABOUT,
        date=datetime.now(UTC).date().isoformat(),
        rounds=rounds,
        quick=arguments.quick,
        seconds=time.monotonic() - started,
        busy_share=busy_share,
        measures=tuple(findings.measures),
        remarks=tuple(findings.remarks),
        series=findings.series,
    )


def write(found: results.Results, folder: Path) -> None:
    """The report and its pictures."""
    pictures = {}
    for name, picture in PICTURES.items():
        path = Path("benchmarks") / f"{name}.svg"
        if draw(found, name, folder / path):
            pictures[path.as_posix()] = picture.caption
    (folder / "benchmarks.md").write_text(write_report(found, list(SCENES), pictures), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
