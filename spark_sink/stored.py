"""What a table says of itself: enough to repair, prove or go on with it by its name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.errors import SchemaError
from spark_sink.spec import TableSpec
from spark_sink.table import PROPERTY, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_sink.names import TableName


def stored_spec(spark: SparkSession, name: TableName) -> TableSpec | None:
    """The spec that is kept in a table; None when there is no table."""
    table = Table(spark, name, "", role="look")
    if not table.exists():
        return None
    text = table.peek().properties.get(PROPERTY + "spec")
    if text is None:
        raise SchemaError(
            f"{name} is a Delta table that this product did not make: name another, or a path that is empty"
        )
    return TableSpec.decode(name, text)
