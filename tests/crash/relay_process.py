"""A relay in a process of its own that ends, stops or fails exactly at a step that we name.

The product has no hooks for this: the process wraps the product's own functions before it
runs the relay. A step is a function's name, or `scope/step` for the step inside a scope:
`roll/disk.rename` is the rename of a segment roll, `append/disk.sync` the fsync of an append.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import connector.appender
import connector.follower
import connector.relay
import connector.sources.mysql
import connector.sources.postgresql
import connector.sources.sqlite
import stream_store.file.stream
import stream_store.file.writer
from connector import supervisor
from connector.cleaner import Cleaner
from connector.follower import Follower
from connector.lease import Lease
from outbox.database import Session
from stream_store.file import disk, lock, recovery, tidy
from stream_store.kafka.stream import KafkaStream
from stream_store.kafka.writer import Writer
from stream_store.objects.changes import Changes
from stream_store.objects.store import Store
from stream_store.objects.stream import ObjectStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.options import RelayOptions

# Children of a server that has imported everything: a relay starts in a few milliseconds.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, "adbc_driver_postgresql.dbapi", "psycopg", "pymysql", "connectorx"])

DEADLINE_SECONDS = 90.0
SOURCES = (
    connector.sources.postgresql.PostgresSource,
    connector.sources.mysql.MysqlSource,
    connector.sources.sqlite.SqliteSource,
)
# Of reading a backlog. At the end of the table PostgreSQL does them all in one `source.look`.
BACKLOG_STEPS = ("list_holders", "source.read", "source.standing", "source.make_durable")
DISK = ("create", "write", "sync", "rename", "sync_folder", "publish", "remove")


@dataclass(frozen=True)
class At:
    """A moment: before or after the `nth` time that a step is done."""

    step: str
    when: str = "after"
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when}-{self.step}-{self.nth}"


@dataclass(frozen=True)
class Orders:
    """What the process is told. `act` is what it does at `at`.

    kill: SIGKILL to itself. stop: SIGSTOP to itself. hold: this thread waits, the others go
    on. pass: nothing but a note that it came here. Anything else: an OSError that says it.
    """

    options: RelayOptions
    folder: Path
    once: bool = True
    at: At | None = None
    act: str = "kill"
    # What is put in place of the product's own: `module` or `module:Class`, attribute, replacement.
    replacements: tuple[tuple[str, str, Any], ...] = ()
    file_bytes_max: int | None = None


class RelayProcess:
    """The process, seen from the test."""

    def __init__(self, orders: Orders) -> None:
        self._folder = orders.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = _processes.Process(target=_main, args=(orders,), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """The exit code, once it has ended."""
        self._process.join(DEADLINE_SECONDS)
        assert self._process.exitcode is not None, f"the relay did not end:\n{self.said()}"
        return self._process.exitcode

    def wait_until_reached(self) -> None:
        """Return when the process has come to its moment (`act="stop"`: and stands still there)."""
        until(lambda: (self._folder / "reached").exists() or not self._process.is_alive(), self.said)
        assert (self._folder / "reached").exists(), f"the relay ended without it:\n{self.said()}"

    def wait_until_stopped(self) -> None:
        self.wait_until_reached()
        until(lambda: state_of(self.pid) == "T", self.said)

    def go_on(self) -> None:
        """Let a thread that is held (`act="hold"`) or a process that is stopped (`act="stop"`) go on."""
        (self._folder / "go").touch()
        self.send(signal.SIGCONT)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(DEADLINE_SECONDS)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def said(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def running(orders: Orders) -> Iterator[RelayProcess]:
    """A relay that does not outlive the block."""
    process = RelayProcess(orders)
    try:
        yield process
    finally:
        process.kill()


def until(holds: Callable[[], object], said: Callable[[], str] = str) -> None:
    """Wait for a condition; what was said meanwhile explains why it did not come."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to pass\n{said()}"
        time.sleep(0.005)


