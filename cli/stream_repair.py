"""`outbox stream repair`: mend a damaged stream with events from a copy or from the out table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from stream_store.file.repair import Mended


@click.command(
    short_help="Mend damage in the middle of a stream.",
    epilog=flags.examples(
        "outbox stream repair --stream file:///var/lib/outbox/shop --from file:///backup/shop --dry-run",
        "outbox stream repair --stream file:///var/lib/outbox/shop --database postgresql://relay@db/shop",
    ),
)
@flags.stream
@click.option("--from", "copy", metavar="URL", help="A copy of the stream that has the damaged events.")
@flags.database
@flags.outbox
@click.option("--dry-run", is_flag=True, help="Say what could be mended; change nothing.")
@flags.config
@flags.as_json
@click.pass_context
def repair(
    ctx: click.Context,
    stream: str | None,
    copy: str | None,
    database: str | None,
    outbox: str | None,
    dry_run: bool,
    config: str | None,
    as_json: bool,
) -> None:
    """Put the events of damaged frames back, from a copy of the stream or from rows that are still there.

    What `outbox stream check` names is filled exactly, by the chain: each hole begins behind
    the event before it and ends at the event before the next whole frame. Damaged segments are
    kept in the folder damaged/ beside them. Stop the relay first. Exit code 3 when something
    could not be mended: it is named, and stays as it was.
    """
    from stream_store.file.identity import read_identity
    from stream_store.mending import folder_of, from_copy
    from stream_store.mending import repair as mend

    settings = load_one({"stream": stream, "database": database, "name": outbox}, config)
    if copy is None and "database" not in settings.given:
        raise UsageError("say where whole events are: --from URL of a copy, or --database URL of the out table")
    outbox_id = read_identity(folder_of(settings.stream)).outbox_id
    with contextlib.ExitStack() as stack:
        if copy is not None:
            from stream_store import open_stream

            fetch = from_copy(stack.enter_context(open_stream(copy)), outbox_id)
        else:
            from connector.mending import from_out_table
            from connector.options import RelayOptions
            from connector.sources import open_source

            source = open_source(RelayOptions(settings.database, settings.table, settings.stream))
            stack.callback(source.close)
            source.open()
            fetch = from_out_table(source, outbox_id)
        found = mend(settings.stream, fetch, dry_run=dry_run)
    ok = all(each.problem is None for each in found)
    if as_json:
        printing.print_json({"ok": ok, "applied": not dry_run, "damage": found})
    elif not found:
        printing.say("nothing to mend: every frame can be read")
    else:
        printing.print_facts([_line(each, dry_run=dry_run) for each in found])
        if not dry_run:
            printing.say("run `outbox stream check` and `outbox verify`; then start the relay")
    if not ok:
        ctx.exit(CheckFailed.exit_code)


def _line(each: Mended, *, dry_run: bool) -> tuple[str, Any]:
    place = f"{each.file} at offset {each.offset:,} ({each.what})"
    if each.after == each.through:
        return ("would be mended" if dry_run else "mended", place)
    ids = f"IDs {each.after + 1:,} to {each.through:,}"
    if each.problem is not None:
        return "CANNOT BE MENDED", f"{ids}: {each.problem}; {place}"
    return "would be mended" if dry_run else "mended", f"{ids}, {printing.counted(each.events, 'event')}: {place}"
