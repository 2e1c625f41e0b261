"""The relay's log on stderr: for people, or one JSON object a line."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

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
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if log_format == "human"
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_traceback,
            _without_passwords,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _without_traceback(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The error's text says what to do; its traceback is for those who ask for it."""
    if os.environ.get("OUTBOX_DEBUG", "0") in ("", "0"):
        event.pop("exc_info", None)
    return event


def _without_passwords(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redacted(value)
    return event
