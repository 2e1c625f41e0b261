"""Random histories, cut into random batches, with crashes and repairs on the way: the tables are what the model says.

An example takes many commits, and so seconds; there are few of them, with long histories, the
same ones in every run. All tables are fed from the same stream.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from spark_sink.replay import Replay
from stream_store import open_stream
from tests.killed import Crash, crash_after
from tests.sink_case import SinkCase
from tests.streams import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("typed", "upsert", "scd2")

# Where a run of the sink may end, whichever table it is at.
CRASHES = (
    "spark_sink.dead_letters:DeadLetters.record",
    "spark_sink.delta:Transaction.mark",
    "spark_sink.delta:Transaction.commit",
    "spark_sink.table:Table.delta_table",
    "spark_sink.modes.upsert:Upsert.apply",
    "spark_sink.modes.scd2:Scd2.apply",
)

keys = st.sampled_from("abcd")
times = st.integers(0, 60).map(lambda second: EPOCH + timedelta(seconds=second))
good = st.builds(lambda key, total: {"order": key, "total": total}, keys, st.one_of(st.integers(-9, 9), st.just(0.5)))
bad = st.sampled_from(
    [
        {"order": "a", "total": "a lot"},
        {"order": 7, "total": 1},
        {"order": "b", "total": True},
        "[1, 2]",
        "7",
        {"order": ["c"], "total": 1},
    ]
)


@st.composite
def events(draw: Any) -> dict[str, Any]:
    """An order more often than a tombstone, and either more often than something bad."""
    kind = draw(st.sampled_from(["order"] * 6 + ["tombstone"] * 3 + ["bad", "no key"]))
    made = {"subject": None if kind == "no key" else draw(keys), "time": draw(times)}
    if kind != "tombstone":
        made["data"] = draw(bad if kind == "bad" else good)
    if draw(st.integers(0, 9)) == 0:
        made["dead_ids"] = draw(st.integers(1, 3))
    return made


@dataclass
class Run:
    """Events that come, and one run of the sink over them."""

    events: list[dict[str, Any]]
    batches: int
    crash: tuple[str, int] | None = None
    # The range of a repair after it, as parts of the stream.
    repair: tuple[float, float] | None = field(default=None)


parts = st.floats(0, 1)
runs = st.builds(
    Run,
    st.lists(events(), min_size=4, max_size=20),
    st.integers(1, 3),
    st.one_of(st.none(), st.tuples(st.sampled_from(CRASHES), st.integers(1, 2))),
    st.one_of(st.none(), st.tuples(parts, parts)),
)


@pytest.mark.slow
@settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(history=st.lists(runs, min_size=2, max_size=3))
def test_tables_are_what_the_model_makes_of_the_stream(spark: SparkSession, history: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = SinkCase(spark, Path(folder), *TABLES)
        for turn in history:
            note(str(turn))
            emit(case, turn.events)
            rows_max = -(-len(turn.events) // turn.batches)
            if turn.crash is not None:
                crash(case, turn.crash, rows_max)
                rows_max += 1
            case.run(rows_max=rows_max)
            if turn.repair is not None:
                repair(case, sorted(turn.repair))
        case.assert_exact()


def emit(case: SinkCase, made: list[dict[str, Any]]) -> None:
    """Emit events, some behind IDs that nobody will ever see."""
    tail = case.emit()
    numbered = []
    for each in made:
        tail += 1 + each.get("dead_ids", 0)
        numbered.append({**{name: value for name, value in each.items() if name != "dead_ids"}, "id": tail})
    case.emit(*numbered)


def crash(case: SinkCase, at: tuple[str, int], rows_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, *at)
        try:
            case.run(rows_max=rows_max)
        except Crash:
            event("crashed")


def repair(case: SinkCase, between: list[float]) -> None:
    with open_stream(case.url) as stream:
        first, last = (int(part * stream.tail()) for part in between)
        for spec in case.specs():
            if first < last:
                Replay(case.spark, stream, spec).run(first, last)
