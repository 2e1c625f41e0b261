"""A part of a test in a process of its own, without the seconds that a new interpreter takes."""

from __future__ import annotations

import os
import signal
import traceback
from typing import TYPE_CHECKING

from tests import killed

if TYPE_CHECKING:
    from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Do the work in a child, which ends with 0, or with 1 and a traceback; its process ID."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Without pytest's ending, which is the parent's.
        os._exit(code)


def join(pid: int) -> int:
    """The child's exit code, or minus the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def run_killed(work: Callable[[], object], function: str, when: str, nth: int = 1) -> None:
    """Do the work in a child that must come to the nth call of a function and be killed there."""

    def doomed() -> None:
        killed.install(function, when, nth)
        work()

    code = join(fork(doomed))
    assert code == -signal.SIGKILL, f"it ended with {code}: it never came to {when} {function} #{nth}"
