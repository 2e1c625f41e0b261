"""`outbox verify`: the proof that out table and stream agree."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.verify import Verification


@click.command(
    short_help="Prove that nothing was lost or doubled.",
    epilog=flags.examples(
        "outbox verify --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox verify --config outbox.toml --outbox shop.outbox --json | jq .ok",
    ),
)
@flags.database
@flags.stream
@flags.outbox
@flags.config
@flags.as_json
@click.pass_context
def verify(
    ctx: click.Context,
    database: str | None,
    stream: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Read the whole stream and the whole out table, and prove that they agree.

    Every ID from 1 to the tail is an event, recorded as dead, trimmed, or recorded as lost
    by a rebase; every row at or below the tail is in the stream with the same content. A
    relay may go on meanwhile. Exit code 3 when something is wrong.
    """
    from connector.verify import verify as prove

    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    settings.require_installed()
    with _progress(shown=sys.stderr.isatty()) as progress:
        found = prove(settings.database, settings.table, settings.stream, progress)
    if as_json:
        printing.print_json(found)
    else:
        printing.print_facts(_facts(found))
    if not found.ok:
        ctx.exit(CheckFailed.exit_code)


def _facts(found: Verification) -> list[tuple[str, Any]]:
    def named(count: int, ids: list[int]) -> str:
        shown = ", ".join(str(number) for number in ids[:10])
        return f"{count:,}" + (f" (ID{'' if count == 1 else 's'} {shown}{', …' if count > 10 else ''})" if ids else "")

    verdict = "ok: nothing lost, nothing doubled" if found.ok else "NOT OK"
    if found.ok and found.recorded_lost:
        verdict = f"ok, apart from {printing.counted(found.recorded_lost, 'ID')} recorded as lost by a rebase"
    return [
        ("verdict", verdict),
        ("IDs through", found.tail),
        ("  events", found.events),
        ("  dead (rolled back)", found.dead),
        ("  trimmed", found.trimmed),
        ("  recorded as lost", found.recorded_lost),
        *([("  cannot be read", found.unread)] if found.unread else []),
        ("lost", named(found.lost, found.lost_ids)),
        ("duplicated", named(found.duplicated, found.duplicated_ids)),
        ("conflicting", named(found.conflicting, found.conflicting_ids)),
        ("rows not relayed yet", found.rows_pending),
        ("rows not deleted yet", found.rows_kept),
        *(("PROBLEM", problem) for problem in found.problems),
    ]


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None] | None]:
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
