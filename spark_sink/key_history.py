"""The history of keys: every event above an ID, through the table's bookmark, of the keys that matter.

An upsert or scd2 table is repaired key by key. What a key is to be depends on its events from
the first one that is in doubt to the last one that the table has had, so a key that was
deleted later stays deleted, and a later event wins.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import TableChanged
from spark_sink.dead_letters import DEAD_ID
from spark_sink.keys import missing_key, quoted, same_key
from spark_sink.shape import REASON, good_rows, shape
from spark_sink.spans import Span
from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from spark_sink.spec import TableSpec
    from spark_sink.table_sink import TableSink

NAMED_MAX = 10
_BAD_ID = "_outbox_bad_id"


def keys_of(shaped: DataFrame, spec: TableSpec) -> DataFrame:
    """The keys that occur in rows, whether the rows are good or not."""
    named = [quoted(name) for name in spec.key]
    return shaped.where(f"NOT ({missing_key(spec.key)})").select(*named).distinct()


@contextmanager
def history_of_range(sink: TableSink, span: Span, bookmark: int) -> Iterator[DataFrame]:
    """The history of the keys that the events of a span touch; rows that are wrong become dead letters."""
    whole = Span(span.after, bookmark)
    events = sink.events(whole).persist()
    try:
        shaped = touched_by(shape(events, sink.spec, sink.schema), sink.spec, span.through)
        require_consistent(sink, shaped, whole)
        sink.judge(events, shaped, whole)
        yield sink.alive(good_rows(shaped), whole)
    finally:
        events.unpersist()


def touched_by(shaped: DataFrame, spec: TableSpec, through: int) -> DataFrame:
    """The rows of the keys that occur through an ID, and the rows through it that have no key."""
    of_span = shaped.where(F.col(EVENT_ID) <= through)
    return of_keys(shaped, keys_of(of_span, spec), spec).unionByName(of_span.where(missing_key(spec.key)))


def of_keys(shaped: DataFrame, keys: DataFrame, spec: TableSpec) -> DataFrame:
    return shaped.alias("r").join(keys.alias("k"), F.expr(same_key("r", "k", spec.key)), "left_semi")


def require_consistent(sink: TableSink, shaped: DataFrame, span: Span) -> None:
    """Refuse when the table shows events that its description would now send to the dead letters.

    What the key was before such an event is not in the table, and may be below the range.
    """
    bad = shaped.where(F.col(REASON).isNotNull()).select(F.col(EVENT_ID).alias(_BAD_ID), REASON)
    held = sink.dead_letters.held(span)
    if held is not None:
        bad = bad.join(held, F.col(_BAD_ID) == F.col(DEAD_ID), "left_anti")
    shown = sink.table.rows().where(F.col(EVENT_ID) > span.after).select(EVENT_ID)
    found = bad.join(shown, F.col(_BAD_ID) == F.col(EVENT_ID), "left_semi").limit(NAMED_MAX).collect()
    if found:
        ids = ", ".join(str(row[_BAD_ID]) for row in found)
        raise TableChanged(
            f"{sink.spec.table} shows event{'s' if len(found) > 1 else ''} {ids} which it would not take now: "
            f"{found[0][REASON]}. Its description has changed since, so make it anew: "
            f"`outbox replay --rebuild --table {sink.spec.table}`"
        )
