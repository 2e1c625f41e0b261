"""Which error a sink of several tables ends with."""

from __future__ import annotations

import pytest

from outbox.errors import OutboxError, TableChanged, TableConflict, UsageError
from spark_sink.materializer import worst_of

IN_ORDER = [TableChanged("4"), UsageError("2"), ValueError("1"), TableConflict("75")]


@pytest.mark.parametrize("at", range(len(IN_ORDER)))
def test_what_needs_a_person_comes_before_what_a_restart_may_mend(at):
    assert worst_of(IN_ORDER[: at - 1 : -1] if at else IN_ORDER[::-1]) is IN_ORDER[at]


def test_an_error_of_ours_that_is_neither_is_worse_than_a_passing_one():
    assert str(worst_of([TableConflict("75"), OutboxError("1")])) == "1"
