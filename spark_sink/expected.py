"""What a stream makes of a table, and what the table has: both as rows of an event ID and a digest.

Only keys, times and digests go through Spark's shuffles, never the rows themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from spark_sink.digest import DIGEST, row_digest
from spark_sink.keys import quoted, same_key
from spark_sink.mode import DELETE, EVENT_TIME
from spark_sink.modes.scd2 import chain, last_before
from spark_sink.reading import as_dataframe
from spark_sink.shape import REASON, shape, table_columns
from spark_sink.spans import Span
from spark_sink.spec import CLOSED_BY, EVENT_ID, IS_CURRENT, OWN_COLUMNS, VALID_FROM, VALID_TO

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from spark_sink.spec import TableSpec

BAD, DEAD = "_outbox_bad", "_outbox_dead"
# An event takes part in the table when it is fit for it and no dead letter; one that is unfit
# and no dead letter is nowhere.
ALIVE = f"NOT {BAD} AND NOT {DEAD}"
UNSETTLED = f"{BAD} AND NOT {DEAD}"
_DEAD_ID, _LAST_ID, _ROWS = "_outbox_dead_id", "_outbox_last_id", "_outbox_rows"
_VALIDITY = (VALID_FROM, VALID_TO, IS_CURRENT, CLOSED_BY)


class Contents:
    """Both sides of one table: `events` and `expected` from the stream, `actual` from the table.

    `after` is the last ID that the stream no longer has; what the table has of such events is
    taken as given.
    """

    def __init__(
        self, spark: SparkSession, url: str, spec: TableSpec, schema: pa.Schema | None, rows: DataFrame, after: int
    ) -> None:
        self._spark = spark
        self._url = url
        self._spec = spec
        self._schema = schema
        self._rows = rows
        self._after = after
        self._key = [quoted(name) for name in spec.key] if spec.mode != "append" else []
        made = {column.name.lower(): column.name for column in table_columns(self._shaped(Span(0, 0), 1))}
        of_events = [column for column in rows.schema if column.name not in (spec.id_column, *OWN_COLUMNS)]
        self._compared = [column for column in of_events if column.name.lower() in made]
        # The stream says nothing about columns that somebody else has added.
        self.not_compared = [column.name for column in of_events if column.name.lower() not in made]
        have = {column.name.lower() for column in rows.schema}
        self.missing_columns = [name for lower, name in made.items() if lower not in have]

    def events(self, span: Span, pieces: int, dead: DataFrame | None) -> DataFrame:
        """The events that are for the table: ID, digest, whether unfit or a dead letter, key, time.

        `dead` has the `id` of each dead letter, once.
        """
        shaped = self._shaped(span, pieces)
        unfit = F.col(REASON).isNotNull() if REASON in shaped.columns else F.lit(False)
        columns = [F.col(self._spec.id_column).alias(EVENT_ID), self._digest(of_stream=True), unfit.alias(BAD)]
        if self._key:
            columns += [F.col(name) for name in (*self._key, DELETE, EVENT_TIME)]
        rows = shaped.select(*columns)
        if dead is None:
            return rows.withColumn(DEAD, F.lit(False))
        letters = dead.select(F.col("id").alias(_DEAD_ID))
        joined = rows.join(letters, F.col(EVENT_ID) == F.col(_DEAD_ID), "left")
        return joined.withColumn(DEAD, F.col(_DEAD_ID).isNotNull()).drop(_DEAD_ID)

    def expected(self, events: DataFrame) -> DataFrame:
        """(`_event_id`, digest) of the rows that the events make."""
        alive = events.where(ALIVE)
        if self._spec.mode == "append":
            return alive.select(EVENT_ID, DIGEST)
        if self._spec.mode == "upsert":
            # Each by itself: Spark aggregates plain numbers by hashing, and structs by sorting.
            latest = alive.groupBy(*self._key).agg(
                F.max(EVENT_ID).alias("_outbox_latest"),
                F.max_by(DIGEST, EVENT_ID).alias(DIGEST),
                F.max_by(DELETE, EVENT_ID).alias(DELETE),
            )
            return latest.where(~F.col(DELETE)).select(F.col("_outbox_latest").alias(EVENT_ID), DIGEST)
        versions = self._versions()
        # With nothing trimmed there is nothing before, and Spark's planner leaves the joins out.
        before = last_before(versions, self._spec.key, self._after) if self._after else versions.where(F.lit(False))
        desired, closed = chain(alive.drop(BAD, DEAD), before, self._spec.key)
        return _dated(desired.select(*versions.columns).unionByName(closed.select(*versions.columns)))

    def actual(self, events: DataFrame) -> DataFrame:
        """(`_event_id`, digest) of the table's rows about which the events say something."""
        versions = self._versions()
        if self._after:
            compared = versions.where(self._is_known())
            if self._key:
                # Of a key that has events, an older row is known, too: it was replaced, or closed.
                touched = events.where(ALIVE).select(*self._key).distinct()
                same = F.expr(same_key("v", "k", self._spec.key))
                older = versions.where(~self._is_known()).alias("v").join(touched.alias("k"), same, "left_semi")
                if self._spec.mode == "scd2":
                    older = older.where(F.col(CLOSED_BY).isNull() | (F.col(CLOSED_BY) > self._after))
                compared = compared.unionByName(older)
            versions = compared
        return _dated(versions) if self._spec.mode == "scd2" else versions.select(EVENT_ID, DIGEST)

    def doubled(self) -> DataFrame:
        """Of the rows that cannot be held against the stream, those that are there twice: (`id`, `kind`, `rows`)."""
        older = self._versions().where(~self._is_known())
        by = self._key if self._spec.mode == "upsert" else [EVENT_ID]
        found = older.groupBy(*by).agg(F.max(EVENT_ID).alias(_LAST_ID), (F.count("*") - 1).alias(_ROWS))
        return found.where(F.col(_ROWS) > 0).select(
            F.col(_LAST_ID).alias("id"), F.lit("duplicated").alias("kind"), F.col(_ROWS).alias("rows")
        )

    def _is_known(self) -> Column:
        return F.coalesce(F.col(EVENT_ID) > self._after, F.lit(True))

    def _shaped(self, span: Span, pieces: int) -> DataFrame:
        events = as_dataframe(
            self._spark,
            self._url,
            span,
            pieces,
            types=self._spec.types,
            schema=self._schema,
            redacted=self._spec.keeps_redacted,
        )
        return shape(events, self._spec, self._schema)

    def _versions(self) -> DataFrame:
        """The table's rows: IDs, digests, keys and, of scd2, intervals."""
        validity = _VALIDITY if self._spec.mode == "scd2" else ()
        return self._rows.select(
            F.col(quoted(self._spec.id_column)).alias(EVENT_ID), self._digest(), *self._key, *validity
        )

    def _digest(self, *, of_stream: bool = False) -> Column:
        """A row's digest: its event ID, and the columns that the stream makes, in the table's types and order."""
        columns: list[tuple[Column, DataType]] = [
            (F.col(quoted(self._spec.id_column)), self._rows.schema[self._spec.id_column].dataType)
        ]
        for each in self._compared:
            value = F.col(quoted(each.name))
            columns.append((value.cast(each.dataType) if of_stream else value, each.dataType))
        return row_digest(columns).alias(DIGEST)


def _dated(versions: DataFrame) -> DataFrame:
    """The digests of versions with their intervals in them."""
    fields = [(F.col(name), versions.schema[name].dataType) for name in (DIGEST, *_VALIDITY)]
    return versions.select(EVENT_ID, row_digest(fields).alias(DIGEST))
