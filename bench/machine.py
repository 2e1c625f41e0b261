"""Facts about the machine and the versions, without anything that tells which machine it is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sqlite3
import statistics
import subprocess
import time
from pathlib import Path

PACKAGES = ("pyarrow", "adbc-driver-postgresql", "psycopg", "PyMySQL", "connectorx", "SQLAlchemy", "redis", "hiredis")
FSYNCS = 200


def describe_machine(folder: Path) -> dict[str, str]:
    """What the figures depend on; `folder` is where databases and streams are written."""
    facts = {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "write and fsync of 4 KiB": f"{fsync_seconds(folder) * 1e3:.2f} ms (median of {FSYNCS})",
        "system": f"{platform.system()} {re.split(r'[-+]', platform.release())[0]}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    for name, command in (
        ("PostgreSQL", [_postgres(), "--version"]),
        ("MariaDB", [shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin") or "", "--version"]),
        ("Java", ["java", "-version"]),
    ):
        version = _version(command)
        if version:
            facts[name] = version
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def fsync_seconds(folder: Path) -> float:
    """The median time of writing 4 KiB behind the end of a file and syncing it."""
    path = folder / "fsync"
    samples = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            samples.append(time.perf_counter() - started)
    path.unlink()
    return statistics.median(samples)


def busy_share(seconds: float = 1.0) -> float:
    """The share of all cores that is busy while we do nothing: what others use."""
    before = _cpu_times()
    time.sleep(seconds)
    used, total = (after - earlier for after, earlier in zip(_cpu_times(), before, strict=True))
    return used / total if total else 0.0


def _cpu_times() -> tuple[int, int]:
    fields = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    return platform.machine()


def _postgres() -> str:
    from tests.servers.postgresql import binaries

    folder = binaries()
    return str(folder / "postgres") if folder else ""


def _version(command: list[str]) -> str:
    if not command[0]:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else ""
