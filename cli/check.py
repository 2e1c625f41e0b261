"""`outbox check`, also `outbox doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import CheckFailed

# Each level's sign, and its colour where there are colours.
_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@click.command(
    short_help="Say what is wrong and how to mend it (also: doctor).",
    epilog=flags.examples(
        "outbox check --database postgresql://relay@db/shop",
        "outbox check --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop --json",
    ),
)
@flags.database
@flags.stream
@flags.outbox
@flags.config
@flags.as_json
@click.pass_context
def check(
    ctx: click.Context,
    database: str | None,
    stream: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Look for everything that would break the guarantee, and say how to mend it.

    Database settings, privileges, the out table, transactions in flight, the stream, and
    the bond between the two. Run it as the relay's own role. Exit code 3 when something is
    wrong; warnings leave it at 0.
    """
    from connector.check import check as check_outbox

    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    delete_after = settings.text("delete_after") or "durable"
    # A database that is not there is a finding too.
    findings = check_outbox(settings.new_database, settings.table, settings.stream_if_given, delete_after=delete_after)
    ok = not any(finding.level == "error" for finding in findings)
    if as_json:
        printing.print_json({"ok": ok, "findings": findings})
    else:
        for finding in findings:
            sign, colour = _SIGNS[finding.level]
            text = printing.printable(printing.redacted(f"{finding.name}: {finding.message}"))
            click.echo(f"{click.style(sign, fg=colour)} {text}")
            if finding.fix:
                click.echo(printing.printable(printing.redacted(f"    {finding.fix}")))
        wrong = sum(finding.level == "error" for finding in findings)
        warnings = sum(finding.level == "warning" for finding in findings)
        click.echo(f"{wrong} wrong, {printing.counted(warnings, 'warning')}")
    if not ok:
        ctx.exit(CheckFailed.exit_code)
