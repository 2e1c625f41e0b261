"""Somebody else was first: begin again with what is there by now, a bounded number of times."""

from __future__ import annotations

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from outbox.errors import TableConflict

TRIES = 20


def retrying() -> Retrying:
    """Calls a function until it meets no conflict. The last one is raised."""
    return Retrying(
        retry=retry_if_exception_type(TableConflict),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        stop=stop_after_attempt(TRIES),
        reraise=True,
    )