def state_of(pid: int) -> str:
    """The state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def do_nothing(*_: object) -> None:
    """In place of a step that the relay then lacks."""


def say_yes(*_: object) -> bool:
    """In place of a step that could refuse."""
    return True


# ---- in the process ------------------------------------------------------------------


class _Seams:
    """Counts the steps as they are done, and acts at the one that was named."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._scopes = threading.local()

    def wrap(self, owner: Any, attribute: str, step: str) -> None:
        """Make a function a step, and a scope for the steps inside it."""
        original = getattr(owner, attribute)

        @wraps(original)
        def stepping(*arguments: Any, **named: Any) -> Any:
            with self.step(step):
                result = original(*arguments, **named)
                # What a generator does, it does when it is consumed: a read is one step.
                return (part for part in list(result)) if hasattr(result, "__next__") else result

        setattr(owner, attribute, stepping)

    def wrap_session(self) -> None:
        """Each named block of SQL is a step `sql.<name>`, and so is the COMMIT of a transaction."""
        for attribute in ("query", "change"):
            original = getattr(Session, attribute)

            def stepping(session: Session, name: str, /, _original: Any = original, **parameters: Any) -> Any:
                with self.step(f"sql.{name}"):
                    return _original(session, name, **parameters)

            setattr(Session, attribute, stepping)
        run = Session.run

        def running(session: Session, sql: str, parameters: Any = None) -> Any:
            if sql != "COMMIT":
                return run(session, sql, parameters)
            with self.step("sql.commit"):
                return run(session, sql, parameters)

        Session.run = running  # type: ignore[method-assign]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        scopes = self._scopes.__dict__.setdefault("names", [])
        names = [name, *(f"{scope}/{name}" for scope in dict.fromkeys(scopes))]
        self._pass("before", names)
        scopes.append(name)
        try:
            yield
        finally:
            scopes.pop()
        self._pass("after", names)

    def _pass(self, when: str, names: list[str]) -> None:
        at = self._orders.at
        if at is None or at.when != when or at.step not in names:
            return
        with self._lock:
            count = self._counts[at.step, when] = self._counts.get((at.step, when), 0) + 1
        if count == at.nth:
            self._act()

    def _act(self) -> None:
        (self._orders.folder / "reached").touch()
        if self._orders.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        elif self._orders.act == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._orders.act == "hold":
            until((self._orders.folder / "go").exists)
        elif self._orders.act != "pass":
            raise OSError(5, f"the test lets this fail: {self._orders.act}")


def _install(seams: _Seams) -> None:
    for source in SOURCES:
        for method in ("open", "info", "standing", "holders", "read", "look", "make_durable", "late_id"):
            seams.wrap(source, method, f"source.{method}")
    for name in DISK:
        seams.wrap(disk, name, f"disk.{name}")
    seams.wrap(lock.WriterLock, "__init__", "lock")
    seams.wrap(stream_store.file.writer, "recover", "recover")
    seams.wrap(recovery, "write_identity", "write_identity")
    seams.wrap(stream_store.file.writer, "write_identity", "write_identity")
    seams.wrap(stream_store.file.stream, "create_stream", "create_stream")
    seams.wrap(stream_store.file.writer.Writer, "_roll", "roll")
    seams.wrap(tidy, "tidy", "tidy")
    seams.wrap(stream_store.file.stream.FileStream, "bind", "bind")
    seams.wrap(stream_store.file.stream.FileStream, "append", "append")
    seams.wrap(stream_store.file.stream.FileStream, "settle", "settle")
    for method in ("bind", "append"):
        seams.wrap(KafkaStream, method, method)
    seams.wrap(Writer, "commit", "kafka.commit")
    for name in ("create", "replace", "copy", "delete"):
        seams.wrap(Store, name, f"objects.{name}")
    seams.wrap(ObjectStream, "append", "append")
    seams.wrap(Changes, "merge", "merge")
    seams.wrap(connector.relay, "start", "start")
    seams.wrap(Follower, "_list_holders", "list_holders")
    seams.wrap(connector.appender.Appender, "_append", "appender")
    seams.wrap(Lease, "take", "lease.take")
    seams.wrap(Lease, "release", "lease.release")
    seams.wrap(Cleaner, "take", "cleaner.take")
    seams.wrap(Cleaner, "_delete", "clean")
    seams.wrap_session()


def _main(orders: Orders) -> None:
    log = os.open(orders.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if orders.file_bytes_max is not None:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (orders.file_bytes_max, hard))
    connector.relay.STANDBY_POLL_SECONDS = 0.05
    if orders.at is not None and orders.at.step in BACKLOG_STEPS:
        connector.follower.LOOK_ROWS = 0  # whatever there is to read is a backlog
    for owner, attribute, replacement in orders.replacements:
        setattr(pkgutil.resolve_name(owner), attribute, replacement)
    _install(_Seams(orders))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sys.exit(supervisor.run([orders.options], once=orders.once, stop=stop))
