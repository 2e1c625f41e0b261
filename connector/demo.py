"""The demo: writers with rollbacks, a relay that is killed on the way, and the proof at the end.

Everything here is what a user would do: the writers change a business table and emit in the
same transaction, the relay is the program in a process of its own, and the proof compares
the business table with the stream, besides asking `verify`.
"""

from __future__ import annotations

import os
import random
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outbox.database import DatabaseUrl
    from outbox.names import OutTable

WRITERS = 4
ROLLBACK_SHARE = 0.1
# Slow enough to watch, and for each relay to get some work done before it is killed.
PAUSE_SECONDS_MAX = 0.012
TYPES = ("order.placed", "order.paid", "order.shipped")


@dataclass(frozen=True)
class Moment:
    """How far the demo is, told again and again while it runs."""

    committed: int
    goal: int
    relayed: int
    kills: int
    message: str | None = None


@dataclass
class Outcome:
    """What came of it: the business table is the truth, the stream has to agree."""

    orders: int
    rolled_back: int
    kills: int
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
    """One run on one database and one stream folder."""

    def __init__(self, url: DatabaseUrl, table: OutTable, stream_folder: Path, *, orders: int, kills: int) -> None:
        self._url = url
        self._table = table
        self._stream_url = f"file://{stream_folder.resolve()}"
        self._log_path = stream_folder.parent / "relay.log"
        self._orders = orders
        self._kills = kills
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
        """Write, relay, kill, drain, prove."""
        started = time.monotonic()
        writers = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        relay, kills, tail_before = self._start_relay(), 0, 0
        try:
            while any(writer.is_alive() for writer in writers):
                time.sleep(0.1)
                message = None
                tail = self._tail()
                due = self._orders * (kills + 1) / (self._kills + 1)
                # Not before it has relayed something: a kill while it stands by would show nothing.
                if kills < self._kills and self._counter.committed >= due and tail > tail_before:
                    relay.kill()
                    relay.wait()
                    kills, tail_before = kills + 1, self._tail()
                    message = f"SIGKILL for the relay (process {relay.pid}); a new one takes over"
                    relay = self._start_relay()
                tell(Moment(self._counter.committed, self._orders, tail, kills, message))
        finally:
            relay.terminate()
            relay.wait()
        self._drain()
        tell(Moment(self._counter.committed, self._orders, self._tail(), kills, "writers done, out table drained"))
        return self._prove(kills, time.monotonic() - started)

    def _write(self, number: int) -> None:
        """One writer: an order and its event in one transaction, some of them rolled back."""
        choose = random.Random(number)  # noqa: S311 - a demo, not a secret
        outbox = Outbox(self._table.name, schema=self._table.schema)
        with Session(self._url, self._table, application=f"demo writer {number}") as session:
            while self._counter.committed < self._orders:
                time.sleep(choose.random() * PAUSE_SECONDS_MAX)
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

    def _command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "cli.main", "relay", "--outbox", str(self._table)),
            *("--stream", self._stream_url, "--lease", "2s", *more),
        ]

    def _environment(self) -> dict[str, str]:
        # Not on the command line: its password would be there for every user of the machine to see.
        return {**os.environ, "OUTBOX_DATABASE_URL": self._url.url}

    def _start_relay(self) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            return subprocess.Popen(self._command(), stdout=log, stderr=log, env=self._environment())

    def _drain(self) -> None:
        with self._log_path.open("ab") as log:
            subprocess.run(self._command("--once"), stdout=log, stderr=log, env=self._environment(), check=True)

    def _tail(self) -> int:
        try:
            with open_stream(self._stream_url) as stream:
                return stream.tail()
        except Exception:  # the relay is only just making it
            return 0

    def _prove(self, kills: int, seconds: float) -> Outcome:
        with Session(self._url, self._table) as session:
            orders = {order_id for (order_id,) in session.query("demo_orders")}
        relayed: list[str] = []
        with open_stream(self._stream_url) as stream:
            for batch in stream.read(stream.info().trimmed_through):
                relayed += batch.rows.column("subject").to_pylist()
            sample = _sample(self._stream_url)
        return Outcome(
            orders=len(orders),
            rolled_back=self._counter.rolled_back,
            kills=kills,
            seconds=seconds,
            missing=len(orders - set(relayed)),
            doubled=len(relayed) - len(set(relayed)) + len(set(relayed) - orders),
            verification=verify(self._url, self._table, self._stream_url),
            sample=sample,
        )


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
