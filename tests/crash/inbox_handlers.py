"""Handlers for `outbox inbox run`, found by their name."""

from __future__ import annotations

from tests.inbox_case import record


def take(given, event) -> None:
    record(given, event)


def take_many(given, events) -> None:
    for event in events:
        record(given, event)


def refuse_second(given, event) -> None:
    record(given, event)
    if event.id == 2:
        raise ValueError("not this one")
