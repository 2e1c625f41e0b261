"""Random histories, a part of which went to the dead letters and was redriven in two goes: the tables are what the model says."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_sink.redrive import Redrive
from stream_store import open_stream
from tests.killed import Crash, crash_after
from tests.model.test_sink_properties import emit, events
from tests.sink_case import SinkCase, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("typed", "upsert", "scd2")
# Where the first redrive may end.
CRASHES = (
    None,
    "spark_sink.redrive:Redrive._insert",
    "spark_sink.redrive:Redrive._recompute",
    "spark_sink.dead_letters:DeadLetters.settle",
)


@pytest.mark.slow
@settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    before=st.lists(events(), min_size=10, max_size=25),
    after=st.lists(events(), min_size=5, max_size=15),
    rows_max=st.integers(8, 30),
    share=st.integers(2, 3),
    crash=st.sampled_from(CRASHES),
)
def test_redriven_letters_are_where_they_would_have_been(
    spark: SparkSession, before: list[Any], after: list[Any], rows_max: int, share: int, crash: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = SinkCase(spark, Path(folder), *TABLES)
        strict = [replace(spec, expect={"not below zero": "total >= 0"}) for spec in case.specs()]
        emit(case, before)
        run(spark, case.url, *strict, rows_max=rows_max)
        # From now on everything is taken, while letters of the same keys wait.
        emit(case, after)
        case.run(rows_max=rows_max)
        for table in TABLES:
            chosen = [event_id for event_id in case.dead(table) if event_id % share == 0]
            with pytest.MonkeyPatch.context() as patch, suppress(Crash):
                if crash is not None:
                    crash_after(patch, crash)
                if chosen:
                    _redrive(case, table, chosen)
            _redrive(case, table, [])
        case.assert_exact()


def _redrive(case: SinkCase, table: str, ids: list[int]) -> None:
    with open_stream(case.url) as stream:
        Redrive(case.spark, stream, case.specs(table)[0]).run(ids)
