"""`outbox dlq`: the dead letters of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cli import flags, one_table, printing, tables
from cli.progress import bar
from cli.settings import load_one, program_setting
from outbox.errors import UsageError

if TYPE_CHECKING:
    from spark_sink.dead_letters import DeadLetters
    from spark_sink.spec import TableSpec

SHOWN_MAX = 100

_choice = flags.together(
    click.option(
        "--id", "ids", type=int, multiple=True, metavar="ID", help="The letter of this event; may be repeated."
    ),
    click.option("--reason", metavar="PATTERN", help="Letters whose reason has this in it; * stands for anything."),
)
_common = flags.together(
    tables.spark_flags,
    flags.outbox,
    click.option(
        "--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]"
    ),
    flags.config,
    flags.as_json,
)


@click.group(short_help="List, redrive or drop a table's dead letters.")
def dlq() -> None:
    """Dead letters: events that a table could not take, each with the reason, in a Delta table beside it."""


@dlq.command(
    "list",
    short_help="Show the dead letters of a table.",
    epilog=flags.examples(
        "outbox dlq list --table /lake/orders",
        "outbox dlq list --table /lake/orders --reason 'total*double' --json | jq .letters[].id",
    ),
)
@one_table.flag
@_choice
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN_MAX, show_default=True, help="The most to show.")
@click.option("--dead-letters", metavar="TABLE", help="Where they are; TABLE__dead_letters by default.")
@_common
def list_letters(
    table: str | None,
    ids: tuple[int, ...],
    reason: str | None,
    limit: int,
    dead_letters: str | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Show the events that a table could not take, and why."""
    letters, spec = _open(table, dead_letters, master, conf, outbox, log_format, config)
    count, found = 0, []
    if letters.exists():
        chosen = letters.waiting(ids, reason)
        count = chosen.count()
        found = [row.asDict() for row in chosen.drop("table", "dropped_at").orderBy("id").limit(limit).collect()]
    if as_json:
        shown = [{**row, "data_bytes": row["data_bytes"] and bytes(row["data_bytes"]).hex()} for row in found]
        printing.print_json(
            {"table": spec.table, "dead_letters": spec.dead_letter_table, "count": count, "letters": shown}
        )
        return
    if not found:
        printing.print_facts([("dead letters", f"none in {spec.dead_letter_table}")])
        return
    columns = ("id", "type", "subject", "recorded_at", "reason", "data")
    printing.print_table(columns, [[_cell(row[name]) for name in columns] for row in found])
    if count > len(found):
        printing.say(f"{count - len(found):,} more: --limit shows them")


@dlq.command(
    short_help="Take dead letters up again.",
    epilog=flags.examples(
        "outbox dlq redrive --stream file:///var/lib/outbox/shop --table /lake/orders --id 1042",
        "outbox dlq redrive --config outbox.toml --table /lake/orders      # after its schema was mended in the file",
    ),
)
@flags.stream
@one_table.flag
@_choice
@click.option("--force", is_flag=True, help="Also where the stream was trimmed past a letter (upsert).")
@tables.description_flags
@_common
def redrive(
    stream: str | None,
    table: str | None,
    ids: tuple[int, ...],
    reason: str | None,
    force: bool,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    config: str | None,
    as_json: bool,
    **described: Any,
) -> None:
    """Put the events that the table can take by now into it, exactly once; all of them by default.

    The table is as flags or outbox.toml describe it, or as it was made. In an upsert or scd2
    table a later event of the same key wins. Events that still fail stay, with the new reason.
    May be killed at any moment: run it again.
    """
    from cli.log import configure

    settings = load_one({"stream": stream, "name": outbox}, config)
    url = settings.stream
    name = one_table.name_of(settings, table)
    configure(program_setting("log_format", log_format, config, "human"))
    spark = tables.open_spark(master, conf, "outbox dlq")

    from spark_sink.redrive import Redrive
    from stream_store import open_stream

    spec = one_table.spec_as_described(spark, settings, name, described)
    with open_stream(url) as opened, bar(f"redriving into {name}", "letters") as tell:
        found = Redrive(spark, opened, spec, tell=tell).run(ids, reason, force=force)
    if as_json:
        printing.print_json(found)
        return
    printing.print_facts(
        [("table", found.table), ("taken", found.taken), ("still failing", found.failed)]
        + [(f"  {event_id}", why) for event_id, why in found.still_failing]
    )


@dlq.command(
    short_help="Decide that events will never be in a table.",
    epilog=flags.examples("outbox dlq drop --table /lake/orders --id 1042 --id 1043"),
)
@one_table.flag
@_choice
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the table.")
@click.option("--dead-letters", metavar="TABLE", help="Where they are; TABLE__dead_letters by default.")
@_common
def drop(
    table: str | None,
    ids: tuple[int, ...],
    reason: str | None,
    everything: bool,
    dead_letters: str | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Decide that these events will never be in the table, not even after a replay or a rebuild.

    What they hold is removed from the dead letters; that they were dropped, and when, is kept.
    The stream still has them.
    """
    if not (ids or reason or everything):
        raise UsageError("say which letters: --id ID, --reason PATTERN or --all")
    letters, spec = _open(table, dead_letters, master, conf, outbox, log_format, config)
    count = letters.drop(ids, reason) if letters.exists() else 0
    if as_json:
        printing.print_json({"table": spec.table, "dropped": count})
    else:
        printing.print_facts([("table", spec.table), ("dropped", count)])


def _open(
    table: str | None,
    dead_letters: str | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    config: str | None,
) -> tuple[DeadLetters, TableSpec]:
    """The dead letters by themselves: neither stream nor table need be there."""
    from cli.log import configure

    settings = load_one({"name": outbox}, config)
    name = one_table.name_of(settings, table)
    configure(program_setting("log_format", log_format, config, "human"))
    spark = tables.open_spark(master, conf, "outbox dlq")

    from spark_sink.dead_letters import open_letters
    from spark_sink.names import TableName

    spec = one_table.spec_as_made(spark, settings, name)
    if dead_letters is not None:
        spec = replace(spec, dead_letters=TableName.parse(dead_letters))
    return open_letters(spark, spec), spec


def _cell(value: Any) -> str:
    text = printing.shown(value) if not isinstance(value, int) else str(value)
    return text if len(text) <= 80 else text[:79] + "…"
