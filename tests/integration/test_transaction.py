"""A session's transactions, in the programs of this product: applications bring their own."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import DatabaseUnavailable
from outbox.names import OutTable


def test_commit_that_fails_leaves_no_transaction_behind(sqlite_url: str) -> None:
    """A reader of the rollback journal's kind is in the way of every COMMIT, and of no BEGIN IMMEDIATE."""
    url = DatabaseUrl.parse(sqlite_url)
    with Session(url, OutTable()) as session, closing(sqlite3.connect(url.path)) as other:
        session.run("CREATE TABLE numbers (n integer)")
        session.run("INSERT INTO numbers VALUES (1), (2), (3)")
        session.run("PRAGMA busy_timeout = 20")
        reading = other.execute("SELECT n FROM numbers")
        reading.fetchone()
        with pytest.raises(DatabaseUnavailable, match="locked"), session.transaction():
            session.run("INSERT INTO numbers VALUES (4)")
        assert not session.driver.in_transaction
        reading.close()
        other.execute("INSERT INTO numbers VALUES (5)")
        other.commit()
        with session.transaction():
            session.run("INSERT INTO numbers VALUES (6)")
        assert [n for (n,) in session.run("SELECT n FROM numbers ORDER BY n")] == [1, 2, 3, 5, 6]
