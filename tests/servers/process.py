"""Starting a server as a child process, as a user that it agrees to run as."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unprivileged_user() -> str | None:
    """PostgreSQL and MariaDB refuse to run as root: whom to run them as instead."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "mysql", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


def server_folder(prefix: str, place: str | None = None) -> Path:
    """A folder the server's user owns. Below /tmp, because socket paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix=f"outbox-{prefix}-", dir=place))
    user = unprivileged_user()
    if user is not None:
        shutil.chown(folder, user)
    folder.chmod(0o755)
    return folder


def run_as(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, user=unprivileged_user(), capture_output=True, text=True, check=False, cwd="/", **options
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done


def start_as(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as sink:
        return subprocess.Popen(
            command, user=unprivileged_user(), stdout=sink, stderr=sink, cwd="/", start_new_session=True
        )


def wait_until(ready: Callable[[], object], what: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    last: Exception | None = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            ready()
        except Exception as error:
            last = error
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{what} did not answer within 60 s: {last}")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the server and its children: a crash."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
