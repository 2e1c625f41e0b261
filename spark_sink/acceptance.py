"""What others did to a table: named, and accepted by a person who has looked at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.errors import SchemaError, TableChanged
from spark_sink.conflicts import retrying
from spark_sink.guard import operation_of
from spark_sink.note import Note
from spark_sink.table import PROPERTY, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_sink.delta import Commit
    from spark_sink.guard import Verdict
    from spark_sink.names import TableName


@dataclass(frozen=True, slots=True)
class Foreign:
    """A commit that is not ours."""

    version: int
    operation: str


@dataclass(frozen=True, slots=True)
class Accepted:
    table: str
    bookmark: int
    accepted: tuple[Foreign, ...]


def open_stored(spark: SparkSession, name: TableName) -> Table:
    """A table of ours by its name alone, as the outbox that it says it belongs to."""
    found = Table(spark, name, "", role="look")
    if not found.exists():
        raise SchemaError(f"there is no Delta table {name}: look at the name, or make it with `outbox sink`")
    outbox_id = found.peek().properties.get(PROPERTY + "outbox_id")
    if outbox_id is None:
        raise SchemaError(
            f"{name} is a Delta table that this product did not make, or that was replaced since. If it is to hold what "
            f"the stream says, `outbox replay --rebuild --table {name}` makes it anew"
        )
    return Table(spark, name, outbox_id)


def accept(table: Table) -> Accepted:
    """Go on from the table as it is: what others have written since our last commit stays as it is."""
    accepted: Accepted = retrying()(_accept, table)
    return accepted


def _accept(table: Table) -> Accepted:
    with table.locked():
        state = table.peek()
        verdict = table.verdict(state)
        _require_acceptable(table, verdict, state.bookmark)
        if not verdict.ok:
            note = Note(state.app_id, state.bookmark, state.bookmark, state.bookmark, role="accept", rows=0)
            table.make_durable(table.append(None, state, note))
    return Accepted(str(table.name), state.bookmark, tuple(foreign_of(commit) for commit in reversed(verdict.foreign)))


def _require_acceptable(table: Table, verdict: Verdict, bookmark: int) -> None:
    """A bookmark that says more than the rows hold is not a matter of opinion."""
    if verdict.rewound is not None:
        way = (
            f"`outbox sink --after-restore replay --table {table.name}` writes what is missing again"
            if verdict.rewound.operation == "RESTORE"
            else f"`outbox replay --rebuild --table {table.name}` makes the table anew from the stream"
        )
        raise TableChanged(
            f"{table.name}: version {verdict.rewound.version} is a {operation_of(verdict.rewound)}, so the bookmark {bookmark} says "
            f"more than the rows hold, and events would be missing for ever. {way}"
        )
    if verdict.note is not None and verdict.note.bookmark != bookmark:
        raise TableChanged(
            f"{table.name}: its bookmark is {bookmark}, our last commit says {verdict.note.bookmark}: "
            f"`outbox replay --rebuild --table {table.name}`"
        )


def foreign_of(commit: Commit) -> Foreign:
    return Foreign(commit.version, operation_of(commit))
