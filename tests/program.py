"""The program as a user has it: a process of its own, with no OUTBOX_* variable around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 60


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", *arguments]


def run(
    *arguments: str, stdin: bytes | str = b"", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        command(*arguments),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(**variables),
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def succeed(*arguments: str, **more: Any) -> str:
    """Run a command that has to succeed; its stdout."""
    done = run(*arguments, **more)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def report(*arguments: str, code: int = 0, **more: Any) -> Any:
    """The document that a command with --json prints."""
    done = run(*arguments, "--json", **more)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def start(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.Popen[bytes]:
    """Start a command that goes on until it is told to stop."""
    return subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=environment(**variables),
    )
