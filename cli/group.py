"""`outbox group`: consumer groups of a stream."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import keep_secret, load_one
from outbox.errors import UsageError

if TYPE_CHECKING:
    from stream_store.groups import DeadLetter, Group, GroupStatus

SHOWN_MAX = 100
BATCH_ROWS = 1000
PLACES = "ID|TIME|earliest|latest"

_name = click.argument("name", metavar="GROUP")
_common = flags.together(
    flags.stream,
    click.option(
        "--state",
        metavar="URL",
        envvar="OUTBOX_GROUP_STATE",
        help="The database that keeps the groups' state; a SQLite file beside a file:// stream by default.  "
        "[env: OUTBOX_GROUP_STATE]",
    ),
    flags.outbox,
    flags.config,
)
_reporting = flags.together(_common, flags.as_json)
_ids = click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="The letter of this event; repeatable.")


@click.group(short_help="Consumer groups: consume, list, steer.")
def group() -> None:
    """Consumer groups: members that share the events of a stream, each event acknowledged by one of them.

    A group remembers its position, what is outstanding behind it, and its dead letters.
    """


@group.command(
    "list",
    short_help="Show the groups of a stream, with their lag.",
    epilog=flags.examples(
        "outbox group list --stream file:///var/lib/outbox/shop",
        "outbox group list --stream file:///var/lib/outbox/shop --json | jq '.groups[] | select(.lag > 1000)'",
    ),
)
@_reporting
def list_(stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool) -> None:
    """Show every durable group of a stream. Ephemeral ones are known only to their own process."""
    from stream_store.groups import list_groups

    url, state_url = _places(stream, state, outbox, config)
    found = list_groups(url, state=state_url)
    if as_json:
        printing.print_json({"stream": url, "groups": [_document(each) for each in found]})
    elif not found:
        printing.print_facts([("groups", "none")])
    else:
        header = ("group", "lag", "through", "in flight", "waiting", "dead letters", "members", "paused")
        rows = [
            [each.name]
            + [printing.shown(v) for v in (each.lag, each.through, each.in_flight, each.waiting, each.dead_letters)]
            + [printing.shown(len(each.members)), printing.shown(each.paused)]
            for each in found
        ]
        printing.print_table(header, rows)


@group.command(
    short_help="Show where a group stands.",
    epilog=flags.examples("outbox group show mailer --stream file:///var/lib/outbox/shop"),
)
@_name
@_reporting
def show(
    name: str, stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool
) -> None:
    """Show a group's position, what is outstanding, its members and its settings."""
    with _open(name, stream, state, outbox, config) as opened:
        _print_status(opened.status(), as_json)


