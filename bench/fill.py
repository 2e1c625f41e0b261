"""Out tables full of rows of about 200 bytes."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import psycopg

from outbox.database import DatabaseUrl
from outbox.names import OutTable
from outbox.schema import install
from tests.servers import mariadb

if TYPE_CHECKING:
    from pathlib import Path

# As an application would write them: a thousand small commits, not one huge one.
ROWS_PER_COMMIT = 1_000

POSTGRESQL_FILL = """
DO $$
DECLARE part bigint;
BEGIN
    FOR part IN 0 .. {parts} - 1 LOOP
        INSERT INTO outbox (type, subject, data)
        SELECT 'order.placed', 'order-' || n, ('{{"order": ' || n || ', "customer": "c-' || n % 9973
            || '", "total": "' || n % 1000 || '.50", "currency": "EUR", "token": "' || md5(n::text)
            || md5((n * 7)::text) || '", "paid": true}}')::json
        FROM generate_series(part * {per_commit} + 1, (part + 1) * {per_commit}) AS n;
        COMMIT;
    END LOOP;
END $$
"""

SQLITE_FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO outbox (type, subject, data)
SELECT 'order.placed', 'order-' || n, '{"order": ' || n || ', "customer": "c-' || n % 9973
    || '", "total": "' || n % 1000 || '.50", "currency": "EUR", "token": "'
    || lower(hex(randomblob(32))) || '", "paid": true}'
FROM numbers
"""


def install_outbox(url: str) -> None:
    install(DatabaseUrl.parse(url), OutTable())


def fill_postgresql(url: str, rows: int) -> int:
    """Add rows in small commits, and leave the table as vacuum does: every reader finds the same state.

    Returns the last row's ID.
    """
    assert rows % ROWS_PER_COMMIT == 0, rows
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(POSTGRESQL_FILL.format(parts=rows // ROWS_PER_COMMIT, per_commit=ROWS_PER_COMMIT))
        connection.execute("VACUUM (ANALYZE) outbox")
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT max(id) FROM outbox").fetchone()
    assert found
    return int(found[0])


def row_bytes_postgresql(url: str) -> float:
    """What a row's columns hold on average, without PostgreSQL's own overhead."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT avg(8 + octet_length(type) + octet_length(subject) + octet_length(data::text) + 8)::float8 "
            "FROM (SELECT * FROM outbox LIMIT 10000) AS sample"
        ).fetchone()
    assert found
    return float(found[0])


def copy_postgresql(admin: str, filled: str, name: str) -> str:
    """A copy of a filled database, byte for byte, made by the server."""
    source = filled.rsplit("/", 1)[1]
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" STRATEGY FILE_COPY')
        connection.execute("CHECKPOINT")
    return filled.rsplit("/", 1)[0] + "/" + name


def drop_postgresql(admin: str, url: str) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{url.rsplit("/", 1)[1]}" WITH (FORCE)')


def fill_mariadb(url: str, rows: int) -> None:
    """By multi-row INSERTs: INSERT … SELECT would draw IDs in powers of two and leave gaps."""
    with mariadb.connect(url) as connection, connection.cursor() as cursor:
        for start in range(0, rows, ROWS_PER_COMMIT):
            cursor.executemany(
                "INSERT INTO outbox (type, subject, data) VALUES (%s, %s, %s)",
                [("order.placed", f"order-{n}", json_of(n)) for n in range(start + 1, start + ROWS_PER_COMMIT + 1)],
            )
            connection.commit()


def fill_sqlite(path: Path, rows: int) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(SQLITE_FILL, (rows,))
    connection.close()


def json_of(number: int) -> str:
    """The data of one row, as the fills above write it."""
    token = f"{number * 2654435761 % 2**64:064x}"
    return (
        f'{{"order": {number}, "customer": "c-{number % 9973}", "total": "{number % 1000}.50", '
        f'"currency": "EUR", "token": "{token}", "paid": true}}'
    )
