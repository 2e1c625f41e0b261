"""Running a rival in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.relay_process import ROOT


def run_rival(name: str, *arguments: str) -> dict[str, float]:
    """What `python -m bench.rivals.NAME` prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.rivals.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))
