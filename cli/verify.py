"""`outbox verify`: the proof that out table, stream and Delta tables agree."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.printing import counted, say
from cli.settings import load_one
from cli.tables import open_spark, spark_flags, table_flags, table_names
from outbox.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cli.settings import OutboxSettings
    from connector.verify import Verification
    from spark_sink.names import TableName
    from spark_sink.verification import TableVerification

    Progress = Callable[[str, int, int], None]

KINDS = ("lost", "duplicated", "conflicting", "extra")
NAMED_IDS_MAX = 100
HEADER = ("", "verdict", "through", "behind", "events", "not for it", "dead letters", "no row", "rows", *KINDS)


@click.command(
    short_help="Prove that nothing was lost or doubled.",
    epilog=flags.examples(
        "outbox verify --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox verify --stream file:///var/lib/outbox/shop --table /lake/orders --table /lake/customers",
        "outbox verify --config outbox.toml --outbox shop.outbox --json | jq .ok      # and every [[outbox.table]]",
    ),
)
@flags.database
@flags.stream
@table_flags
@flags.outbox
@spark_flags
@flags.config
@flags.as_json
@click.pass_context
def verify(
    ctx: click.Context,
    database: str | None,
    stream: str | None,
    tables: tuple[str, ...],
    outbox: str | None,
    master: str | None,
    conf: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> None:
    """Read the whole stream, the whole out table and each Delta table, and prove that they agree.

    Every ID from 1 to the tail is an event, recorded as dead, trimmed, or recorded as lost
    by a rebase; every row at or below the tail is in the stream with the same content. Each
    Delta table is what the stream makes of it through the table's bookmark, row by row. Relay
    and sink may go on meanwhile. Without a database, stream and tables are proven. Exit code 3
    when something is wrong; the IDs are named.
    """
    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    names = table_names(settings, tables)
    with _progress(shown=sys.stderr.isatty()) as progress:
        found = _prove_stream(settings, progress, needs_database=not names)
        proven = _prove_tables(settings, names, found, progress, master, conf)
    ok = found.ok and all(table.ok for table in proven)
    if as_json:
        printing.print_json(_document(found, proven))
    else:
        printing.print_facts(_facts(found, proven))
        if proven:
            printing.print_table(HEADER, _rows(found, proven))
            remarks = [remark for table in proven for remark in _remarks(table)]
            if remarks:
                printing.print_facts(remarks)
    if not ok:
        ctx.exit(CheckFailed.exit_code)


def _prove_stream(settings: OutboxSettings, progress: Progress | None, *, needs_database: bool) -> Verification:
    from connector.verify import verify as prove
    from connector.verify import verify_stream

    if "database" not in settings.given and not needs_database:
        return verify_stream(settings.stream, progress)
    settings.require_installed()
    return prove(settings.database, settings.table, settings.stream, progress)


def _prove_tables(
    settings: OutboxSettings,
    names: list[TableName],
    stream: Verification,
    progress: Progress | None,
    master: str | None,
    conf: tuple[str, ...],
) -> list[TableVerification]:
    if not names:
        return []
    if stream.unread:
        say(f"the tables were not looked at: {counted(stream.unread, 'ID')} of the stream cannot be read")
        return []
    from cli.log import configure

    configure("human")
    spark = open_spark(master, conf, "outbox verify")
    from spark_sink.verification import verify_tables

    return verify_tables(spark, settings.stream, names, progress)


def _document(found: Verification, proven: list[TableVerification]) -> dict[str, Any]:
    """What is wrong anywhere is counted at the top; `tables` says where."""
    document = {**printing.plain(found), "extra": 0, "extra_ids": []}
    for table in proven:
        document["ok"] = document["ok"] and table.ok
        for kind in KINDS:
            document[kind] += getattr(table, kind)
            ids = {*document[f"{kind}_ids"], *getattr(table, f"{kind}_ids")}
            document[f"{kind}_ids"] = sorted(ids)[:NAMED_IDS_MAX]
        document["problems"] += [f"{table.table}: {problem}" for problem in printing.plain(table.problems)]
    return {**document, "tables": printing.plain(proven)}


def _facts(found: Verification, proven: Sequence[TableVerification] = ()) -> list[tuple[str, Any]]:
    ok = found.ok and all(table.ok for table in proven)
    verdict = "ok: nothing lost, nothing doubled" if ok else "NOT OK"
    if ok and found.recorded_lost:
        verdict = f"ok, apart from {counted(found.recorded_lost, 'ID')} recorded as lost by a rebase"
    of_rows = [
        ("rows not relayed yet", found.rows_pending),
        ("rows not deleted yet", found.rows_kept),
    ]
    return [
        ("verdict", verdict),
        ("IDs through", found.tail),
        ("  events", found.events),
        *([("    redacted", found.redacted)] if found.redacted else []),
        ("  dead (rolled back)", found.dead),
        ("  trimmed", found.trimmed),
        ("  recorded as lost", found.recorded_lost),
        *([("  cannot be read", found.unread)] if found.unread else []),
        ("lost", _named(found.lost, found.lost_ids)),
        ("duplicated", _named(found.duplicated, found.duplicated_ids)),
        ("conflicting", _named(found.conflicting, found.conflicting_ids)),
        *(of_rows if found.out_table is not None else [("out table", "not looked at: no database was named")]),
        *([("compacted", "yes: what compaction left out counts as dead")] if found.compacted else []),
        *(("PROBLEM", problem) for problem in found.problems),
        *(("warning", warning) for warning in found.warnings),
    ]


def _named(count: int, ids: list[int]) -> str:
    shown = ", ".join(str(number) for number in ids[:10])
    return f"{count:,}" + (f" (ID{'' if count == 1 else 's'} {shown}{', …' if count > 10 else ''})" if ids else "")


def _rows(found: Verification, proven: Sequence[TableVerification]) -> list[tuple[str, ...]]:
    """A line for each step of the events' way: what came in, what became of it, what is wrong."""
    lines: list[tuple[Any, ...]] = [
        (
            f"{found.out_table} → stream" if found.out_table else "stream",
            "ok" if found.ok else "NOT OK", found.tail, "", found.events, "", "", "", "",
            found.lost, found.duplicated, found.conflicting, "",
        )
    ]  # fmt: skip
    for table in proven:
        lines.append(
            (
                f"stream → {table.table}" + (f" ({table.mode})" if table.mode else ""),
                "ok" if table.ok else "NOT OK", table.bookmark, table.behind, table.events, table.not_for_table,
                table.dead_letters, table.without_row, table.rows, *(getattr(table, kind) for kind in KINDS),
            )
        )  # fmt: skip
    return [tuple(printing.shown(cell) for cell in line) for line in lines]


def _remarks(table: TableVerification) -> list[tuple[str, str]]:
    wrong = [(kind, getattr(table, kind), getattr(table, f"{kind}_ids")) for kind in KINDS]
    return [
        *((f"{table.table}: {kind}", _named(count, ids)) for kind, count, ids in wrong if count),
        *((f"{table.table}: PROBLEM", problem) for problem in table.problems),
        *((f"{table.table}: note", note) for note in table.notes),
    ]


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """A bar for each thing that takes long, on stderr, when a person looks at it."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
