"""The Spark examples run, and show what they say."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.streams import EPOCH

EXAMPLES = Path(__file__).parents[2] / "examples"

MakeStream = Callable[..., str]


def run(name: str, url: str, monkeypatch, capsys) -> list[str]:
    """What a script prints. It runs in this process, and so in the session of the tests."""
    monkeypatch.setattr(sys, "argv", [name, url])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


# Not on Spark before 4.2: there, a query that takes what is available now runs one batch and
# none to close the windows.
def test_windows_by_event_time_take_late_events_and_leave_out_what_does_not_parse(
    spark, make_stream: MakeStream, monkeypatch, capsys
):
    def paid(seconds: int, data: object) -> dict[str, object]:
        return {"type": "order.paid", "time": EPOCH + timedelta(seconds=seconds), "data": data}

    url = make_stream(
        paid(5, {"total": 10.5}),
        paid(70, {"total": "1.25"}),
        {"type": "user.made", "data": {"total": 1000}},
        paid(59, {"total": 2}),  # late by its time, in order by its ID
        paid(80, {"total": "much"}),
        paid(110, None),
        paid(600, {"total": 1}),
    )
    assert run("spark_windows.py", url, monkeypatch, capsys) == [
        "00:00    2 payments       12.50",
        "00:01    2 payments        1.25",
    ]


@pytest.mark.compat
def test_streams_are_joined_with_each_other_and_with_a_table(spark, make_stream: MakeStream, monkeypatch, capsys):
    def order(subject: str, customer: str, minute: int) -> dict[str, object]:
        data = {"customer": customer, "total": 10 + minute}
        return {"type": "order.placed", "subject": subject, "time": EPOCH + timedelta(minutes=minute), "data": data}

    def payment(subject: str, minute: int) -> dict[str, object]:
        data = {"method": "card"}
        return {"type": "order.paid", "subject": subject, "time": EPOCH + timedelta(minutes=minute), "data": data}

    url = make_stream(
        order("o-1", "c-1", 0),
        order("o-2", "c-2", 1),
        payment("o-2", 2),
        order("o-3", "c-1", 3),
        payment("o-1", 59),
        payment("o-3", 64),  # an hour and a minute later
        order("o-4", "c-9", 65),
        payment("o-4", 66),
    )
    assert run("spark_join.py", url, monkeypatch, capsys) == [
        "o-1: Ada paid 10.00 by card",
        "o-2: Grace paid 11.00 by card",
    ]
