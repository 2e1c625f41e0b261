"""What one Delta table is to hold: which events, in which mode, with which columns."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from outbox.errors import UsageError
from spark_sink.names import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

Mode = Literal["append", "upsert", "scd2"]
OnExpect = Literal["warn", "quarantine", "stop"]

MODES: tuple[Mode, ...] = ("append", "upsert", "scd2")
ON_EXPECT: tuple[OnExpect, ...] = ("warn", "quarantine", "stop")
INFER = "infer"
# The columns that the product adds, whatever the projection.
EVENT_ID = "_event_id"
VALID_FROM, VALID_TO, IS_CURRENT, CLOSED_BY = "_valid_from", "_valid_to", "_is_current", "_closed_by"
OWN_COLUMNS = (EVENT_ID, VALID_FROM, VALID_TO, IS_CURRENT, CLOSED_BY)


@dataclass(frozen=True)
class TableSpec:
    """One table of one stream. Equal specs make equal tables, however the stream is cut into batches."""

    table: TableName
    mode: Mode = "append"
    # Patterns such as `order.*`; none means every type.
    types: tuple[str, ...] = ()
    # Columns of the finished table; `subject` unless said otherwise.
    key: tuple[str, ...] = ("subject",)
    # Spark DDL of the fields of `data`, `infer`, or None to keep `data` as text.
    schema: str | None = None
    # Whether a field that the schema lacks becomes a column; None: when the schema is inferred.
    evolve: bool | None = None
    # Spark SQL over the event's columns and the typed fields.
    select: tuple[str, ...] = ()
    # A Spark SQL condition; None: an event without data deletes its key.
    deletes: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    expect: Mapping[str, str] = field(default_factory=dict)
    on_expect: OnExpect = "quarantine"
    dead_letters: TableName | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    # For users' own jobs: from the batch's events to the rows of the table, instead of `select`.
    transform: Callable[[DataFrame], DataFrame] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"{self.mode!r} is no mode of a table: {', '.join(MODES)}")
        if self.on_expect not in ON_EXPECT:
            raise UsageError(f"{self.on_expect!r}: a failed expectation can {', '.join(ON_EXPECT)}")
        if self.mode != "append" and not self.key:
            raise UsageError(f"{self.table}: {self.mode} needs a key, one or several columns of the table")
        if self.partition_by and self.cluster_by:
            raise UsageError(f"{self.table}: a table is partitioned or clustered, not both")
        if self.select and self.transform:
            raise UsageError(f"{self.table}: give a projection (select) or a transform, not both")
        if self.properties.keys() & {"delta.setTransactionRetentionDuration"}:
            raise UsageError(
                f"{self.table}: delta.setTransactionRetentionDuration would let Delta forget the table's bookmark"
            )

    def encode(self) -> str:
        """The spec as it is kept in the table, so that a repair or a proof needs no more than the table's name."""
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_KEPT}
        kept = {name: value for name, value in kept.items() if value not in (None, (), {})}
        if self.dead_letters is not None:
            kept["dead_letters"] = str(self.dead_letters)
        if self.transform is not None:
            kept[_TRANSFORMED] = True
        return json.dumps(kept, sort_keys=True)

    @classmethod
    def decode(cls, table: TableName, text: str) -> TableSpec:
        found: dict[str, Any] = json.loads(text)
        if found.get(_TRANSFORMED):
            raise UsageError(
                f"{table} is made by a transform, which is code of a job of yours: do this from that job, with the same "
                "TableSpec, or describe the table anew"
            )
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        if "dead_letters" in values:
            values["dead_letters"] = TableName.parse(values["dead_letters"])
        known = {each.name for each in fields(cls)}
        return cls(table, **{name: value for name, value in values.items() if name in known})

    @property
    def id_column(self) -> str:
        """`id` in an append table that keeps events as they are, `_event_id` in every other."""
        return "id" if self.keeps_events else EVENT_ID

    @property
    def keeps_events(self) -> bool:
        return self.mode == "append" and not (self.schema or self.select or self.transform)

    @property
    def keeps_redacted(self) -> bool:
        """An append table has a row of every event, without data of one that was redacted.

        Of a key nothing is left to know then: neither a state nor, as of a tombstone, its end.
        """
        return self.mode == "append"

    @property
    def evolves(self) -> bool:
        inferred = self.schema == INFER
        return not self.select and not self.transform and (inferred if self.evolve is None else self.evolve)

    @property
    def can_fail(self) -> bool:
        """Whether a row may have to go to the dead letters."""
        return bool(self.schema or self.mode != "append" or (self.expect and self.on_expect != "warn"))

    @property
    def dead_letter_table(self) -> TableName:
        return self.dead_letters or self.table.beside("dead_letters")


_TRANSFORMED = "transformed"
_NOT_KEPT = frozenset({"table", "dead_letters", "transform", "properties"})


def as_columns(text: str) -> tuple[str, ...]:
    """`a, b` as it is written in a flag."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def as_types(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", text) if part)
