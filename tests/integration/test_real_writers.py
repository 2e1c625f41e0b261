"""Real writers: what they committed is what the stream holds, in order, and all else is dead."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector.verify import verify
from outbox.database import Session
from tests.integration.relays import RelayProcess, installed, stream_rows, stream_tail, until
from tests.integration.writers import BUSINESS, connect
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.options import RelayOptions

ROOT = Path(__file__).parent.parent.parent
SEEDS = random.Random(20260301)


class Storm:
    """Writer processes at work on one database."""

    def __init__(self, options: RelayOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.url = options.database.url
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        connection = connect(self.url)
        connection.cursor().execute(BUSINESS)
        connection.commit()
        connection.close()

    def start(self, role: str, name: str, **settings: Any) -> subprocess.Popen[bytes]:
        settings |= {"name": name, "url": self.url, "seed": SEEDS.getrandbits(32)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.writers", role, json.dumps(settings)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self.processes[name] = process
        return process

    def finish(self, name: str, seconds: float = 60) -> None:
        """Wait for a writer that ends by itself, and for it to have ended well."""
        code = self.processes.pop(name).wait(seconds)
        assert code == 0, (self.folder / f"{name}.log").read_text()

    def kill_doomed(self, name: str) -> None:
        """The application dies in the middle of its transaction."""
        ready = self.folder / f"{name}.ready"
        process = self.start("doomed", name, ready=str(ready))
        until(ready.exists, f"{name} in its transaction")
        process.kill()
        self.processes.pop(name).wait()

    def end_prepared(self, gid: str, *, commit: bool) -> None:
        """Another session ends a prepared transaction whose client is gone."""
        verb = "COMMIT" if commit else "ROLLBACK"
        with contextlib.closing(connect(self.url)) as connection:
            if self.options.database.dialect == "postgresql":
                connection.autocommit = True
                connection.execute(f"{verb} PREPARED '{gid}'")
            else:
                connection.autocommit(True)
                # The server lets go of it some time after its client has left.
                until(lambda: _try(connection, f"XA {verb} '{gid}'"), f"XA {verb}")

    def committed(self) -> dict[int, str]:
        with contextlib.closing(connect(self.url)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT event_id, subject FROM business ORDER BY event_id")
            return {int(number): str(subject) for number, subject in cursor.fetchall()}

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self.options.database.dialect == "mysql":
            # A prepared transaction that a failed test has left would hold back every later one.
            with contextlib.closing(mariadb.connect(self.url, autocommit=True)) as connection:
                cursor = connection.cursor()
                cursor.execute("XA RECOVER")
                for *_, gid in cursor.fetchall():
                    name = gid.decode() if isinstance(gid, bytes) else gid
                    if name.startswith(self.options.database.database):
                        cursor.execute(f"XA ROLLBACK '{name}'")


def _try(connection: Any, sql: str) -> bool:
    import pymysql

    try:
        connection.cursor().execute(sql)
    except pymysql.err.MySQLError as error:
        if error.args[0] == 1397:  # XAER_NOTA: still with its first session
            return False
        raise
    return True


@contextlib.contextmanager
def storm(options: RelayOptions, folder: Path) -> Iterator[Storm]:
    weather = Storm(options, folder)
    try:
        yield weather
    finally:
        weather.close()


def blow(weather: Storm, seconds: float, *, writers: int, two_phase: bool) -> None:
    """The whole load: steady writers, and in between everything that goes wrong."""
    for number in range(writers):
        weather.start("steady", f"steady{number}", seconds=seconds)
    weather.kill_doomed("doomed1")
    if weather.options.database.dialect != "sqlite":
        weather.start("idle", "idle1", seconds=min(4, seconds / 3), commit=True)
        weather.start("idle", "idle2", seconds=min(6, seconds / 2), commit=False)
    if two_phase:
        prefix = weather.options.database.database
        for name in ("kept", "dropped"):
            weather.start("prepared", name, gid=f"{prefix}-{name}")
            weather.finish(name)
        time.sleep(min(2, seconds / 6))
        weather.end_prepared(f"{prefix}-kept", commit=True)
        weather.end_prepared(f"{prefix}-dropped", commit=False)
    weather.kill_doomed("doomed2")


def calm(weather: Storm) -> None:
    for name in list(weather.processes):
        if name != "poller":
            weather.finish(name, 120)


def prove(weather: Storm) -> int:
    """The promise: committed = stream, in order; every other ID up to the tail is dead."""
    options = weather.options
    committed = weather.committed()
    events = stream_rows(options.stream)
    assert [row["id"] for row in events] == sorted(committed)
    for row in events:
        assert row["subject"] == committed[row["id"]]
        assert row["data"] == json.dumps({"subject": row["subject"]}, separators=(",", ":"))
    result = verify(options.database, options.table, options.stream)
    assert result.ok, result
    assert (result.lost, result.duplicated, result.conflicting, result.rows_pending) == (0, 0, 0, 0)
    assert result.events == len(committed)
    assert result.dead == result.tail - len(committed)
    # Rollbacks happened, so there are dead IDs to prove; SQLite takes IDs back with them.
    assert result.dead > 0 or options.database.dialect == "sqlite"
    return len(committed)


def count_lost_by_poller(weather: Storm, found: Path) -> int:
    process = weather.processes.pop("poller")
    process.terminate()
    assert process.wait(30) == 0, (weather.folder / "poller.log").read_text()
    return len(set(weather.committed()) - set(json.loads(found.read_text())))


def run_storm(
    options: RelayOptions,
    folder: Path,
    seconds: float,
    *,
    standby: bool = False,
    two_phase: bool = True,
    writers: int = 8,
) -> dict[str, int]:
    """Blow, with one relay or with two of which one is killed, and prove the promise."""
    with storm(options, folder) as weather, contextlib.ExitStack() as stack:
        relays = [stack.enter_context(RelayProcess(options, folder / f"relay{n}.log")) for n in range(1 + standby)]
        weather.start("poller", "poller", found=str(folder / "found"))
        begun = time.monotonic()
        blow(weather, seconds, writers=writers, two_phase=two_phase)
        if standby:
            leader = until(lambda: leading(options, relays), "one of the relays leads")
            leader.kill()
            relays.remove(leader)
        calm(weather)
        load_seconds = time.monotonic() - begun
        last = max(weather.committed())
        until(lambda: stream_tail(options.stream) >= last, f"the stream reaches {last}")
        for relay in relays:
            assert relay.terminate() == 0, relay.log.read_text()
        lost = count_lost_by_poller(weather, folder / "found")
        committed = prove(weather)
    print(
        f"\n{options.database.dialect} {options.fence}: {committed} events in {load_seconds:.0f} s, all in the stream; "
        f"the naive poller lost {lost}"
    )
    return {"committed": committed, "lost_by_poller": lost}


def leading(options: RelayOptions, relays: list[RelayProcess]) -> RelayProcess | None:
    with Session(options.database, options.table) as session:
        leader = session.row("info")[6]
    return next((relay for relay in relays if leader and f":{relay.process.pid}:" in leader), None)


def test_postgresql_stream_is_what_was_committed_though_the_leader_is_killed(
    postgresql_url: str, stream_url: str, tmp_path: Path
):
    found = run_storm(installed(postgresql_url, stream_url), tmp_path, 15, standby=True)
    # The load is worth something: whoever polls by `id > cursor` loses rows under it.
    assert found["lost_by_poller"] > 0


def test_mariadb_stream_is_what_was_committed(mariadb_url: str, stream_url: str, tmp_path: Path):
    found = run_storm(installed(mariadb_url, stream_url), tmp_path, 15)
    assert found["lost_by_poller"] > 0


def test_mariadb_behind_the_barrier_stream_is_what_was_committed(mariadb_url: str, stream_url: str, tmp_path: Path):
    run_storm(installed(mariadb_url, stream_url, fence="barrier"), tmp_path, 12)


def test_mysql_stream_is_what_was_committed(mysql_url: str, stream_url: str, tmp_path: Path):
    run_storm(installed(mysql_url, stream_url), tmp_path, 15)


def test_sqlite_stream_is_what_was_committed(sqlite_url: str, stream_url: str, tmp_path: Path):
    run_storm(installed(sqlite_url, stream_url), tmp_path, 6, writers=3, two_phase=False)


@pytest.mark.long
@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_two_minutes_of_writers_lose_nothing(
    database: str, request: pytest.FixtureRequest, stream_url: str, tmp_path: Path
):
    url = str(request.getfixturevalue(f"{database}_url"))
    run_storm(installed(url, stream_url), tmp_path, 120, standby=database == "postgresql")
