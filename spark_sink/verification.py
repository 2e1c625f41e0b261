"""Verification: proving that a Delta table is what the stream makes of it, through the table's bookmark.

Spark computes both sides and compares them by digests (`digest.py`); nothing is collected but
a number per range of IDs and, where they differ, the first IDs. The table is read at one
version, so a sink may go on meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from outbox.errors import OutboxError
from spark_sink import digest
from spark_sink.digest import NAMED_IDS_MAX, Found, Sum
from spark_sink.expected import ALIVE, DEAD, UNSETTLED, Contents
from spark_sink.guard import judge
from spark_sink.reading import count_local
from spark_sink.spans import Span
from spark_sink.spec import EVENT_ID, TableSpec
from spark_sink.stored import stored_spec
from spark_sink.table_sink import SinkOptions, TableSink
from spark_sink.tasks import told
from spark_sink.worker_errors import in_short
from stream_store import open_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.names import TableName
    from spark_sink.table import State, Table
    from spark_sink.tasks import Progress
    from stream_store import Stream

# A task reads about this many IDs: many enough to be worth it, few enough to see it move.
TASK_IDS = 250_000
LOOKS_MAX = 100
# Redrives come one batch after the other: each may be seen between its two commits.
PROOFS_MAX = 3


@dataclass
class TableVerification:
    """What `outbox verify` found about one Delta table; the fields are a contract of `--json`.

    Every event above `proven_after` through the bookmark is accounted for: when nothing is
    wrong, events = not_for_table + dead_letters + without_row + rows.
    """

    table: str
    ok: bool = False
    mode: str | None = None
    version: int | None = None
    # The last event that the table stands for, by its marker, and by the note in its history.
    bookmark: int | None = None
    bookmark_noted: int | None = None
    # IDs from the bookmark to the stream's tail.
    behind: int | None = None
    # The stream was trimmed through here: what the table has of earlier events cannot be proven.
    proven_after: int = 0
    rows_unproven: int = 0
    events: int = 0
    not_for_table: int = 0
    # Those among them that a person has dropped are dead letters, too: the decision stays.
    dead_letters: int = 0
    dead_letters_dropped: int = 0
    # Events that have no row of their own: a later one replaced them, or they delete.
    without_row: int = 0
    rows: int = 0
    # Events whose row is missing, and those that are neither in the table nor a dead letter.
    lost: int = 0
    lost_ids: list[int] = field(default_factory=list)
    # Rows or dead letters that are there more often than once.
    duplicated: int = 0
    duplicated_ids: list[int] = field(default_factory=list)
    # Rows that are not what their event makes of them.
    conflicting: int = 0
    conflicting_ids: list[int] = field(default_factory=list)
    # Rows that no event makes.
    extra: int = 0
    extra_ids: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # What is worth knowing and not wrong.
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, kind: str, found: Found) -> None:
        if found.count:
            setattr(self, kind, getattr(self, kind) + found.count)
            ids: list[int] = getattr(self, f"{kind}_ids")
            setattr(self, f"{kind}_ids", sorted({*ids, *found.ids})[:NAMED_IDS_MAX])


def verify_tables(
    spark: SparkSession,
    stream_url: str,
    tables: Sequence[TableName | TableSpec],
    progress: Progress | None = None,
) -> list[TableVerification]:
    """Prove each table. A name is enough: what it is made of is kept in it, unless that is a transform in Python."""
    with open_stream(stream_url) as stream:
        return [_verify(spark, stream, table, progress) for table in tables]


def _verify(
    spark: SparkSession, stream: Stream, table: TableName | TableSpec, progress: Progress | None
) -> TableVerification:
    name = table.table if isinstance(table, TableSpec) else table
    started = time.monotonic()
    with told(spark, f"proving {name}", progress):
        for _ in range(PROOFS_MAX):
            result = TableVerification(str(name))
            try:
                outdated = _prove(result, spark, stream, table)
            except OutboxError as error:
                outdated = False
                _complain(result, str(error))
            except (PySparkException, Py4JError) as error:
                outdated = False
                _complain(result, f"{name} cannot be read: {in_short(error)}")
            if not outdated:
                break
    result.ok = not _is_wrong(result)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _prove(result: TableVerification, spark: SparkSession, stream: Stream, table: TableName | TableSpec) -> bool:
    """Prove a table; whether what was found is wrong is a matter of a redrive that has ended meanwhile."""
    name = table.table if isinstance(table, TableSpec) else table
    spec = table if isinstance(table, TableSpec) else stored_spec(spark, name)
    sink = None if spec is None else TableSink(spark, stream, spec, SinkOptions(lock=False))
    if sink is None or not sink.table.exists():
        result.problems.append(f"there is no table {name}: `outbox sink --table {name}` makes it from the stream")
        return False
    doubt = _look(result, sink, stream)
    proof = _Proof(result, sink, stream)
    proof.run()
    _settle(result, doubt)
    return proof.is_outdated()


def _look(result: TableVerification, sink: TableSink, stream: Stream) -> str | None:
    """What the table says of itself, and whether that can be believed: the sink's guards, as findings.

    Returns what others have done to it: whether that is wrong, the rows will say.
    """
    result.mode = sink.spec.mode
    complaint = None
    try:
        sink.table.look()
    except OutboxError as error:
        complaint = str(error)
    state = sink.table.peek()
    result.version, result.bookmark = state.version, state.bookmark
    verdict = judge(sink.table.commits(state), state.app_id)
    if complaint is not None and verdict.ok:
        result.problems.append(complaint)
    result.bookmark_noted = verdict.note.bookmark if verdict.note else None
    if result.bookmark_noted not in (None, state.bookmark):
        _complain(result, f"the marker says {state.bookmark}, the last note in the history {result.bookmark_noted}")
    facts = stream.info()
    result.behind = facts.tail - state.bookmark
    if result.behind < 0:
        result.problems.append(
            f"the table holds events through {state.bookmark}, the stream ends at {facts.tail}: it went back in time"
        )
    result.proven_after = facts.trimmed_through
    if facts.trimmed_through > state.bookmark:
        result.problems.append(
            f"the stream was trimmed through {facts.trimmed_through}, the table holds events through {state.bookmark} "
            f"only: those between are lost to it. Put them back from a copy of the stream, or make the table anew "
            f"without them: `outbox replay --rebuild --table {sink.spec.table}`"
        )
    return None if verdict.ok else complaint


def _settle(result: TableVerification, doubt: str | None) -> None:
    """Commits of others are a problem where anything is wrong, or cannot be proven."""
    if doubt is not None and (_is_wrong(result) or result.rows_unproven):
        result.problems.insert(0, doubt)
    elif doubt is not None:
        result.notes.append(f"every row is right, and yet the sink stops here: {doubt}")


def _is_wrong(result: TableVerification) -> bool:
    return bool(result.lost or result.duplicated or result.conflicting or result.extra or result.problems)


class _Proof:
    """One table at one version against one span of the stream."""

    def __init__(self, result: TableVerification, sink: TableSink, stream: Stream) -> None:
        self._result = result
        self._sink = sink
        self._stream = stream
        self._state, self._letters_state = self._settled()
        tail = stream.tail()
        result.version, result.bookmark = self._state.version, self._state.bookmark
        result.behind = tail - result.bookmark
        self._span = Span(result.proven_after, max(result.proven_after, min(result.bookmark, tail)))
        ids = self._span.through - self._span.after
        self._range_ids = digest.range_ids(ids)
        self._pieces = max(sink.pieces, -(-ids // TASK_IDS))
        self._rows = _rows_at(sink.table, self._state.version)
        self._dead: DataFrame | None = None
        self._contents = Contents(
            sink.spark, stream.url, sink.spec, sink.kept_schema(self._state), self._rows, result.proven_after
        )

    def run(self) -> None:
        self._require_columns()
        self._dead = self._dead_letters()
        events = self._contents.events(self._span, self._pieces, self._dead)
        keyed = self._sink.spec.mode != "append"
        if keyed:
            # Read once: they are counted, then made into rows.
            events = events.persist()
        try:
            expected = self._account(events)
            if keyed:
                rows = self._contents.expected(events)
                expected = digest.sums(rows, self._range_ids)
                # Of scd2 also versions of earlier events, which these have closed.
                made = (
                    rows.where(F.col(EVENT_ID) > self._span.after).count() if self._span.after else _rows_of(expected)
                )
                self._result.without_row -= made
            else:
                self._result.without_row = 0
            self._compare(events, expected)
        finally:
            if keyed:
                events.unpersist()
        self._compare_unproven()

    def _settled(self) -> tuple[State, State | None]:
        """The table and its dead letters as they were at one moment.

        A dead letter comes before the table's commit, and a redrive takes it away after one. So
        letters that were looked at between two looks at the same version of the table fit it.
        """
        sink = self._sink
        state = sink.table.peek()
        for _ in range(LOOKS_MAX):
            letters = None
            if sink.dead_letters.exists():
                letters = sink.dead_letters.table.peek()
            again = sink.table.peek()
            if again.version == state.version:
                break
            state = again
        return state, letters

    def is_outdated(self) -> bool:
        """Whether rows that are too many may have been dead letters of a redrive between its two commits."""
        if not self._result.extra or self._letters_state is None:
            return False
        return self._sink.dead_letters.table.peek().version != self._letters_state.version

    def _require_columns(self) -> None:
        if self._contents.missing_columns:
            self._result.problems.append(f"the table lacks the columns {', '.join(self._contents.missing_columns)}")
        if self._contents.not_compared:
            self._result.notes.append(
                f"not compared, because the stream does not make them: {', '.join(self._contents.not_compared)}"
            )

    def _dead_letters(self) -> DataFrame | None:
        """The dead letters of the span, each ID once; those that are there more often are found."""
        if self._letters_state is None:
            return None
        letters = _rows_at(self._sink.dead_letters.table, self._letters_state.version)
        of_span = F.col("id").between(self._span.after + 1, self._span.through)
        letters = letters.where((F.col("table") == self._sink.dead_letters.name) & of_span)
        counted = letters.groupBy("id").agg((F.count("*") - 1).alias("rows"), F.lit("twice").alias("kind"))
        twice = digest.named(counted.where("rows > 0")).get("twice")
        if twice is not None:
            self._result.add("duplicated", twice)
            self._result.problems.append(f"{_some('event', twice)} among the dead letters more than once")
        if "dropped_at" in letters.columns:
            self._result.dead_letters_dropped = letters.where("dropped_at IS NOT NULL").count()
        return None if letters.isEmpty() else counted.select("id")

    def _account(self, events: DataFrame) -> dict[int | None, Sum]:
        """What became of each event, and the sums of those that an append table has rows of."""
        counts = (
            events.groupBy(digest.range_of(self._range_ids).alias("r"))
            .agg(
                F.count("*").alias("events"),
                F.count_if(F.col(DEAD)).alias("dead"),
                F.count_if(F.expr(UNSETTLED)).alias("unsettled"),
                F.count_if(F.expr(ALIVE)).alias("n"),
                F.sum(F.when(F.expr(ALIVE), F.col(digest.DIGEST))).alias("d"),
            )
            .collect()
        )
        result = self._result
        matching = sum(row["events"] for row in counts)
        result.dead_letters = sum(row["dead"] for row in counts)
        result.without_row = sum(row["n"] for row in counts)
        result.events = matching
        if self._sink.spec.types:
            result.events = count_local(self._stream.url, self._span)
            result.not_for_table = result.events - matching
        if any(row["unsettled"] for row in counts):
            self._name_unsettled(events)
        if self._dead is not None and self._dead.count() > result.dead_letters:
            self._name_foreign(events, self._dead)
        return {row["r"]: Sum(row["n"], row["d"]) for row in counts if row["n"]}

    def _name_unsettled(self, events: DataFrame) -> None:
        rows = events.where(UNSETTLED).select(F.col(EVENT_ID).alias("id"), F.lit("lost").alias("kind"))
        found = digest.named(rows.withColumn("rows", F.lit(1)))["lost"]
        self._result.add("lost", found)
        self._result.problems.append(
            f"{_some('event', found)} unfit for the table and not among its dead letters: somebody has removed them there, or "
            "the table's description has changed since"
        )

    def _name_foreign(self, events: DataFrame, dead: DataFrame) -> None:
        alone = dead.join(events, F.col("id") == F.col(EVENT_ID), "left_anti")
        rows = alone.select("id", F.lit("foreign").alias("kind"), F.lit(1).alias("rows"))
        found = digest.named(rows).get("foreign")
        if found is not None:
            self._result.problems.append(f"{_some('dead letter', found)} of no event that is for this table")

    def _compare(self, events: DataFrame, expected: dict[int | None, Sum]) -> None:
        result = self._result
        actual = self._contents.actual(events)
        sums = digest.sums(actual, self._range_ids)
        result.rows = _rows_of(sums)
        ranges = digest.differing(expected, sums)
        if not ranges:
            return
        if self._sink.spec.mode == "append":
            # Events are rows here: only what differs is read again.
            events = self._contents.events(self._around(ranges), self._pieces, self._dead)
        rows = self._contents.expected(events)
        size = self._range_ids
        found = digest.differences(digest.within(rows, ranges, size), digest.within(actual, ranges, size))
        for kind, each in found.items():
            result.add(kind, each)
        if not found:
            result.problems.append(
                "the digests differ and no row does: the table or the stream changed while it was read"
            )
        if digest.EXTRA in found:
            self._name_in_both(actual)

    def _around(self, ranges: Sequence[int | None]) -> Span:
        numbers = [each for each in ranges if each is not None]
        if not numbers:
            return Span(self._span.after, self._span.after)
        after = max(self._span.after, min(numbers) * self._range_ids - 1)
        through = min(self._span.through, (max(numbers) + 1) * self._range_ids)
        return Span(min(after, through), through)

    def _name_in_both(self, actual: DataFrame) -> None:
        if self._dead is not None:
            both = actual.join(self._dead, F.col(EVENT_ID) == F.col("id"), "left_semi")
            rows = both.select(F.col(EVENT_ID).alias("id"), F.lit("both").alias("kind"), F.lit(1).alias("rows"))
            found = digest.named(rows).get("both")
            if found is not None:
                self._result.problems.append(
                    f"{_some('event', found)} in the table and among its dead letters: a redrive that was interrupted, or is "
                    "under way"
                )

    def _compare_unproven(self) -> None:
        """What can be said of rows whose events were trimmed: that none is there twice."""
        result = self._result
        if not result.proven_after:
            return
        result.rows_unproven = self._rows.count() - result.rows
        found = digest.named(self._contents.doubled()).get("duplicated")
        if found is not None:
            result.add("duplicated", found)
        result.notes.append(
            f"the stream was trimmed through {result.proven_after}: the table's {result.rows_unproven:,} rows of earlier "
            "events cannot be held against it"
        )


def _rows_at(table: Table, version: int) -> DataFrame:
    """The table at one version, whatever is committed meanwhile."""
    reader = table.spark.read.option("versionAsOf", version)
    return reader.format("delta").load(table.name.text) if table.name.is_path else reader.table(table.name.sql)


def _some(noun: str, found: Found) -> str:
    """`event 4 is`, `events 4, 7, … are`: the beginning of a sentence."""
    shown = ", ".join(str(number) for number in found.ids[:10]) + (", …" if found.count > 10 else "")
    return f"{noun} {shown} is" if found.count == 1 else f"{found.count:,} {noun}s ({shown}) are"


def _complain(result: TableVerification, problem: str) -> None:
    if problem not in result.problems:
        result.problems.append(problem)


def _rows_of(sums: dict[int | None, Sum]) -> int:
    return sum(each.rows for each in sums.values())
