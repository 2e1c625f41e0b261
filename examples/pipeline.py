"""Three stages that chain exactly once, with a fan-in, on SQLite, while their processes are killed at random.

    python examples/pipeline.py --orders 200 --kills 15

    shop.db    orders   ──outbox──► stream ─┐
                                            ├─► matching.db   inbox + outbox ──► stream ──► books.db   inbox
    bank.db    payments ──outbox──► stream ─┘   (an order and its payment meet)             (bookings, a balance)

Each stage writes its effects, its position and the events for the next stage in one transaction of its
own database. One relay process serves the three outboxes. The end is a proof: every order is booked
exactly once, and the balance is the sum of all.
"""

from __future__ import annotations

import argparse
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from outbox import Inbox, Outbox, OutTable, install  # noqa: E402
from outbox.database import DatabaseUrl  # noqa: E402
from outbox.errors import StreamMissing  # noqa: E402
from outbox.inbox import install as install_inbox  # noqa: E402
from stream_store import open_stream  # noqa: E402

OUTBOX = Outbox()
ROLES = ("shop", "relay", "matching", "books")
PATIENCE_SECONDS = 120
KILL_AFTER_SECONDS_MAX = 3.0


# Stage 1: an order and its payment, each in the database that owns it.


def run_shop(folder: Path, orders: int) -> None:
    """Place orders and pay them. Killed and started again, it goes on behind the last one that committed."""
    for name, kind in (("shop", "order.placed"), ("bank", "payment.made")):
        with sqlite3.connect(folder / f"{name}.db", timeout=30) as connection:
            (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM written").fetchone()
        for number in range(last + 1, orders + 1):
            with sqlite3.connect(folder / f"{name}.db", timeout=30) as connection:
                connection.execute("INSERT INTO written VALUES (?)", (number,))
                OUTBOX.emit(connection, type=kind, subject=f"order-{number}", data={"amount": number})


# Stage 2: two streams flow in; what has met goes on, as an event of this stage's own outbox.


def match(connection: sqlite3.Connection, event) -> None:
    connection.execute("INSERT INTO seen VALUES (?, ?)", (event.subject, event.type))
    (kinds,) = connection.execute(
        "SELECT count(DISTINCT type) FROM seen WHERE subject = ?", (event.subject,)
    ).fetchone()
    if kinds == 2:
        OUTBOX.emit(connection, type="order.settled", subject=event.subject, data=event.data)


# Stage 3: money. Doing this twice, or not at all, is what must not happen.


def book(connection: sqlite3.Connection, event) -> None:
    connection.execute("INSERT INTO bookings VALUES (?, ?)", (event.subject, event.data["amount"]))
    connection.execute("UPDATE balance SET total = total + ?", (event.data["amount"],))


def consume(folder: Path, stage: str, streams: list[str], handler) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    opened = [open_when_there(f"file://{folder}/{name}") for name in streams]
    inbox = Inbox(lambda: sqlite3.connect(folder / f"{stage}.db", timeout=30), consumer=stage, batch_events=10)
    inbox.run(opened, handler, stop=stop)


def open_when_there(url: str):
    """The relay makes the stream when it first runs."""
    while True:
        try:
            return open_stream(url)
        except StreamMissing:
            time.sleep(0.05)


def prepare(folder: Path) -> None:
    """Databases with their tables, and the relay's configuration."""
    tables = {
        "shop": "CREATE TABLE written (number integer)",
        "bank": "CREATE TABLE written (number integer)",
        "matching": "CREATE TABLE seen (subject text, type text)",
        "books": "CREATE TABLE bookings (subject text, amount integer); CREATE TABLE balance (total integer);"
        "INSERT INTO balance VALUES (0)",
    }
    config = []
    for name, sql in tables.items():
        with sqlite3.connect(folder / f"{name}.db") as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(sql)
        url = DatabaseUrl.parse(f"sqlite:///{folder / name}.db")
        if name != "books":
            install(url, OutTable(), source=f"/{name}")
            config.append(f'[[outbox]]\ndatabase = "{url}"\nstream = "file://{folder / name}"\n')
        if name in ("matching", "books"):
            install_inbox(url)
    (folder / "outbox.toml").write_text("\n".join(config))


def start(role: str, folder: Path, orders: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--role", role, "--folder", str(folder), "--orders", str(orders)]
    if role == "relay":
        # A short lease: the next relay waits for the end of a dead one's.
        options = ["--config", str(folder / "outbox.toml"), "--lease", "500ms"]
        command = [sys.executable, "-m", "cli.main", "relay", *options]
    with (folder / f"{role}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def count(folder: Path, database: str, table: str) -> int:
    with sqlite3.connect(folder / f"{database}.db", timeout=30) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def booked(folder: Path) -> int:
    return count(folder, "books", "bookings")


def wait_for_progress(folder: Path) -> None:
    """Until some stage has done something, so that a kill has something to hit; not for long."""
    stages = (("shop", "written"), ("bank", "written"), ("matching", "seen"), ("books", "bookings"))
    before = [count(folder, *stage) for stage in stages]
    deadline = time.monotonic() + KILL_AFTER_SECONDS_MAX
    while [count(folder, *stage) for stage in stages] == before and time.monotonic() < deadline:
        time.sleep(0.02)


def run(folder: Path, orders: int, kills: int, seed: int) -> None:
    prepare(folder)
    chance = random.Random(seed)
    processes = {role: start(role, folder, orders) for role in ROLES}
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        for number in range(kills):
            wait_for_progress(folder)
            time.sleep(chance.uniform(0.0, 0.5))
            role = chance.choice(ROLES)
            processes[role].kill()
            processes[role].wait()
            print(f"kill {number + 1}: {role}; {booked(folder)} of {orders} orders are booked", flush=True)
            processes[role] = start(role, folder, orders)
        while booked(folder) < orders:
            assert time.monotonic() < deadline, f"not finished in time: see the logs in {folder}"
            time.sleep(0.1)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(30)
    prove(folder, orders)


def prove(folder: Path, orders: int) -> None:
    """Every effect of every stage, exactly once."""
    from connector.verify import verify

    expected = [(f"order-{number}", 1) for number in range(1, orders + 1)]
    with sqlite3.connect(folder / "matching.db") as connection:
        rows = connection.execute("SELECT subject, type, count(*) FROM seen GROUP BY subject, type").fetchall()
        assert sorted(rows) == sorted((s, t, n) for s, n in expected for t in ("order.placed", "payment.made")), rows
    with sqlite3.connect(folder / "books.db") as connection:
        rows = connection.execute("SELECT subject, count(*) FROM bookings GROUP BY subject").fetchall()
        assert sorted(rows) == sorted(expected), rows
        (total,) = connection.execute("SELECT total FROM balance").fetchone()
        assert total == sum(range(1, orders + 1)), total
    for name in ("shop", "bank", "matching"):
        found = verify(DatabaseUrl.parse(f"sqlite:///{folder / name}.db"), OutTable(), f"file://{folder / name}")
        assert found.ok, found
    print(f"{orders} orders, each matched, settled and booked exactly once; the balance is {total}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A three-stage pipeline whose processes are killed at random.")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep everything here, for a look")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "shop":
        run_shop(given.folder, given.orders)
    elif given.role == "matching":
        consume(given.folder, "matching", ["shop", "bank"], match)
    elif given.role == "books":
        consume(given.folder, "books", ["matching"], book)
    elif given.folder:
        given.folder.mkdir(parents=True)
        run(given.folder.absolute(), given.orders, given.kills, given.seed)
    else:
        with tempfile.TemporaryDirectory(prefix="outbox-pipeline-") as folder:
            run(Path(folder), given.orders, given.kills, given.seed)


if __name__ == "__main__":
    main()
