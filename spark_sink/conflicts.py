"""Somebody else was first: begin again with what is there by now, a bounded number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from outbox.errors import TableConflict
from spark_sink.worker_errors import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 20
Result = TypeVar("Result")


class _Unwrapping(Retrying):
    """Judges by what a worker has raised, not by what Spark makes of it."""

    def __call__(self, fn: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        return super().__call__(unwrapped()(fn), *args, **kwargs)


def retrying() -> Retrying:
    """Calls a function until it meets no conflict. The last one is raised."""
    return _Unwrapping(
        retry=retry_if_exception_type(TableConflict),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        stop=stop_after_attempt(TRIES),
        reraise=True,
    )