@group.command(
    short_help="Make a group.",
    epilog=flags.examples(
        "outbox group create mailer --stream file:///var/lib/outbox/shop --order subject",
        "outbox group create audit --stream file:///var/lib/outbox/shop --order strict --max-in-flight 1",
        "outbox group create pricing --stream s3://events/shop --state postgresql://app@db/groups --types 'price.*'",
    ),
)
@_name
@click.option(
    "--from", "start", metavar=PLACES, help="The first event to deliver; earliest, or latest with --prefer latest."
)
@click.option(
    "--order", type=click.Choice(["none", "subject", "strict"]), default="none", show_default=True,
    help="subject: one event of a subject at a time. strict: one delivery at a time in the whole group.",
)  # fmt: skip
@click.option(
    "--prefer", type=click.Choice(["repeat", "latest"]), default="repeat", show_default=True,
    help="repeat: all events, again until acknowledged. latest: only the newest, older ones are skipped.",
)  # fmt: skip
@click.option("--max-in-flight", type=click.IntRange(min=1), help="Events with members at once, in the whole group.")
@click.option(
    "--max-tries", type=click.IntRange(min=0), default=5, show_default=True,
    help="Deliveries before an event becomes a dead letter; 0 for never.",
)  # fmt: skip
@click.option("--types", multiple=True, metavar="PATTERN", help="Only these types: 'order.*'; repeatable.")
@_reporting
def create(
    name: str,
    start: str | None,
    order: str,
    prefer: str,
    max_in_flight: int | None,
    max_tries: int,
    types: tuple[str, ...],
    stream: str | None,
    state: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Make a durable group. From now on retention keeps what it has not acknowledged."""
    from stream_store.groups import Group

    url, state_url = _places(stream, state, outbox, config)
    made = Group.create(
        url,
        name,
        state=state_url,
        start=start,
        order=order,
        preference=prefer,
        max_in_flight=max_in_flight,
        max_tries=max_tries or None,
        types=[part for text in types for part in re.split(r"[,\s]+", text) if part],
    )
    with made:
        _print_status(made.status(), as_json)


@group.command(
    short_help="Write a group's events as JSON lines.",
    epilog=flags.examples(
        "outbox group consume mailer --stream file:///var/lib/outbox/shop --follow | ./send-mails",
        "outbox group consume mailer --stream file:///var/lib/outbox/shop --follow --batch-rows 1",
        "outbox group consume look --ephemeral --from latest --follow --stream file:///var/lib/outbox/shop",
    ),
)
@_name
@click.option("--follow", is_flag=True, help="Go on with new events as they come.")
@click.option(
    "--batch-rows", type=click.IntRange(min=1), default=BATCH_ROWS, show_default=True,
    help="The most events to write before they are acknowledged; 1 for each by itself.",
)  # fmt: skip
@click.option("--ephemeral", is_flag=True, help="A group of this process alone, which ends with it.")
@click.option("--from", "start", metavar=PLACES, help="The first event of an ephemeral group; earliest by default.")
@click.option(
    "--heartbeat", metavar="DURATION", default="2s", show_default=True, help="How often to say that this member lives."
)
@click.option(
    "--missed", type=click.IntRange(min=1), default=5, show_default=True,
    help="Heartbeats missed before the group gives this member's events to others.",
)  # fmt: skip
@_common
def consume(
    name: str,
    follow: bool,
    batch_rows: int,
    ephemeral: bool,
    start: str | None,
    heartbeat: str,
    missed: int,
    stream: str | None,
    state: str | None,
    outbox: str | None,
    config: str | None,
) -> None:
    """Be a member of a group: write its events to stdout, one CloudEvents 1.0 JSON object a line, as `tap` does.

    Events are acknowledged when their lines are written. So a crash writes some of them again,
    and what reads the lines must have them before it counts on them: acknowledged means
    written, not handled. Several of these processes share the group's events.
    """
    from connector.options import parse_duration_seconds
    from stream_store.cloudevents import for_terminal, rows_to_lines
    from stream_store.groups import Group
    from stream_store.json_text import as_buffer

    url, state_url = _places(stream, state, outbox, config)
    if start is not None and not ephemeral:
        raise UsageError("--from is for --ephemeral: a durable group goes on where it stands, see `outbox group reset`")
    if ephemeral:
        opened = Group.create(url, name, ephemeral=True, start=start, exist_ok=True)
    else:
        opened = Group.open(url, name, state=state_url)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, partial(_end, stop))
    output, terminal = sys.stdout.buffer, sys.stdout.isatty()
    with opened:
        for delivery in opened.consume_batches(
            batch_rows,
            stop=stop,
            wait_seconds=None if follow else 0,
            heartbeat_seconds=parse_duration_seconds(heartbeat),
            heartbeats_missed=missed,
        ):
            for lines in rows_to_lines(delivery.rows.rows, delivery.rows.previous, delivery.source):
                output.write(as_buffer(for_terminal(lines) if terminal else lines))
            output.flush()
            if not delivery.ack():
                printing.say(
                    f"events {delivery.batch.first_id} to {delivery.batch.last_id} were given to another member meanwhile, "
                    "and will be written again"
                )


@group.command(
    short_help="Deliver nothing for a while.",
    epilog=flags.examples("outbox group pause mailer --stream file:///var/lib/outbox/shop"),
)
@_name
@_reporting
def pause(
    name: str, stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool
) -> None:
    """Deliver nothing more until `outbox group resume`. What is in flight may still be acknowledged."""
    with _open(name, stream, state, outbox, config) as opened:
        opened.pause()
        _print_status(opened.status(), as_json)


@group.command(
    short_help="Deliver again after a pause.",
    epilog=flags.examples("outbox group resume mailer --stream file:///var/lib/outbox/shop"),
)
@_name
@_reporting
def resume(
    name: str, stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool
) -> None:
    """Go on delivering after a pause."""
    with _open(name, stream, state, outbox, config) as opened:
        opened.resume()
        _print_status(opened.status(), as_json)


@group.command(
    short_help="Let a group go on elsewhere.",
    epilog=flags.examples(
        "outbox group reset mailer --stream file:///var/lib/outbox/shop --to 2026-03-01T12:00:00Z",
        "outbox group reset mailer --stream file:///var/lib/outbox/shop --to latest",
    ),
)
@_name
@click.option("--to", required=True, metavar=PLACES, help="The next event to deliver.")
@_reporting
def reset(
    name: str, to: str, stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool
) -> None:
    """Let a group go on at another place. What is in flight comes to nothing; dead letters stay."""
    with _open(name, stream, state, outbox, config) as opened:
        opened.reset(to)
        _print_status(opened.status(), as_json)


@group.command(
    short_help="Forget a group.",
    epilog=flags.examples("outbox group delete mailer --stream file:///var/lib/outbox/shop --yes"),
)
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@_reporting
def delete(
    name: str, yes: bool, stream: str | None, state: str | None, outbox: str | None, config: str | None, as_json: bool
) -> None:
    """Forget a group, its position and its dead letters. Retention waits for it no longer."""
    from outbox.errors import GroupMissing
    from stream_store import open_stream
    from stream_store.readers import GROUP

    try:
        opened = _open(name, stream, state, outbox, config)
    except GroupMissing:
        # Killed between the two halves of a delete, or its state is gone: the stream may still wait for it.
        url, _ = _places(stream, state, outbox, config)
        with open_stream(url) as waiting:
            known = [each.name for each in waiting.readers() if each.kind == GROUP]
            found = [each for each in known if each == name or each.rpartition(":")[0] == name]
            if not found:
                raise
            if len(found) > 1:
                raise UsageError(
                    f"{url} waits for several groups {name}, each with its state elsewhere: {', '.join(found)}. Name the "
                    "state by --state, or one of these when its state is gone"
                ) from None
            _confirm(yes, f"Group {found[0]} has no state here. Let the stream wait for it no longer?")
            waiting.forget(GROUP, found[0])
    else:
        with opened:
            _confirm(yes, f"Forget group {name} at ID {opened.status().through:,}, with its dead letters?")
            opened.delete()
    if as_json:
        printing.print_json({"group": name, "deleted": True})
    else:
        printing.print_facts([("deleted", name)])


@group.group(short_help="List, redrive or drop a group's dead letters.")
def dlq() -> None:
    """Dead letters: events that were delivered as often as the group allows, and never acknowledged."""


@dlq.command(
    "list",
    short_help="Show a group's dead letters.",
    epilog=flags.examples(
        "outbox group dlq list mailer --stream file:///var/lib/outbox/shop",
        "outbox group dlq list mailer --stream file:///var/lib/outbox/shop --json | jq '.letters[].event.data'",
    ),
)
@_name
@_ids
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN_MAX, show_default=True, help="The most to show.")
@_reporting
def list_letters(
    name: str,
    ids: tuple[int, ...],
    limit: int,
    stream: str | None,
    state: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Show dead letters, why they are that, and what they hold."""
    with _open(name, stream, state, outbox, config) as opened:
        found = opened.dead_letters(ids or None, limit)
        count = opened.status().dead_letters
    if as_json:
        printing.print_json({"group": name, "count": count, "letters": [_letter(each) for each in found]})
    elif not found:
        printing.print_facts([("dead letters", "none")])
    else:
        columns = ("id", "type", "subject", "tries", "recorded_at", "reason")
        rows = [
            [_cell({**_letter(each), **_letter(each)["event"]}.get(column)) for column in columns] for each in found
        ]
        printing.print_table(columns, rows)
        if not ids and count > len(found):
            printing.say(f"{count - len(found):,} more: --limit shows them")


@dlq.command(
    short_help="Deliver dead letters again.",
    epilog=flags.examples(
        "outbox group dlq redrive mailer --stream file:///var/lib/outbox/shop --id 1042",
        "outbox group dlq redrive mailer --stream file:///var/lib/outbox/shop --all",
    ),
)
@_name
@_ids
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the group.")
@_reporting
def redrive(
    name: str,
    ids: tuple[int, ...],
    everything: bool,
    stream: str | None,
    state: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Deliver dead letters again, with all their tries before them. Later events of their subjects were not held back."""
    _require_choice(ids, everything)
    with _open(name, stream, state, outbox, config) as opened:
        count = opened.redrive(ids or None)
    _print_count(name, "redriven", count, as_json)


@dlq.command(
    short_help="Give dead letters up.",
    epilog=flags.examples("outbox group dlq drop mailer --stream file:///var/lib/outbox/shop --id 1042"),
)
@_name
@_ids
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the group.")
@_reporting
def drop(
    name: str,
    ids: tuple[int, ...],
    everything: bool,
    stream: str | None,
    state: str | None,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Decide that these events will not be delivered again. The stream still has them."""
    _require_choice(ids, everything)
    with _open(name, stream, state, outbox, config) as opened:
        count = opened.drop(ids or None)
    _print_count(name, "dropped", count, as_json)


def _places(stream: str | None, state: str | None, outbox: str | None, config: str | None) -> tuple[str, str | None]:
    """The stream's URL, and the state's where one is given."""
    if state:
        from outbox.database import DatabaseUrl

        keep_secret(DatabaseUrl.parse(state))
    return load_one({"stream": stream, "name": outbox}, config).stream, state or None


def _open(name: str, stream: str | None, state: str | None, outbox: str | None, config: str | None) -> Group:
    from stream_store.groups import Group

    url, state_url = _places(stream, state, outbox, config)
    return Group.open(url, name, state=state_url)


def _end(stop: threading.Event, *_: object) -> None:
    """End after the events that are being written; at once when told again."""
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()


def _confirm(yes: bool, question: str) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)


def _require_choice(ids: tuple[int, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise UsageError("say which letters: --id ID, or --all")


def _print_count(name: str, what: str, count: int, as_json: bool) -> None:
    if as_json:
        printing.print_json({"group": name, what: count})
    else:
        printing.print_facts([("group", name), (what, count)])


def _print_status(found: GroupStatus, as_json: bool) -> None:
    if as_json:
        printing.print_json(_document(found))
        return
    settings = found.settings
    printing.print_facts(
        [
            ("group", found.name),
            ("state", found.state),
            ("lag", found.lag),
            ("done through", found.through),
            ("head", f"{found.head:,} of {found.tail:,}" + (", paused" if found.paused else "")),
            ("in flight", found.in_flight),
            ("waiting", found.waiting),
            ("dead letters", found.dead_letters),
            ("skipped IDs", found.skipped_ids),
            ("members", list(found.members) or "none"),
            ("order", settings.order.value),
            ("prefers", settings.preference.value),
            ("max in flight", settings.max_in_flight or "no limit"),
            ("max tries", settings.max_tries or "no limit"),
            ("types", list(settings.types) or "all"),
        ]
    )


def _document(found: GroupStatus) -> dict[str, Any]:
    plain: dict[str, Any] = printing.plain(found)
    return {**plain, "settings": found.settings.to_json(), "lag": found.lag}


def _letter(letter: DeadLetter) -> dict[str, Any]:
    from stream_store.groups.group import time_of

    return {
        "id": letter.id,
        "tries": letter.tries,
        "reason": letter.reason,
        "recorded_at": time_of(letter.recorded_us).isoformat(timespec="seconds"),
        "event": json.loads(letter.event),
    }


def _cell(value: Any) -> str:
    text = str(value) if isinstance(value, int | str) else printing.shown(value)
    return text if len(text) <= 80 else text[:79] + "…"
