"""The relay's options as people write them."""

from __future__ import annotations

import pytest

from connector.options import DeleteAfter, RelayOptions, parse_duration_seconds, parse_on_blocker
from outbox.database import DatabaseUrl
from outbox.errors import UsageError
from outbox.names import OutTable


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("0s", 0.0),
        ("30s", 30.0),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("24h", 86_400.0),
        ("7d", 604_800.0),
        (" 5 m ", 300.0),
    ],
)
def test_duration_has_a_number_and_a_unit(text: str, seconds: float):
    assert parse_duration_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5s", "5 minutes", "5m30s", "1e3s", ".5s", "5s\n6s", "inf s"])
def test_duration_that_is_none_is_refused_with_examples(text: str):
    with pytest.raises(UsageError, match="250ms, 30s, 5m, 24h, 7d"):
        parse_duration_seconds(text)


@pytest.mark.parametrize("text", ["durable", "materialized", "never"])
def test_delete_after_has_three_words(text: str):
    assert DeleteAfter.parse(text) == DeleteAfter(text)


def test_delete_after_may_be_a_duration():
    assert DeleteAfter.parse("24h") == DeleteAfter("age", 86_400.0)


@pytest.mark.parametrize("text", ["", "Durable", "always", "24", "after 24h"])
def test_delete_after_that_is_none_names_what_there_is(text: str):
    with pytest.raises(UsageError, match="durable, materialized, never or a duration"):
        DeleteAfter.parse(text)


def test_on_blocker_waits_or_terminates():
    assert parse_on_blocker("wait") is None
    assert parse_on_blocker(" wait ") is None
    assert parse_on_blocker("terminate after 5m") == pytest.approx(300.0)
    assert parse_on_blocker("terminate after 500ms") == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "terminate", "terminate 5m", "kill after 5m", "terminate after soon"])
def test_on_blocker_that_is_none_is_refused(text: str):
    with pytest.raises(UsageError):
        parse_on_blocker(text)


def test_habits_that_nobody_has_asked_for():
    options = RelayOptions(DatabaseUrl.parse("sqlite:///a.db"), OutTable(), "memory://a")
    assert options.delete_after == DeleteAfter("durable")
    assert options.terminate_blocker_after_seconds is None
    assert options.fence == "auto"
    # The idle budget: 20 statements a second.
    assert 1 / options.idle_poll_seconds < 20
