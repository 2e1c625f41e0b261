"""Writer processes: applications that emit in transactions of all kinds, as badly as they come.

`python -m tests.integration.writers ROLE JSON`. Each transaction also writes the IDs of its
events into the table `business`: that table is the truth about what was committed, whoever
was killed when. Roles:

steady    many transactions until the time is over
idle      one transaction that draws IDs, idles, and then commits or rolls back
doomed    one transaction that draws IDs and never ends: the test kills the process
prepared  one two-phase transaction that is prepared and left to another session
poller    the naive way: `id > cursor`, to show that this load loses rows with it
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from outbox import Outbox
from outbox.database import DatabaseUrl
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Callable

BUSINESS = "CREATE TABLE business (event_id bigint PRIMARY KEY, subject varchar(100) NOT NULL)"
OUTBOX = Outbox()


def connect(url: str) -> Any:
    """A connection as an application opens it: the driver's own defaults."""
    parsed = DatabaseUrl.parse(url)
    if parsed.dialect == "postgresql":
        return psycopg.connect(url)
    if parsed.dialect == "mysql":
        return mariadb.connect(url)
    return sqlite3.connect(parsed.path, timeout=60, isolation_level=None)


class Writer:
    """One connection, and the transactions it makes."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        self.name = name
        self.dialect = DatabaseUrl.parse(url).dialect
        self.random = random.Random(seed)
        self.connection = connect(url)
        self.cursor = self.connection.cursor()
        self._number = 0
        # The highest ID that this writer has committed: its next ones lie above it. Not the
        # highest it has drawn: SQLite gives out an ID again after a rollback.
        self._committed_id = self._noted_id = 0

    def run(self, sql: str, *parameters: Any) -> None:
        self.cursor.execute(sql.replace("%s", "?") if self.dialect == "sqlite" else sql, parameters)

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")

    def end(self, *, commit: bool) -> None:
        self.run("COMMIT" if commit else "ROLLBACK")
        if commit:
            self._committed_id = self._noted_id

    def subjects(self, count: int) -> list[str]:
        self._number += count
        return [f"{self.name}-{number}" for number in range(self._number - count, self._number)]

    def emit(self, subjects: list[str]) -> None:
        for subject in subjects:
            OUTBOX.emit(self.connection, type="t", subject=subject, data={"subject": subject})

    def emit_many(self, subjects: list[str]) -> None:
        OUTBOX.emit_many(
            self.connection, [{"type": "t", "subject": subject, "data": {"subject": subject}} for subject in subjects]
        )

    def insert_values(self, subjects: list[str]) -> None:
        rows = ", ".join(f"""('t', '{subject}', '{{"subject":"{subject}"}}')""" for subject in subjects)
        self.run(f"INSERT INTO outbox (type, subject, data) VALUES {rows}")

    def insert_select(self, subjects: list[str]) -> None:
        rows = " UNION ALL ".join(f"SELECT '{subject}' AS s" for subject in subjects)
        data = """'{"subject":"' || s || '"}'""" if self.dialect != "mysql" else """concat('{"subject":"', s, '"}')"""
        cast = "CAST(%s AS json)" if self.dialect == "postgresql" else "%s"
        sql = f"INSERT INTO outbox (type, subject, data) SELECT 't', s, {cast.replace('%s', data)} FROM ({rows}) AS new"
        self.cursor.execute(sql)

    def copy(self, subjects: list[str]) -> None:
        with self.cursor.copy("COPY outbox (type, subject, data) FROM STDIN") as copy:
            for subject in subjects:
                copy.write_row(("t", subject, json.dumps({"subject": subject}, separators=(",", ":"))))

    def note(self, subjects: list[str]) -> None:
        """Write the events' IDs where the truth is kept, in the same transaction."""
        names = ", ".join(f"'{subject}'" for subject in subjects)
        self.run(f"SELECT id, subject FROM outbox WHERE id > %s AND subject IN ({names})", self._committed_id)
        found = [(int(number), subject) for number, subject in self.cursor.fetchall()]
        assert sorted(subject for _, subject in found) == sorted(subjects), (found, subjects)
        self._noted_id = max(number for number, _ in found)
        rows = ", ".join(f"({number}, '{subject}')" for number, subject in found)
        self.run(f"INSERT INTO business (event_id, subject) VALUES {rows}")

    def write(self, count: int) -> None:
        """Some events, by one of the ways that there are."""
        ways: list[Callable[[list[str]], None]] = [self.emit, self.emit, self.emit_many, self.insert_values]
        if count > 2:
            ways.append(self.insert_select)
            if self.dialect == "postgresql":
                ways.append(self.copy)
        subjects = self.subjects(count)
        self.random.choice(ways)(subjects)
        self.note(subjects)

    def transaction(self) -> None:
        chance = self.random.random
        self.begin()
        self.write(self.random.randint(1, 5) if chance() < 0.95 else 50)
        if chance() < 0.15:
            before = self._noted_id
            self.run("SAVEPOINT inner_part")
            self.write(self.random.randint(1, 3))
            if chance() < 0.5:
                self.run("ROLLBACK TO SAVEPOINT inner_part")
                self._noted_id = before
            else:
                self.run("RELEASE SAVEPOINT inner_part")
        pause = chance()
        if pause < 0.003 and self.dialect != "sqlite":
            time.sleep(1)
        elif pause < 0.15:
            time.sleep(chance() * 0.05)
        if chance() < 0.1:
            self.write(1)
        self.end(commit=chance() >= 0.05)


def steady(writer: Writer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        writer.transaction()
        # One in two is in a tight loop and seldom seen without its lock.
        if writer.name[-1] in "02468":
            time.sleep(writer.random.random() * 0.01)


def idle(writer: Writer, seconds: float, commit: bool) -> None:
    writer.begin()
    writer.write(2)
    time.sleep(seconds)
    writer.end(commit=commit)


def doomed(writer: Writer, ready: str) -> None:
    writer.begin()
    writer.write(3)
    Path(ready).touch()
    time.sleep(600)


def prepared(writer: Writer, gid: str) -> None:
    if writer.dialect == "mysql":
        writer.run(f"XA START '{gid}'")
        writer.write(2)
        writer.run(f"XA END '{gid}'")
        writer.run(f"XA PREPARE '{gid}'")
    else:
        writer.begin()
        writer.write(2)
        writer.run(f"PREPARE TRANSACTION '{gid}'")


def poller(writer: Writer, found: str) -> None:
    """Poll as many an outbox does, and write down at SIGTERM what it has seen."""
    over = False

    def stop(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, stop)
    seen: list[int] = []
    cursor = 0
    while not over:
        writer.run("SELECT event_id FROM business WHERE event_id > %s ORDER BY event_id", cursor)
        ids = [int(number) for (number,) in writer.cursor.fetchall()]
        writer.connection.commit()
        seen += ids
        cursor = ids[-1] if ids else cursor
        time.sleep(0.005)
    Path(found).write_text(json.dumps(seen))


ROLES: dict[str, Callable[..., None]] = {
    "steady": steady,
    "idle": idle,
    "doomed": doomed,
    "prepared": prepared,
    "poller": poller,
}


def main() -> None:
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    writer = Writer(settings.pop("name"), settings.pop("url"), settings.pop("seed"))
    ROLES[role](writer, **settings)


if __name__ == "__main__":
    main()
