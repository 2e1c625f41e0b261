"""The Delta tables that a command works on: from flags, from outbox.toml, or from the table itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.config import Given
from cli.flags import together
from outbox.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cli.settings import OutboxSettings
    from spark_sink.names import TableName
    from spark_sink.spec import TableSpec

Command = TypeVar("Command", bound=Callable[..., Any])

# Flags that describe a table, by the key that they have in outbox.toml.
LISTS = ("types", "key", "partition_by", "cluster_by")
DESCRIBING = ("mode", *LISTS, "schema", "select", "deletes", "dead_letters", "on_expect")

table_flags = together(
    click.option(
        "--table",
        "tables",
        metavar="TABLE",
        multiple=True,
        help="A Delta table: a path or a catalog name (main.sales.orders).",
    ),
)
description_flags = together(
    click.option("--mode", metavar="append|upsert|scd2", help="How events become rows; append by default."),
    click.option("--types", metavar="PATTERNS", help="Only events of these types, as in 'order.*,refund'."),
    click.option("--key", metavar="COLUMNS", help="The key of an upsert or scd2 table; subject by default."),
    click.option("--schema", metavar="DDL", help="Fields of data as typed columns, as in 'order string, total double'; or infer."),
    click.option("--select", metavar="SQL", multiple=True, help="A column of the table as Spark SQL; may be repeated."),
    click.option("--deletes", metavar="SQL", help="Which events delete their key; those without data by default."),
    click.option("--partition-by", metavar="COLUMNS", help="Partition a new table by these columns."),
    click.option("--cluster-by", metavar="COLUMNS", help="Cluster a new table by these columns."),
    click.option("--expect", metavar="NAME=SQL", multiple=True, help="An expectation of each row; may be repeated."),
    click.option("--on-expect", metavar="WHAT", help="A row that breaks one: warn, quarantine (the default) or stop."),
    click.option("--dead-letters", metavar="TABLE", help="Where bad events go; TABLE__dead_letters by default."),
)  # fmt: skip
spark_flags = together(
    click.option("--master", metavar="URL", help="Spark's master; local[*] by default."),
    click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated."),
)


def specs(settings: OutboxSettings, tables: tuple[str, ...], described: Mapping[str, Any]) -> list[TableSpec]:
    """The tables named by flags, or else all of the outbox in outbox.toml."""
    from spark_sink.names import TableName

    below = {str(TableName.parse(given["table"].value)): given for given in settings.tables}
    given_flags = {key: value for key, value in described.items() if value not in (None, (), {})}
    if not tables:
        if not below:
            raise UsageError("say which table: --table PATH, or [[outbox.table]] in outbox.toml")
        if given_flags:
            raise UsageError(f"--{next(iter(given_flags)).replace('_', '-')} describes one table: name it by --table")
        return [_spec(given) for given in below.values()]
    found = []
    for name in tables:
        given = dict(below.get(str(TableName.parse(name)), {"table": Given(name, "--table")}))
        given |= {key: Given(_value(key, value), f"--{key.replace('_', '-')}") for key, value in given_flags.items()}
        found.append(_spec(given))
    return found


def table_names(settings: OutboxSettings, tables: tuple[str, ...]) -> list[TableName]:
    """The tables named by flags, or else all of the outbox in outbox.toml, by name alone; there may be none."""
    if not tables and not settings.tables:
        return []
    from spark_sink.names import TableName

    names = tables or [given["table"].value for given in settings.tables]
    return list(dict.fromkeys(TableName.parse(name) for name in names))


def is_described(settings: OutboxSettings, table: str, described: Mapping[str, Any]) -> bool:
    """Whether anything but the table's name is known from the command line and the file."""
    from spark_sink.names import TableName

    name = str(TableName.parse(table))
    in_file = any(str(TableName.parse(given["table"].value)) == name for given in settings.tables)
    return in_file or any(value not in (None, (), {}) for value in described.values())


def open_spark(master: str | None, conf: tuple[str, ...], app: str) -> SparkSession:
    from spark_sink.session import open_session

    settings = {}
    for pair in conf:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--conf {pair!r}: write KEY=VALUE")
        settings[key.strip()] = value
    return open_session(master=master, conf=settings, app=app)


def _value(key: str, value: Any) -> Any:
    from spark_sink.spec import as_columns, as_types

    if key == "types":
        return list(as_types(value))
    if key in LISTS:
        return list(as_columns(value))
    if key == "expect":
        pairs = [text.partition("=") for text in value]
        if not all(name.strip() and equals for name, equals, _ in pairs):
            raise UsageError('--expect: write NAME=SQL, as in --expect "positive total=total > 0"')
        return {name.strip(): condition.strip() for name, _, condition in pairs}
    return list(value) if key == "select" else value


def _spec(given: Mapping[str, Given]) -> TableSpec:
    from spark_sink.names import TableName
    from spark_sink.spec import TableSpec

    values = {key: each.value for key, each in given.items()}
    values["table"] = TableName.parse(values["table"])
    if "dead_letters" in values:
        values["dead_letters"] = TableName.parse(values["dead_letters"])
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = tuple(value)
    try:
        return TableSpec(**values)
    except UsageError as error:
        raise UsageError(f"{given['table'].origin}: {error}") from error
