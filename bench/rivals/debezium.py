"""Debezium's embedded engine with its outbox event router, reading the same out table by logical decoding.

`bench/debezium` holds the Java side; Maven builds it once into `build/debezium`. No Kafka:
events are handed to a consumer that counts them, which is less than the relay does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from bench.relay_process import ROOT
from tests.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

SOURCE = ROOT / "bench" / "debezium"
BUILT = ROOT / "build" / "debezium"
SLOT = "bench_slot"
PUBLICATION = "bench_publication"
PATIENCE_SECONDS = 180.0


class Missing(Exception):
    """Debezium cannot be had here: no Java, no Maven, or nothing to download from."""


def version() -> str:
    found = re.search(r"<debezium.version>(.+?)</debezium.version>", (SOURCE / "pom.xml").read_text())
    assert found
    return found[1]


def build() -> None:
    """Compile the Java side and fetch what it needs, unless it is there and of today's sources."""
    sources = [SOURCE / "pom.xml", *SOURCE.rglob("*.java")]
    jar = BUILT / "bench-debezium.jar"
    if jar.exists() and jar.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(SOURCE / "pom.xml"), "package"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Missing(f"Maven could not build it: {done.stdout[-500:]}")


def start_server() -> PostgresServer:
    """Defaults, but for the log level that logical decoding needs."""
    return PostgresServer(settings=("wal_level=logical",)).start()


def create_slot(url: str) -> None:
    """From here on the server keeps the changes of the out table for the engine. Inserts only: that is all it routes."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE outbox WITH (publish = 'insert')")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))


def drop_slot(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active", (SLOT,)
        )
        connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


def write_config(url: str, folder: Path) -> Path:
    """The engine's configuration: its defaults, but for how soon it looks at its own queue again (500 ms)."""
    parts = urlsplit(url)
    settings = {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets.dat"),
        "offset.flush.interval.ms": "1000",
        "topic.prefix": "bench",
        "database.hostname": parts.hostname,
        "database.port": parts.port,
        "database.user": parts.username,
        "database.password": parts.password or "none",
        "database.dbname": parts.path[1:],
        "plugin.name": "pgoutput",
        "slot.name": SLOT,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.outbox",
        "snapshot.mode": "no_data",
        "poll.interval.ms": "1",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.id": "id",
        "transforms.outbox.table.field.event.key": "subject",
        "transforms.outbox.table.field.event.payload": "data",
        "transforms.outbox.route.by.field": "type",
    }
    path = folder / "debezium.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _command(config: Path, *arguments: str) -> list[str]:
    return [
        "java",
        "-Xmx2g",
        "-cp",
        f"{BUILT / 'bench-debezium.jar'}:{BUILT / 'dependency'}/*",
        "bench.Engine",
        str(config),
        *arguments,
    ]


def drain(config: Path, rows: int) -> float:
    """Events a second, from the first to the last of so many, or over their second half where that is faster.

    The engine has Java's warm-up behind it by then.
    """
    done = subprocess.run(
        _command(config, "drain", str(rows)), capture_output=True, text=True, check=False, timeout=1800
    )
    if done.returncode != 0:
        raise RuntimeError(f"Debezium ended with {done.returncode}: {(done.stderr + done.stdout)[-2000:]}")
    events, before, first_us, middle_us, last_us = (int(number) for number in done.stdout.split())
    assert events >= rows, (events, rows)
    whole = events / (last_us - first_us)
    second_half = (events - before) / (last_us - middle_us) if last_us > middle_us else 0.0
    return max(whole, second_half) * 1e6


class Follower:
    """An engine that hands events over as they are committed, and notes when."""

    def __init__(self, config: Path) -> None:
        self._path = config.with_suffix(".events")
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(_command(config, "follow"), stdin=subprocess.PIPE, stdout=output)

    def wait_for(self, events: int) -> None:
        """Until so many events have been handed over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._path.read_bytes().count(b"\n") < events:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Debezium has not handed over {events} events (exit code {self._process.poll()})")
            time.sleep(0.5)

    def finish(self) -> dict[int, int]:
        """The nanoseconds at which each event's ID was handed over."""
        self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError(f"Debezium ended with {self._process.returncode}")
        lines = (line.split() for line in self._path.read_text().splitlines())
        return {int(event_id): int(micros) * 1000 for event_id, micros in lines}

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
