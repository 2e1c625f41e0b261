"""dlt, in an environment of its own: what it needs must not decide what we run with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.relay_process import ROOT

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "1.31.0"
BUILT = ROOT / "build" / f"dlt-{VERSION}"
JOB = ROOT / "bench" / "rivals" / "dlt_job.py"
# It would report each run to its makers.
QUIET = {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}


class Missing(Exception):
    """dlt cannot be had here."""


def build() -> None:
    """Install dlt, unless it is there."""
    if (BUILT / "installed").exists():
        return
    python = str(BUILT / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(BUILT)],
        [python, "-m", "pip", "install", "--quiet", f"dlt[deltalake]=={VERSION}", "pyarrow"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"it could not be installed: {done.stderr[-500:]}")
    (BUILT / "installed").touch()


def rate(parquet: Path, lake: Path, way: str, rows: int) -> float:
    """Rows a second from parquet files into a new Delta table, the start of the process not counted."""
    done = subprocess.run(
        [str(BUILT / "bin" / "python"), "-P", str(JOB), str(parquet), str(lake), way, str(rows)],
        env={**os.environ, **QUIET},
        cwd=lake.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"dlt ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == rows, found
    return float(rows / found["seconds"])
