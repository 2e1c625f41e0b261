"""`outbox rebase`: the way on after a failover, a restore, or a stream that lost its tail."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import OutboxError, UsageError

if TYPE_CHECKING:
    from connector.rebase import Step
    from outbox.database import DatabaseUrl
    from outbox.names import OutTable


@click.command(
    short_help="Go on after a failover or a restore.",
    epilog=flags.examples(
        "outbox rebase --database postgresql://owner@db/shop --stream file:///var/lib/outbox/shop --dry-run",
        "outbox rebase --database postgresql://owner@db/shop --stream file:///var/lib/outbox/shop --yes",
    ),
)
@flags.database
@flags.stream
@flags.outbox
@click.option("--dry-run", is_flag=True, help="Show what would be done, and why; change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking. Needed where nobody can be asked.")
@flags.config
@flags.as_json
def rebase(
    database: str | None,
    stream: str | None,
    outbox: str | None,
    dry_run: bool,
    yes: bool,
    config: str | None,
    as_json: bool,
) -> None:
    """Make outbox and stream partners again after one of them went back in time.

    A relay that stops with exit code 4 has found such a case and names it. Stop every
    relay, look at the plan (--dry-run), then let it be done. What was lost is recorded as
    lost in the stream: nothing is hidden. Rows whose IDs the stream has passed already get
    new ones; what is in the stream keeps its own.

    Run it as the owner of the out table: it moves the sequence, which the relay's role may not.
    """
    from connector import rebase as way

    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    place = (settings.database, settings.table, settings.stream)
    settings.require_installed()
    steps = way.plan(*place)
    if not dry_run and steps and not yes:
        if as_json or not sys.stdin.isatty():
            raise UsageError("rebase changes the outbox: look at the plan with --dry-run, then say --yes")
        _print_steps([step.message for step in steps])
        click.confirm("Do this?", abort=True, err=True)
    if not dry_run:
        steps = _apply(*place) if steps else []
    if as_json:
        printing.print_json({"applied": not dry_run, "steps": steps})
    elif not steps:
        printing.say("nothing to do: outbox and stream agree")
    else:
        _print_steps([step.message for step in steps])
        printing.say("nothing was changed" if dry_run else "done: start the relay, then run `outbox verify`")


def _apply(url: DatabaseUrl, table: OutTable, stream: str) -> list[Step]:
    from connector.rebase import apply
    from outbox.database import is_refusal, one_line

    try:
        return apply(url, table, stream)
    except Exception as error:
        if isinstance(error, OutboxError) or not is_refusal(error):
            raise
        raise OutboxError(
            f"the database refuses this: {one_line(error)}. Run `outbox rebase` as the owner of {table}: it moves the "
            "sequence and may give rows new IDs, which the relay's role may not. What was done already is done; the "
            "plan of the next run begins behind it"
        ) from error


def _print_steps(messages: list[str]) -> None:
    for number, message in enumerate(messages, 1):
        click.echo(f"{number}. {printing.printable(printing.redacted(message))}")
