"""What `outbox check` looks at on SQLite."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding

# UPSERT, RETURNING and json_valid without an extension.
OLDEST_VERSION = (3, 38, 0)


def server(_: Subject) -> Iterator[Finding]:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < OLDEST_VERSION:
        yield error("server-version", f"SQLite {version} is too old", "use a Python with SQLite 3.38 or later")
    else:
        yield ok("server-version", f"SQLite {version}")


def durability(subject: Subject) -> Iterator[Finding]:
    mode = str(subject.session.value("check_journal")).lower()
    if mode in ("memory", "off"):
        yield error(
            "journal-mode",
            f"journal_mode is {mode}: a crash in the middle of a commit can destroy the database",
            "PRAGMA journal_mode = WAL (once: it stays with the file)",
        )
    elif mode == "wal":
        yield ok("journal-mode", "write-ahead log: the relay's reads and the writers do not block each other")
    else:
        yield warning(
            "journal-mode",
            f"journal_mode is {mode}: each read of the relay holds the writers' commits up for a moment",
            "PRAGMA journal_mode = WAL (once: it stays with the file)",
        )
    if int(subject.session.value("check_synchronous")) == 0:
        yield error(
            "synchronous",
            "synchronous is OFF here: a power failure can destroy the database",
            "PRAGMA synchronous = FULL on every connection that writes",
        )
    else:
        yield ok(
            "synchronous",
            "this connection syncs. The setting belongs to each writer's own connection: keep it at FULL there, with NORMAL "
            "a power failure may undo commits that the application was told of (the relay syncs before it appends)",
        )


def file(subject: Subject) -> Iterator[Finding]:
    path = Path(subject.session.url.path).absolute()
    locked = [str(place) for place in (path, path.parent) if not os.access(place, os.W_OK)]
    if locked:
        yield error(
            "privileges",
            f"{' and '.join(locked)} cannot be written: SQLite's writers also make files beside the database",
            f"let the relay's user write there: chown or chmod {' '.join(locked)}",
        )
    else:
        yield ok("privileges", "the database's file and its folder can be written")


def table(subject: Subject) -> Iterator[Finding]:
    text = str(subject.session.value("check_table")).lower()
    if "autoincrement" in text:
        yield ok("identity", "IDs are drawn by AUTOINCREMENT")
    else:
        yield error(
            "identity",
            f"column id of {subject.table} is not AUTOINCREMENT: SQLite gives the ID of a deleted last row out again",
            f"make the table anew from `outbox init --print`, copy the rows, and raise its row in sqlite_sequence to the "
            f"highest ID ever drawn; {subject.command('verify')} shows how far the stream is",
        )


SERVER = (("server-version", server), ("durability", durability))
TABLE = (("file", file), ("table", table))
