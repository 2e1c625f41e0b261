"""The relay as users run it: `outbox relay` in a process of its own, looked at from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from outbox.errors import StreamMissing
from stream_store import open_stream

ROOT = Path(__file__).parent.parent
# How often the stream's tail and the process's memory are looked at: often enough for a
# rate over seconds, rare enough not to take the cores from what is measured.
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 3600.0


class RelayProcess:
    """One relay. Its log, which is JSON lines on stderr, tells when it began to lead and when it was done."""

    def __init__(self, database: str, stream: Path, *flags: str) -> None:
        self.stream = stream
        self.started_at = time.time()
        self._log: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "cli.main", "relay", "--database", database,
                "--stream", f"file://{stream}", "--log-format", "json", *flags,
            ],
            cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=_plain_environment(),
        )  # fmt: skip
        self._peak_bytes = 0
        self._memory_due = 0.0
        threading.Thread(target=self._read_log, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_log(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            try:
                self._log.append(json.loads(line))
            except ValueError:
                self._log.append({"event": line.rstrip()})

    def said_at(self, event: str) -> float | None:
        """When the relay logged this event, by its own clock; None when it has not yet."""
        for line in self._log:
            if line.get("event") == event:
                return datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00")).timestamp()
        return None

    def wait_until_leading(self) -> float:
        """When the relay was through with its start path and read for the first time."""
        while (leading_at := self.said_at("leading")) is None:
            self.require_alive()
            time.sleep(LOOK_SECONDS)
        return leading_at

    def wait_until_durable(self, tail: int) -> float:
        """When the stream's published tail had reached `tail`, looked at from outside."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        stream = None
        try:
            while True:
                if stream is None:
                    try:
                        stream = open_stream(f"file://{self.stream}", "read")
                    except StreamMissing:
                        self.require_alive()
                if stream is not None and stream.tail() >= tail:
                    return time.time()
                if self._process.poll() is not None:
                    self.require_success()
                    raise RuntimeError(f"the relay ended before the stream held {tail}: {self._last_words()}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the stream did not reach {tail} in {PATIENCE_SECONDS} s: {self._last_words()}")
                self._look_at_memory()
                time.sleep(LOOK_SECONDS)
        finally:
            if stream is not None:
                stream.close()

    def wait_until_done(self) -> float:
        """When a relay that was started with --once had cleaned up as well."""
        while self._process.poll() is None:
            self._look_at_memory()
            time.sleep(LOOK_SECONDS)
        self.require_success()
        while (done_at := self.said_at("done")) is None:
            time.sleep(LOOK_SECONDS)
        return done_at

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the relay ended with {self._process.returncode}: {self._last_words()}")

    def require_success(self) -> None:
        if self._process.returncode != 0:
            raise RuntimeError(f"the relay ended with {self._process.returncode}: {self._last_words()}")

    def peak_bytes(self) -> int:
        """The most memory that the process has had resident, as the kernel keeps it (VmHWM)."""
        self._look_at_memory(now=True)
        return self._peak_bytes

    def resident_bytes(self) -> int:
        return _status_bytes(self.pid, "VmRSS") or 0

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _look_at_memory(self, *, now: bool = False) -> None:
        if now or time.monotonic() >= self._memory_due:
            self._memory_due = time.monotonic() + 0.05
            self._peak_bytes = max(self._peak_bytes, _status_bytes(self.pid, "VmHWM") or 0)

    def _last_words(self) -> str:
        return "; ".join(str(line.get("event", line)) for line in self._log[-5:]) or "it said nothing"


@dataclass(frozen=True, slots=True)
class Drained:
    """What one `outbox relay --once` took, from its first read on; before it, its start."""

    startup_seconds: float
    durable_seconds: float
    done_seconds: float


def drain_once(database: str, stream: Path, tail: int) -> Drained:
    """Drain the out table, whose last row is `tail`, into the stream."""
    with RelayProcess(database, stream, "--once") as relay:
        durable_at = relay.wait_until_durable(tail)
        done_at = relay.wait_until_done()
        leading_at = relay.wait_until_leading()
    return Drained(leading_at - relay.started_at, durable_at - leading_at, done_at - leading_at)


def _status_bytes(pid: int, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(found[1]) * 1024 if found else None


def _plain_environment() -> dict[str, str]:
    """Without settings of whoever runs the benchmark."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
