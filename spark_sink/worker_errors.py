"""Errors of ours that were raised in Spark's workers, as what they are.

Spark hands on no more than their text, inside an error of its own. Whether to try again, and
with which exit code the program ends, are decided by the class that the text names.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from outbox import errors
from outbox.errors import OutboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The last line of a traceback. Of several, the last is the one that was not caught.
_NAMED = re.compile(r"^\s*outbox\.errors\.(\w+): (.+)$", re.MULTILINE)
_SPARK = ("pyspark", "py4j")


def ours_of(error: BaseException) -> OutboxError | None:
    """The error of ours that an error of Spark tells of, if it does."""
    if not type(error).__module__.startswith(_SPARK):
        return None
    try:
        found = _NAMED.findall(str(error))
    except Exception:  # py4j asks Java for the text, and that may be gone
        return None
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    return kind(message.strip()) if isinstance(kind, type) and issubclass(kind, OutboxError) else None


def in_short(error: Exception) -> str:
    """What an error says, in one line; of one of ours from a worker, that."""
    text = str(ours_of(error) or error)
    cause = getattr(error, "java_exception", None)
    if cause is not None and ours_of(error) is None:
        with suppress(Exception):  # as above
            text = str(cause.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise what a worker has raised, instead of what Spark makes of it."""
    try:
        yield
    except Exception as error:
        ours = ours_of(error)
        if ours is None:
            raise
        raise ours from error
