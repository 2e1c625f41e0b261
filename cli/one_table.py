"""The one Delta table that a command works on, and how it is described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.tables import is_described, specs
from outbox.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cli.settings import OutboxSettings
    from spark_sink.names import TableName
    from spark_sink.spec import TableSpec

flag = click.option(
    "--table",
    metavar="TABLE",
    help="The Delta table: a path or a catalog name (main.sales.orders). The one of outbox.toml by default.",
)


def name_of(settings: OutboxSettings, table: str | None) -> TableName:
    """The table that is named, or the only one of the outbox in outbox.toml."""
    from spark_sink.names import TableName

    if table is not None:
        return TableName.parse(table)
    names = [given["table"].value for given in settings.tables]
    if len(names) != 1:
        raise UsageError(
            "say which table: --table PATH"
            + (f"; outbox.toml has {', '.join(names)}" if names else ", or [[outbox.table]] in outbox.toml")
        )
    return TableName.parse(names[0])


def spec_as_made(spark: SparkSession, settings: OutboxSettings, name: TableName) -> TableSpec:
    """The table as it says itself that it was made; as outbox.toml has it where it is gone."""
    from spark_sink.stored import stored_spec

    return stored_spec(spark, name) or specs(settings, (name.text,), {})[0]


def spec_as_described(
    spark: SparkSession, settings: OutboxSettings, name: TableName, described: Mapping[str, Any]
) -> TableSpec:
    """The table as flags and outbox.toml describe it; as it was made when they only name it."""
    from spark_sink.stored import stored_spec

    if is_described(settings, name.text, described):
        return specs(settings, (name.text,), described)[0]
    way = "describe it, by flags (--mode append for one that keeps events as they are) or in outbox.toml"
    try:
        found = stored_spec(spark, name)
    except SchemaError as error:
        raise UsageError(f"{error}; or {way}") from error
    if found is None:
        raise UsageError(f"there is no table {name} to say how it was made: {way}")
    return found
