"""The program, killed by SIGKILL before or after the nth call of one of its functions.

    python -m tests.killed 'spark_sink.table:Table.replace_where' after 2 replay --table …

The product has no hooks for this: the process wraps the function before it runs the program.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
from functools import wraps
from typing import Any

from tests.program import ROOT, environment

TIMEOUT_SECONDS = 300


def run_killed(function: str, when: str, nth: int, *arguments: str) -> None:
    """Run a command that must come to the call and be killed there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", function, when, str(nth), *arguments],
        capture_output=True,
        cwd=ROOT,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr)


class Crash(BaseException):
    """The process ends here, as far as anything on the disk can tell."""


def crash_after(patch: Any, function: str, nth: int = 1) -> None:
    """Let the nth call of a function be the last thing that happens: in this process, for tests that are in a hurry."""
    owner_name, _, attribute = function.rpartition(".")
    owner: Any = pkgutil.resolve_name(owner_name)
    original, calls = getattr(owner, attribute), 0

    def crashing(*given: Any, **named: Any) -> Any:
        nonlocal calls
        result = original(*given, **named)
        calls += 1
        if calls == nth:
            raise Crash(function)
        return result

    patch.setattr(owner, attribute, crashing)


def install(function: str, when: str, nth: int) -> None:
    """Have this process killed before or after the nth call of a function."""
    owner_name, _, attribute = function.rpartition(".")
    owner: Any = pkgutil.resolve_name(owner_name)
    original = getattr(owner, attribute)
    calls = 0

    @wraps(original)
    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if when == "before" and calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*given, **named)
        if when == "after" and calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, counted)


if __name__ == "__main__":
    from cli.main import main

    install(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    main(sys.argv[4:])
