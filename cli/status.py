"""`outbox status`: where an outbox and its Delta tables stand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one
from cli.tables import open_spark, spark_flags, table_flags, table_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.status import Status
    from spark_sink.names import TableName
    from spark_sink.table_status import TableStatus

HEADER = ("Delta table", "mode", "bookmark", "behind", "rows", "files", "dead letters", "last commit")


@click.command(
    short_help="Show where an outbox stands.",
    epilog=flags.examples(
        "outbox status --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox status --stream file:///var/lib/outbox/shop --table /lake/orders --table /lake/customers",
        "outbox status --config outbox.toml --outbox billing_outbox --json | jq .rows_waiting",
    ),
)
@flags.database
@flags.stream
@table_flags
@flags.outbox
@spark_flags
@flags.config
@flags.as_json
def status(
    database: str | None,
    stream: str | None,
    tables: tuple[str, ...],
    outbox: str | None,
    master: str | None,
    conf: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> None:
    """Show how far the stream is behind, who leads, who holds it back, and where each table stands.

    Looks once, without disturbing a relay or a sink. Without --stream, what the relay last
    said of its stream is shown. Spark is started only for tables with a catalog's name. The
    exit code is 0 whatever it shows: `outbox check` and `outbox verify` are the ones to
    judge, with exit code 3.
    """
    from connector.status import status as look

    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    names = table_names(settings, tables)
    found = None
    if "database" in settings.given or not names:
        found = look(settings.database, settings.table, settings.stream_if_given)
    # What is wrong with the stream has been said, then.
    stream_url = None if found is not None and found.stream_tail is None else settings.stream_if_given
    standing = _look_at_tables(names, stream_url, master, conf)
    if as_json:
        of_outbox = printing.plain(found) if found else {"stream": settings.stream_if_given}
        printing.print_json({**of_outbox, "tables": standing})
        return
    if found is not None:
        printing.print_facts(_facts(found))
    if standing:
        printing.print_table(HEADER, [_row(table) for table in standing])
    problems = [(f"{table.table}: PROBLEM", problem) for table in standing for problem in table.problems]
    if problems:
        printing.print_facts(problems)


def _look_at_tables(
    names: list[TableName], stream_url: str | None, master: str | None, conf: tuple[str, ...]
) -> list[TableStatus]:
    if not names:
        return []
    from spark_sink.table_status import table_status
    from stream_store import open_stream

    def spark() -> Any:
        return open_spark(master, conf, "outbox status")

    with contextlib.ExitStack() as closing:
        stream = closing.enter_context(open_stream(stream_url)) if stream_url else None
        return [table_status(name, stream, spark) for name in names]


def _row(table: TableStatus) -> Sequence[str]:
    behind = printing.shown(table.behind)
    if table.behind and table.behind_seconds is not None:
        behind += f" IDs, {printing.duration(table.behind_seconds)}"
    files = printing.shown(table.files) + (f", {printing.size(table.size_bytes)}" if table.size_bytes else "")
    shown = (table.bookmark, behind, table.rows, files, table.dead_letters, table.last_commit_at)
    return (table.table, table.mode or "–", *(printing.shown(value) for value in shown))


def _facts(found: Status) -> list[tuple[str, Any]]:
    waiting = f"{found.rows_waiting:,}" + ("" if found.rows_waiting_is_exact else " or more")
    if found.oldest_waiting_seconds is not None:
        waiting += f", the oldest for {printing.duration(found.oldest_waiting_seconds)}"
    leader = "none" if found.leader is None else found.leader + ("" if found.leader_alive else " (its lease has ended)")
    facts: list[tuple[str, Any]] = [
        ("outbox", f"{found.outbox} in {found.database}"),
        ("source", found.source),
        ("outbox id", found.outbox_id),
        ("relay", leader),
        ("waiting rows", waiting),
        ("last ID drawn", found.last_id_drawn),
        ("relayed through", found.relayed_through),
        ("deleted through", found.deleted_through),
    ]
    if found.held_at is not None:
        facts += [(f"held at {found.held_at:,} by", blocker) for blocker in found.blockers]
    if found.stream is not None:
        facts.append(("stream", found.stream))
    if found.stream_tail is not None:
        facts += [
            ("stream tail", found.stream_tail),
            ("stream trimmed", f"through {found.stream_trimmed_through:,}" if found.stream_trimmed_through else "no"),
            (
                "stream size",
                f"{printing.size(found.stream_size_bytes or 0)} in {printing.counted(found.stream_segments or 0, 'segment')}",
            ),
        ]
    return facts + [("PROBLEM", problem) for problem in found.problems]
