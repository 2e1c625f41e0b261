"""Comparing two large sets of rows by a few numbers, without collecting any.

Each row has a digest of its ID and its content. Rows are counted and digests summed by ranges
of IDs, so the order of rows does not matter. Ranges whose numbers agree hold the same rows;
only the others are looked into, ID by ID. A changed row escapes with a chance of 1 in 2^64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import ArrayType, MapType, StructType

from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

DIGEST = "_outbox_digest"
NAMED_IDS_MAX = 100
RANGE_IDS = 100_000
# Sparse IDs must not make more ranges than a driver can hold.
RANGES_MAX = 10_000

LOST, DUPLICATED, CONFLICTING, EXTRA = "lost", "duplicated", "conflicting", "extra"


@dataclass(frozen=True, slots=True)
class Sum:
    """The rows of one range of IDs."""

    rows: int
    digest: int


@dataclass
class Found:
    """IDs of one kind: how many rows, and the first of the IDs by name."""

    count: int = 0
    ids: list[int] = field(default_factory=list)


def row_digest(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """A row's content in 64 bits.

    xxhash64 passes over NULLs, so that (NULL, 1) and (1, NULL) would be the same: each column
    is preceded by whether it is NULL. What is nested goes in as JSON for the same reason.
    """
    parts: list[Column] = []
    for column, kind in columns:
        nested = isinstance(kind, ArrayType | MapType | StructType)
        parts += [column.isNull(), F.to_json(column, {"ignoreNullFields": "false"}) if nested else column]
    return F.xxhash64(*parts)


def range_ids(ids: int) -> int:
    """How many IDs are compared by one number."""
    return max(RANGE_IDS, -(-ids // RANGES_MAX))


def range_of(size: int) -> Column:
    return F.expr(f"{EVENT_ID} DIV {size}")


def sums(rows: DataFrame, size: int) -> dict[int | None, Sum]:
    """The sums of (`_event_id`, digest) rows. A sum may wrap around: the session is not in ANSI mode."""
    found = rows.groupBy(range_of(size).alias("r")).agg(F.count("*").alias("n"), F.sum(DIGEST).alias("d")).collect()
    return {row["r"]: Sum(row["n"], row["d"]) for row in found}


def differing(expected: Mapping[int | None, Sum], actual: Mapping[int | None, Sum]) -> list[int | None]:
    """The ranges that have to be looked into."""
    none = Sum(0, 0)
    return [each for each in {**expected, **actual} if expected.get(each, none) != actual.get(each, none)]


def within(rows: DataFrame, ranges: Sequence[int | None], size: int) -> DataFrame:
    """The rows of some ranges; a row without an ID is of a range of its own."""
    numbers = [each for each in ranges if each is not None]
    if len(numbers) > RANGES_MAX // 10:
        return rows
    chosen = range_of(size).isin(numbers)
    return rows.where(chosen | F.col(EVENT_ID).isNull() if None in ranges else chosen)


def differences(expected: DataFrame, actual: DataFrame) -> dict[str, Found]:
    """What is wrong with `actual`, by ID: `lost`, `duplicated`, `conflicting`, `extra`."""
    found = _by_id(expected, "e").join(_by_id(actual, "a"), F.expr("e_id <=> a_id"), "full")
    want, have = F.coalesce("e_rows", F.lit(0)), F.coalesce("a_rows", F.lit(0))
    kind = (
        F.when(want == 0, EXTRA)
        .when(have < want, LOST)
        .when(have > want, DUPLICATED)
        .when(~F.col("e_digest").eqNullSafe(F.col("a_digest")), CONFLICTING)
    )
    rows = F.greatest(F.abs(have - want), F.lit(1))
    wrong = found.select(F.coalesce("e_id", "a_id").alias("id"), kind.alias("kind"), rows.alias("rows"))
    return named(wrong.where(F.col("kind").isNotNull()))


def named(wrong: DataFrame) -> dict[str, Found]:
    """The rows (`id`, `kind`, `rows`) by kind: counted, and the first by name."""
    wrong = wrong.persist()
    try:
        counts = wrong.groupBy("kind").agg(F.sum("rows").alias("n")).collect()
        return {row["kind"]: Found(int(row["n"]), _first_ids(wrong, row["kind"])) for row in counts}
    finally:
        wrong.unpersist()


def _first_ids(wrong: DataFrame, kind: Any) -> list[int]:
    chosen = wrong.where((F.col("kind") == kind) & F.col("id").isNotNull())
    return [row["id"] for row in chosen.select("id").orderBy("id").limit(NAMED_IDS_MAX).collect()]


def _by_id(rows: DataFrame, side: str) -> DataFrame:
    return rows.groupBy(F.col(EVENT_ID).alias(f"{side}_id")).agg(
        F.count("*").alias(f"{side}_rows"), F.sum(DIGEST).alias(f"{side}_digest")
    )
