"""`outbox table`: upkeep of one Delta table by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli import flags, one_table, printing, tables
from cli.settings import load_one, program_setting

if TYPE_CHECKING:
    from spark_sink.table import Table
    from spark_sink.table_report import TableReport

UNUSED_FOR = "7d"

_common = flags.together(
    one_table.flag,
    tables.spark_flags,
    flags.outbox,
    click.option(
        "--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]"
    ),
    flags.config,
    flags.as_json,
)


@click.group(short_help="Look at a Delta table, and keep it in shape.")
def table() -> None:
    """Look at a Delta table that a sink has made, and keep it in shape."""


@table.command(short_help="Show a table's bookmark, files and history.")
@_common
def show(as_json: bool, **where: Any) -> None:
    """Show how far a table has come, how it is described, and what happened to it since."""
    from spark_sink.table_report import report

    found = report(_open(**where))
    if as_json:
        printing.print_json(found)
    else:
        printing.print_facts(_facts(found))


@table.command(short_help="Join a table's small files.")
@_common
def optimize(as_json: bool, **where: Any) -> None:
    """Join small files into large ones (OPTIMIZE), under the table's lock: the sink waits meanwhile."""
    from spark_sink.maintenance import optimize as join_files

    opened = _open(**where)
    before, after = join_files(opened)
    if as_json:
        printing.print_json({"table": opened.name, "before": before, "after": after})
        return
    printing.print_facts(
        [
            ("table", opened.name),
            ("before", f"{printing.counted(before.files, 'file')}, {printing.size(before.size_bytes)}"),
            ("after", f"{printing.counted(after.files, 'file')}, {printing.size(after.size_bytes)}"),
        ]
    )


@table.command(
    short_help="Remove files that a table no longer needs.",
    epilog=flags.examples("outbox table vacuum --table /lake/orders --unused-for 14d"),
)
@click.option(
    "--unused-for",
    metavar="DURATION",
    default=UNUSED_FOR,
    show_default=True,
    help="Keep files of versions this recent.",
)
@_common
def vacuum(unused_for: str, as_json: bool, **where: Any) -> None:
    """Remove files that no version within this time needs (VACUUM): no going back to older ones."""
    from connector.options import parse_duration_seconds
    from spark_sink.maintenance import vacuum as remove_files

    unused_seconds = parse_duration_seconds(unused_for)
    opened = _open(**where)
    remove_files(opened, unused_seconds)
    if as_json:
        printing.print_json({"table": opened.name, "unused_seconds": unused_seconds})
    else:
        printing.print_facts([("table", opened.name), ("removed", f"files that were unused for {unused_for}")])


@table.command(short_help="Accept what others have written to a table.")
@_common
def accept(as_json: bool, **where: Any) -> None:
    """Accept what others have written to a table since the sink's last commit, and go on from there.

    The sink stops at commits that are not its own, because rows may be doubled or missing.
    Look first: `outbox verify --table TABLE` names the rows. What is accepted stays as it is.
    A RESTORE or a REPLACE cannot be accepted: the bookmark would say more than the rows hold.
    """
    from spark_sink.acceptance import accept as accept_others

    found = accept_others(_open(**where))
    if as_json:
        printing.print_json(found)
        return
    named = [f"version {each.version}: {each.operation}" for each in found.accepted]
    printing.print_facts(
        [
            ("table", found.table),
            ("accepted", named or "nothing: nobody else has written to it"),
            ("bookmark", found.bookmark),
        ]
    )


def _open(
    table: str | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    config: str | None,
) -> Table:
    from cli.log import configure

    settings = load_one({"name": outbox}, config)
    name = one_table.name_of(settings, table)
    configure(program_setting("log_format", log_format, config, "human"))
    spark = tables.open_spark(master, conf, "outbox table")

    from spark_sink.acceptance import open_stored

    return open_stored(spark, name)


def _facts(found: TableReport) -> list[tuple[str, Any]]:
    if found.rewound is not None:
        verdict = (
            f"version {found.rewound.version} is a {found.rewound.operation}: the bookmark says more than the rows hold"
        )
    elif found.foreign:
        named = ", ".join(f"{each.version} ({each.operation})" for each in found.foreign[:10])
        verdict = f"written by others: version {named}"
    else:
        verdict = "ok: as the sink left it"
    return [
        ("table", found.table),
        ("verdict", verdict),
        ("outbox id", found.outbox_id),
        ("bookmark", found.bookmark),
        ("version", found.version),
        ("files", f"{printing.counted(found.files, 'file')}, {printing.size(found.size_bytes)}"),
        *((f"  {name}", value) for name, value in found.description.items()),
        *(
            (
                f"version {commit.version}",
                f"{commit.role}: {commit.after + 1:,} to {commit.through:,}, by {commit.writer}",
            )
            for commit in found.commits
        ),
    ]
