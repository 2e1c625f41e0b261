"""The relay's log on stderr: for people, or one JSON object a line."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from cli import printing
from cli.printing import redacted
from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

FORMATS = ("human", "json")


def configure(log_format: str) -> None:
    """Send everything that is logged to stderr; stdout is for data."""
    if log_format not in FORMATS:
        raise UsageError(f"log_format {log_format!r}: it is {' or '.join(FORMATS)}")
    colors = sys.stderr is not None and sys.stderr.isatty()
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback), _redact]
        if log_format == "human"
        else [structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_traceback,
            # As text, before the passwords are taken out, and without the local variables: they hold many.
            structlog.processors.format_exc_info,
            _without_passwords,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _LOG,
        cache_logger_on_first_use=False,
    )
    for name in ("stream_store", "outbox.inbox"):
        library = logging.getLogger(name)
        library.handlers, library.propagate = [_Forward()], False


class _Log:
    """stderr, line by line. A log that cannot be written, on a full disk or into a closed pipe, stops nothing."""

    def __init__(self) -> None:
        # A signal's handler may log while the main thread does.
        self._lock = threading.RLock()

    def msg(self, line: str) -> None:
        with self._lock:
            printing.write_error(line + "\n")

    debug = info = warning = error = critical = msg


_LOG = _Log()


class _Forward(logging.Handler):
    """What the stream store says by Python's own logging, in the format of everything else."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, record.getMessage())


def _without_traceback(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The error's text says what to do; its traceback is for those who ask for it."""
    if os.environ.get("OUTBOX_DEBUG", "0") in ("", "0"):
        event.pop("exc_info", None)
    return event


def _without_passwords(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Each value by itself: in the whole line of JSON a password's end could not be told from its string's."""
    for key, value in event.items():
        if value is not None and not isinstance(value, int | float):
            event[key] = redacted(str(value))
    return event


def _redact(_: object, __: str, line: str) -> str:
    return redacted(line)
