"""`outbox sink` in a process of its own, with its own Spark, that is killed or stopped from outside.

    python -m tests.crash.sink_process 'spark_sink.delta:Transaction.mark' sink --stream …

stops itself (SIGSTOP) after the first call of a function, and goes on when it is told to. The
product has no hooks for this: the process wraps the function before it runs the program.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from tests.program import ROOT, command, environment
from tests.spark import flags

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_SECONDS = 300.0


class SinkProcess:
    """The sink and the Java that it has started, seen from the test; both are gone after the block."""

    def __init__(self, *arguments: str, stop_after: str | None = None) -> None:
        given = ["sink", *arguments, *flags()]
        self._process = subprocess.Popen(
            command(*given) if stop_after is None else [sys.executable, "-m", __name__, stop_after, *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        """SIGKILL to all of it at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)

    def kill_python(self) -> list[int]:
        """SIGKILL to the Python alone; the processes of its Java, which notice it after a while."""
        left = [pid for pid in _processes() if _name_of(pid) == "java" and os.getpgid(pid) == self._process.pid]
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)
        return left

    def wait_until_stopped(self) -> None:
        self.wait_until(lambda: _state_of(self._process.pid) == "T")

    def go_on(self) -> tuple[int, str]:
        """Let it go on to its end; its exit code and what it said."""
        os.kill(self._process.pid, signal.SIGCONT)
        said, _ = self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode, said.decode()

    def wait_until(self, happens: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE_SECONDS
        while not happens():
            assert self._process.poll() is None, self._process.communicate()[0].decode()
            assert time.monotonic() < until, "it did not happen"
            time.sleep(0.02)

    def __enter__(self) -> SinkProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


def is_running(pid: int) -> bool:
    try:
        return _state_of(pid) not in "ZX"
    except OSError:
        return False


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def _stop_after(function: str) -> None:
    owner_name, _, attribute = function.rpartition(".")
    owner: Any = pkgutil.resolve_name(owner_name)
    original = getattr(owner, attribute)
    stopped = False

    @wraps(original)
    def stopping(*given: Any, **named: Any) -> Any:
        nonlocal stopped
        result = original(*given, **named)
        if not stopped:
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(owner, attribute, stopping)


if __name__ == "__main__":
    from cli.main import main

    _stop_after(sys.argv[1])
    main(sys.argv[2:])
