"""`outbox replay`: a range of a table put right, or a table made anew, from the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli import flags, one_table, printing, tables
from cli.progress import bar
from cli.settings import load_one, program_setting
from outbox.errors import UsageError

if TYPE_CHECKING:
    from spark_sink.difference import Difference
    from spark_sink.rebuild import Rebuilt
    from spark_sink.replay import Replayed
    from stream_store import Stream


@click.command(
    short_help="Repair or rebuild a Delta table from the stream.",
    epilog=flags.examples(
        "outbox replay --stream file:///var/lib/outbox/shop --table /lake/orders --from 1000 --to 2000 --dry-run",
        "outbox replay --stream file:///var/lib/outbox/shop --table /lake/orders --from 2026-03-01T12:00:00Z",
        "outbox replay --stream file:///var/lib/outbox/shop --table /lake/orders --rebuild",
        "outbox replay --config outbox.toml --table /lake/orders --rebuild      # as the file describes it now",
    ),
)
@flags.stream
@one_table.flag
@click.option("--from", "start", metavar="ID|TIME", help="The first event; the oldest of the stream by default.")
@click.option("--to", "end", metavar="ID|TIME", help="The last event, inclusive; the table's last by default.")
@click.option("--rebuild", is_flag=True, help="Make the whole table anew, whatever has happened to it.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--force", is_flag=True, help="Rebuild also without events that the stream no longer holds.")
@click.option(
    "--batch-rows", metavar="N", type=click.IntRange(min=1), help="The most events of one commit; 1000000 by default."
)
@tables.description_flags
@tables.spark_flags
@flags.outbox
@click.option("--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]")
@click.option("--public-api", is_flag=True, help="Commit through Delta's public interface alone (slower).")
@flags.config
@flags.as_json
def replay(
    stream: str | None,
    table: str | None,
    start: str | None,
    end: str | None,
    rebuild: bool,
    dry_run: bool,
    force: bool,
    batch_rows: int | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    public_api: bool,
    config: str | None,
    as_json: bool,
    **described: Any,
) -> None:
    """Put a range of a table right, or make the table anew, from the stream, while the sink runs.

    A range is written again as the table was made: in an append table it replaces what is
    there, in an upsert or scd2 table the keys that it touches are recomputed through the
    table's bookmark, so a key that was deleted later stays deleted. The bookmark stays.

    --rebuild builds a new table beside the old one, and replaces it in one commit when it
    has caught up: after a RESTORE or a REPLACE, for a table that was dropped, or to take
    another description (flags, or outbox.toml). A table of outbox.toml is rebuilt as the
    file describes it, any other as it was made.

    Either may be killed at any moment: run it again, and it goes on. What the table cannot
    take goes to the dead letters. --from and --to are inclusive.
    """
    from cli.log import configure

    settings = load_one({"stream": stream, "name": outbox}, config)
    url = settings.stream
    name = one_table.name_of(settings, table)
    if rebuild and (start or end):
        raise UsageError("--rebuild makes the whole table: it does not go with --from and --to")
    given = {key: value for key, value in described.items() if value not in (None, (), {})}
    if given and not rebuild:
        raise UsageError(
            f"--{next(iter(given)).replace('_', '-')}: a range is written as the table was made; another description needs "
            "--rebuild"
        )
    if force and not rebuild:
        raise UsageError("--force goes with --rebuild")
    configure(program_setting("log_format", log_format, config, "human"))
    spark = tables.open_spark(master, conf, "outbox replay")

    from spark_sink.rebuild import Rebuild
    from spark_sink.replay import Replay
    from spark_sink.table_sink import ROWS_MAX, SinkOptions
    from stream_store import open_stream

    options = SinkOptions(rows_max=batch_rows or ROWS_MAX, internals=False if public_api else None)
    found: Rebuilt | Replayed
    with open_stream(url) as opened, bar(f"replaying into {name}") as tell:
        if rebuild:
            spec = one_table.spec_as_described(spark, settings, name, described)
            found = Rebuild(spark, opened, spec, options, tell).run(dry=dry_run, force=force)
        else:
            after, through = _range(opened, start, end)
            spec = one_table.spec_as_made(spark, settings, name)
            found = Replay(spark, opened, spec, options, tell).run(after, through, dry=dry_run)
    if as_json:
        printing.print_json(found)
    else:
        printing.print_facts(_facts(found))


def _range(stream: Stream, start: str | None, end: str | None) -> tuple[int | None, int | None]:
    from stream_store.place import end_through, require_order, start_after

    if start is not None and end is not None:
        require_order(start, end, ("--from", "--to"))
    after = None if start is None else start_after(stream, start, "--from")
    return after, None if end is None else end_through(stream, end, "--to")


def _facts(found: Rebuilt | Replayed) -> list[tuple[str, Any]]:
    from spark_sink.replay import Replayed

    facts: list[tuple[str, Any]] = [("table", f"{found.table} ({found.mode})")]
    if isinstance(found, Replayed):
        nothing = found.first_id > found.last_id
        facts.append(
            ("range", "nothing that the table has had" if nothing else f"{found.first_id:,} to {found.last_id:,}")
        )
    facts.append(("bookmark", found.bookmark))
    if found.resumed_at is not None:
        facts.append(("resumed behind", found.resumed_at))
    if found.difference is not None:
        return facts + _changes(found.difference)
    if isinstance(found, Replayed):
        facts.append(("commits", found.commits))
        if found.foreign_versions:
            facts.append(
                (
                    "written by others",
                    f"version{'s' if len(found.foreign_versions) > 1 else ''} "
                    f"{', '.join(map(str, found.foreign_versions[:10]))}: the sink stops there until you `outbox verify` and "
                    f"`outbox table accept --table {found.table}`",
                )
            )
    elif found.trimmed_through:
        facts.append(("without", f"the events through {found.trimmed_through:,}, which the stream no longer holds"))
    return [*facts, ("took", printing.duration(found.seconds))]


def _changes(difference: Difference) -> list[tuple[str, Any]]:
    def named(count: int, ids: tuple[int, ...]) -> str:
        shown = ", ".join(str(number) for number in ids)
        return f"{count:,}" + (f" (events {shown}{', …' if count > len(ids) else ''})" if ids else "")

    if difference.is_none:
        return [("would change", "nothing: the table is what the stream says")]
    facts: list[tuple[str, Any]] = [
        ("would insert", named(difference.insert, difference.insert_ids)),
        ("would update", named(difference.update, difference.update_ids)),
        ("would delete", named(difference.delete, difference.delete_ids)),
    ]
    if difference.columns_added:
        facts.append(("would add columns", difference.columns_added))
    if difference.columns_removed:
        facts.append(("would remove columns", difference.columns_removed))
    return facts
