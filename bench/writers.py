"""Writers at a steady rate, each in a process of its own, who note when they committed."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass

import psycopg

from bench.fill import json_of

INSERT = "INSERT INTO outbox (type, subject, data) VALUES (%s, %s, %s) RETURNING id"
CONNECT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Commit:
    """One row, and the wall clock before its COMMIT was sent and after it was answered."""

    event_id: int
    sent_ns: int
    answered_ns: int


def write_paced(url: str, writers: int, rows_per_second: float, seconds: float) -> list[Commit]:
    """All the commits of `writers` processes that together insert at this rate, a row per transaction."""
    context = multiprocessing.get_context("spawn")
    start_at = time.time() + CONNECT_SECONDS
    interval = writers / rows_per_second
    jobs = [(url, start_at + interval * number / writers, interval, seconds) for number in range(writers)]
    with context.Pool(writers) as pool:
        found = pool.starmap(_write, jobs, chunksize=1)
    return sorted((Commit(*row) for rows in found for row in rows), key=lambda commit: commit.event_id)


def _write(url: str, start_at: float, interval: float, seconds: float) -> list[tuple[int, int, int]]:
    rows: list[tuple[int, int, int]] = []
    with psycopg.connect(url, application_name="writer") as connection:
        for number in range(int(seconds / interval)):
            # By the clock, not by pauses: a late writer catches up and keeps the rate.
            time.sleep(max(0.0, start_at + number * interval - time.time()))
            found = connection.execute(INSERT, ("order.placed", f"order-{number}", json_of(number))).fetchone()
            assert found
            sent_ns = time.time_ns()
            connection.commit()
            rows.append((int(found[0]), sent_ns, time.time_ns()))
    return rows
