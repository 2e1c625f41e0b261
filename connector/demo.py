"""The demo: writers with rollbacks, a relay and a sink that are killed on the way, and the proof at the end.

Everything here is what a user would do: the writers change a business table and emit in the
same transaction, relay and sink are the program in processes of their own, and the proof
compares the business table with the stream, besides asking `verify`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from connector.verify import Verification, verify
from outbox.database import Session
from outbox.errors import Transient
from outbox.outbox import Outbox
from outbox.schema import install, uninstall
from stream_store import open_stream
from stream_store.cloudevents import to_lines
from stream_store.readers import TABLE, lowest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outbox.database import DatabaseUrl
    from outbox.names import OutTable

WRITERS = 4
ROLLBACK_SHARE = 0.1
# Slow enough to watch, and for each relay to get some work done before it is killed.
PAUSE_SECONDS_MAX = 0.012
# Spark takes its time to start, and each sink is to commit something before it is killed.
PAUSE_SECONDS_MAX_WITH_SINK = 0.03
SINK_PATIENCE_SECONDS = 300.0
TYPES = ("order.placed", "order.paid", "order.shipped")


@dataclass(frozen=True)
class Moment:
    """How far the demo is, told again and again while it runs."""

    committed: int
    goal: int
    relayed: int
    # What every Delta table holds; None when the demo ends at the stream.
    materialized: int | None = None
    message: str | None = None


@dataclass
class Outcome:
    """What came of it: the business table is the truth, the stream has to agree."""

    orders: int
    rolled_back: int
    kills: int
    sink_kills: int
    seconds: float
    missing: int
    doubled: int
    verification: Verification
    sample: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.missing == 0 and self.doubled == 0 and self.verification.ok


@dataclass
class _Counter:
    committed: int = 0
    rolled_back: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, committed: int = 0, rolled_back: int = 0) -> int:
        with self.lock:
            self.committed += committed
            self.rolled_back += rolled_back
            return self.committed


class Demo:
    """One run on one database and one stream folder; into Delta tables when `sink_config` names them."""

    def __init__(
        self,
        url: DatabaseUrl,
        table: OutTable,
        stream_folder: Path,
        *,
        orders: int,
        kills: int,
        sink_config: Path | None = None,
        sink_kills: int = 0,
    ) -> None:
        self._url = url
        self._table = table
        self.stream_url = f"file://{stream_folder.resolve()}"
        self._folder = stream_folder.parent
        self._orders = orders
        self._kills = kills
        self._sink_config = sink_config
        self._sink_kills = sink_kills if sink_config else 0
        self._counter = _Counter()

    def prepare(self) -> None:
        """Install the out table and a business table beside it."""
        install(self._url, self._table, source="/demo")
        with Session(self._url, self._table) as session:
            if session.dialect == "sqlite":
                session.run("PRAGMA journal_mode = WAL")
            session.query("demo_table")

    def remove(self) -> None:
        """Leave the database as it was."""
        with Session(self._url, self._table) as session:
            session.query("demo_drop")
        uninstall(self._url, self._table, force=True)

    def run(self, tell: Callable[[Moment], None]) -> Outcome:
        """Write, relay, materialize, kill, drain, prove."""
        started = time.monotonic()
        writers = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        relay = _Victim("relay", self._relay_command(), self._environment(), self._folder / "relay.log")
        sink = (
            _Victim("sink", self._sink_command(), dict(os.environ), self._folder / "sink.log")
            if self._sink_config
            else None
        )
        try:
            while any(writer.is_alive() for writer in writers):
                time.sleep(0.1)
                tell(self._moment(self._kill_if_due(relay, self._kills, self._tail())))
                if sink is not None:
                    tell(self._moment(self._kill_if_due(sink, self._sink_kills, self._materialized())))
            relay.stop()
            self._drain()
            tell(self._moment("writers done, out table drained"))
            if sink is not None:
                self._catch_up(sink, tell)
        finally:
            relay.stop()
            if sink is not None:
                sink.stop()
        return self._prove(relay.kills, sink.kills if sink else 0, time.monotonic() - started)

    def _moment(self, message: str | None = None) -> Moment:
        materialized = self._materialized() if self._sink_config else None
        return Moment(self._counter.committed, self._orders, self._tail(), materialized, message)

    def _kill_if_due(self, victim: _Victim, kills: int, reached: int) -> str | None:
        """Kill it when its time has come, but not before it has got something done: that would show nothing."""
        due = self._orders * (victim.kills + 1) / (kills + 1)
        if victim.kills < kills and self._counter.committed >= due and reached > victim.reached:
            return victim.kill(reached)
        victim.require_alive()
        return None

    def _catch_up(self, sink: _Victim, tell: Callable[[Moment], None]) -> None:
        """Wait until every table holds every event; a sink that was to be killed once more is killed on the way."""
        deadline = time.monotonic() + SINK_PATIENCE_SECONDS
        while (reached := self._materialized()) < self._tail():
            message = None
            if sink.kills < self._sink_kills and reached > sink.reached:
                message = sink.kill(reached)
            sink.require_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sink is at {reached} after {SINK_PATIENCE_SECONDS:.0f} s: see {sink.log_path}")
            tell(self._moment(message))
            time.sleep(0.2)
        tell(self._moment("every table holds every event"))

    def _write(self, number: int) -> None:
        """One writer: an order and its event in one transaction, some of them rolled back."""
        choose = random.Random(number)  # noqa: S311 - a demo, not a secret
        outbox = Outbox(self._table.name, schema=self._table.schema)
        with Session(self._url, self._table, application=f"demo writer {number}") as session:
            while self._counter.committed < self._orders:
                time.sleep(choose.random() * (PAUSE_SECONDS_MAX_WITH_SINK if self._sink_config else PAUSE_SECONDS_MAX))
                order_id = str(uuid.uuid4())
                customer = f"customer-{choose.randrange(500)}"
                total = choose.randrange(1, 500)
                try:
                    with session.transaction():
                        session.change("demo_order", id=order_id, customer=customer, total=total)
                        outbox.emit(
                            session.driver,
                            type=choose.choice(TYPES),
                            subject=order_id,
                            data={"order": order_id, "customer": customer, "total": total},
                        )
                        if choose.random() < ROLLBACK_SHARE:
                            raise _ChangeOfMindError
                except _ChangeOfMindError:
                    self._counter.add(rolled_back=1)
                except Transient:
                    continue  # SQLite was busy: nothing was written
                else:
                    self._counter.add(committed=1)

    def _relay_command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "cli.main", "relay", "--outbox", str(self._table)),
            *("--stream", self.stream_url, "--lease", "2s", *more),
        ]

    def _sink_command(self) -> list[str]:
        return [sys.executable, "-m", "cli.main", "sink", "--config", str(self._sink_config), "--every", "1s"]

    def _environment(self) -> dict[str, str]:
        # Not on the command line: its password would be there for every user of the machine to see.
        return {**os.environ, "OUTBOX_DATABASE_URL": self._url.url}

    def _drain(self) -> None:
        with (self._folder / "relay.log").open("ab") as log:
            subprocess.run(self._relay_command("--once"), stdout=log, stderr=log, env=self._environment(), check=True)

    def _tail(self) -> int:
        try:
            with open_stream(self.stream_url) as stream:
                return stream.tail()
        except Exception:  # the relay is only just making it
            return 0

    def _materialized(self) -> int:
        try:
            with open_stream(self.stream_url) as stream:
                return lowest(stream.readers(), TABLE) or 0
        except Exception:  # the relay is only just making it
            return 0

    def _prove(self, kills: int, sink_kills: int, seconds: float) -> Outcome:
        with Session(self._url, self._table) as session:
            orders = {order_id for (order_id,) in session.query("demo_orders")}
        relayed: list[str] = []
        with open_stream(self.stream_url) as stream:
            for batch in stream.read(stream.info().trimmed_through):
                relayed += batch.rows.column("subject").to_pylist()
            sample = _sample(self.stream_url)
        return Outcome(
            orders=len(orders),
            rolled_back=self._counter.rolled_back,
            kills=kills,
            sink_kills=sink_kills,
            seconds=seconds,
            missing=len(orders - set(relayed)),
            doubled=len(relayed) - len(set(relayed)) + len(set(relayed) - orders),
            verification=verify(self._url, self._table, self.stream_url),
            sample=sample,
        )


class _Victim:
    """A process of the program that is killed and started again."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log_path: Path) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self.log_path = log_path
        self.kills = 0
        # How far things were when it was started.
        self.reached = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, reached: int) -> str:
        """SIGKILL for it and all that it has started, and a new one in its place."""
        pid = self._process.pid
        os.killpg(pid, signal.SIGKILL)
        self._process.wait()
        self.kills, self.reached = self.kills + 1, reached
        self._process = self._start()
        return f"SIGKILL for the {self._name} (process {pid}) at ID {reached}; a new one takes over"

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the {self._name} ended with {self._process.returncode}: see {self.log_path}")

    def stop(self) -> None:
        """SIGTERM, and wait until it has finished what was under way."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def _sample(stream_url: str) -> list[str]:
    """The last events, as `outbox tap` writes them."""
    with open_stream(stream_url) as stream:
        facts = stream.info()
        return [
            line.rstrip()
            for batch in stream.read(max(facts.tail - 3, facts.trimmed_through))
            for lines in to_lines(batch, facts.source or "")
            for line in lines.to_pylist()
        ]


class _ChangeOfMindError(Exception):
    """The writer rolls back."""
