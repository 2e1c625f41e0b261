"""`outbox stream`: a stream by itself. What it says and whether it can be read here, what changes it beside this file."""

from __future__ import annotations

from typing import Any

import click

from cli import flags, printing
from cli.settings import load_one
from cli.stream_copy import compact, copy
from cli.stream_redact import redact
from cli.stream_repair import repair
from cli.stream_trim import trim
from outbox.errors import CheckFailed, OutboxError


@click.group(short_help="Look at, trim, copy, compact, redact or mend a stream.")
def stream() -> None:
    """A stream by itself: look at it, trim it, copy it, compact it, erase from it, mend it."""


for command in (trim, compact, redact, copy, repair):
    stream.add_command(command)


@stream.command(
    short_help="Show what a stream says of itself.",
    epilog=flags.examples("outbox stream info --stream file:///var/lib/outbox/shop --json"),
)
@flags.stream
@flags.outbox
@flags.config
@flags.as_json
def info(stream: str | None, outbox: str | None, config: str | None, as_json: bool) -> None:
    """Show what a stream says of itself, without reading its events."""
    from stream_store import open_stream
    from stream_store.snapshot import unfinished_through

    settings = load_one({"stream": stream, "name": outbox}, config)
    with open_stream(settings.stream, "read") as opened:
        found = opened.info()
        unfinished = unfinished_through(opened) if found.compacted else None
    if as_json:
        printing.print_json(found)
        return
    lost = [f"{after + 1:,} to {through:,}" for after, through in found.lost]
    printing.print_facts(
        [
            ("stream", found.url),
            ("stream id", found.stream_id),
            ("bound to outbox", found.outbox_id or "none yet"),
            ("source", found.source),
            ("tail", found.tail),
            ("trimmed", f"through {found.trimmed_through:,}" if found.trimmed_through else "no"),
            ("recorded as lost", lost or "nothing"),
            (
                "compacted",
                found.compacted if unfinished is None else f"not finished: it is to go through {unfinished:,}",
            ),
            ("size", f"{printing.size(found.size_bytes)} in {printing.counted(found.segments, 'segment')}"),
        ]
    )


@stream.command(
    short_help="Read every frame and name any damage.",
    epilog=flags.examples("outbox stream check --stream file:///var/lib/outbox/shop"),
)
@flags.stream
@flags.outbox
@flags.config
@flags.as_json
@click.pass_context
def check(ctx: click.Context, stream: str | None, outbox: str | None, config: str | None, as_json: bool) -> None:
    """Read every frame of a stream; name the file and the offset of any damage.

    A relay may go on meanwhile. Exit code 3 when something cannot be read.
    """
    from stream_store import check as check_stream

    settings = load_one({"stream": stream, "name": outbox}, config)
    try:
        found = check_stream(settings.stream)
    except OSError as error:
        place = error.filename or f"a file of {settings.stream}"
        raise OutboxError(
            f"{place} cannot be read: {error.strerror}; run this as the relay's user, or look at the disk"
        ) from error
    if as_json:
        printing.print_json(found)
    else:
        facts: list[tuple[str, Any]] = [
            ("verdict", "ok: every frame can be read" if found.ok else "DAMAGED"),
            ("stream", found.url),
            ("stream id", found.stream_id),
            ("tail", found.tail),
            ("trimmed", f"through {found.trimmed_through:,}" if found.trimmed_through else "no"),
            ("events", found.events),
            ("redacted", found.redacted),
            ("dead IDs", found.dead_ids),
            ("lost IDs", found.lost_ids),
            ("segments", found.segments),
            ("frames", found.frames),
            ("size", printing.size(found.size_bytes)),
        ]
        if found.unacknowledged_bytes:
            facts.append(("unacknowledged", f"{printing.size(found.unacknowledged_bytes)} behind the durable end"))
        facts += [("DAMAGE", f"{place.file} at offset {place.offset:,}: {place.what}") for place in found.damage]
        printing.print_facts(facts)
    if not found.ok:
        ctx.exit(CheckFailed.exit_code)
