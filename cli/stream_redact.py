"""`outbox stream redact`: erase what a stream holds of a subject."""

from __future__ import annotations

import click

from cli import flags, printing
from cli.progress import bar
from cli.settings import load_one

NAMED_IDS_MAX = 100
ELSEWHERE = (
    "Copies and snapshots of the stream, Delta tables and their dead letters, dead letters of consumer groups, parked events "
    "of inboxes, and rows that are not deleted from the out table yet still hold it: see docs/retention.md"
)


@click.command(
    short_help="Erase what a stream holds of a subject.",
    epilog=flags.examples(
        "outbox stream redact --stream file:///var/lib/outbox/shop --subject customer-4711 --dry-run",
        "outbox stream redact --stream file:///var/lib/outbox/shop --subject customer-4711 --subject cart-4711 --json",
    ),
)
@flags.stream
@click.option("--subject", "subjects", multiple=True, required=True, help="The subject, exactly; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Count the events; erase nothing.")
@flags.outbox
@flags.config
@flags.as_json
def redact(
    stream: str | None,
    subjects: tuple[str, ...],
    dry_run: bool,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Erase the data and the headers of every event of these subjects, for good.

    IDs, types, subjects, times and the chain stay, so nothing else notices; `outbox verify`
    counts them. When the command has ended, the old bytes are in no file of the stream any
    more. A relay may run meanwhile: it does the erasing then, when it writes a stream that
    only one process can write.
    """
    from stream_store import open_to_maintain
    from stream_store.erasure import find_subjects

    settings = load_one({"stream": stream, "name": outbox}, config)
    with open_to_maintain(settings.stream) as opened:
        with bar("looking for them", "IDs") as tell:
            found = find_subjects(opened, subjects, tell)
        erased = 0 if dry_run or not found.ids else opened.redact(found.ids)
    if as_json:
        printing.print_json(
            {
                "subjects": sorted(set(subjects)),
                "events": found.events,
                "redacted_before": found.redacted,
                "to_redact": len(found.ids),
                "redacted": erased,
                "ids": found.ids[:NAMED_IDS_MAX],
                "applied": not dry_run,
            }
        )
        return
    printing.print_facts(
        [
            ("events of these subjects", found.events),
            ("redacted before", found.redacted),
            ("would be redacted" if dry_run else "redacted now", len(found.ids) if dry_run else erased),
        ]
    )
    if found.events:
        printing.say(ELSEWHERE)
