"""`outbox status`: where an outbox stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one

if TYPE_CHECKING:
    from connector.status import Status


@click.command(
    short_help="Show where an outbox stands.",
    epilog=flags.examples(
        "outbox status --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox status --config outbox.toml --outbox billing_outbox --json | jq .rows_waiting",
    ),
)
@flags.database
@flags.stream
@flags.outbox
@flags.config
@flags.as_json
def status(database: str | None, stream: str | None, outbox: str | None, config: str | None, as_json: bool) -> None:
    """Show how far the stream is behind, who leads, and who holds it back.

    Looks once, without disturbing a relay. Without --stream, what the relay last said of
    its stream is shown. The exit code is 0 whatever it shows: `outbox check` and
    `outbox verify` are the ones to judge, with exit code 3.
    """
    from connector.status import status as look

    settings = load_one({"database": database, "stream": stream, "name": outbox}, config)
    found = look(settings.database, settings.table, settings.stream_if_given)
    if as_json:
        printing.print_json(found)
    else:
        printing.print_facts(_facts(found))


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
