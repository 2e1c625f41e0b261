"""`outbox stream copy` and `outbox stream compact`: a stream to another place, whole or the latest of each subject."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import click

from cli import flags, printing
from cli.progress import bar
from cli.settings import lasting, load_one

if TYPE_CHECKING:
    from stream_store.stream import Readable

FOLLOW_POLL_SECONDS = 0.2

_to = click.option("--to", "target", required=True, metavar="URL", help="Where to; made when it is not there.")


@click.command(
    short_help="Copy a stream to another URL.",
    epilog=flags.examples(
        "outbox stream copy --stream file:///var/lib/outbox/shop --to file:///backup/shop",
        "outbox stream copy --stream file:///var/lib/outbox/shop --to s3://backup/shop --follow",
    ),
)
@flags.stream
@_to
@click.option("--follow", is_flag=True, help="Go on with new events as they come, until told to stop.")
@flags.outbox
@flags.config
@flags.as_json
def copy(stream: str | None, target: str, follow: bool, outbox: str | None, config: str | None, as_json: bool) -> None:
    """Copy a stream to another URL, of any kind: the same IDs, the same chain, the same lost ranges.

    A copy that was interrupted goes on where it was, and one that is done brings what is new
    when it is run again. A place that holds something else is refused. What was redacted before
    is redacted in the copy; what is redacted later must be redacted there, too.
    """
    from dataclasses import replace

    from stream_store import open_stream
    from stream_store.copying import copy as copy_stream

    settings = load_one({"stream": stream, "name": outbox}, config)
    stop = threading.Event()
    if follow:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, lambda *_: stop.set())
    with (
        open_stream(settings.stream) as source,
        open_stream(lasting(target), "write") as opened,
        bar("copying") as tell,
    ):
        done = copy_stream(source, opened, tell)
        while follow and not stop.wait(FOLLOW_POLL_SECONDS):
            if source.tail() > opened.tail():
                more = copy_stream(source, opened)
                done = replace(
                    more, after=done.after, events=done.events + more.events, lost_ids=done.lost_ids + more.lost_ids
                )
    if as_json:
        printing.print_json(done)
        return
    printing.print_facts(
        [
            ("copied", printing.counted(done.events, "event")),
            ("to", done.target),
            ("the copy went through", done.after),
            ("it goes through", done.through),
            *([("recorded as lost", printing.counted(done.lost_ids, "ID"))] if done.lost_ids else []),
        ]
    )


@click.command(
    short_help="Make a snapshot: the latest event of each subject.",
    epilog=flags.examples(
        "outbox stream compact --stream file:///var/lib/outbox/shop --to file:///var/lib/outbox/shop-2026-03",
        "outbox stream compact --stream file:///var/lib/outbox/shop --snapshot file:///var/lib/outbox/shop-2026-03 "
        "--to file:///var/lib/outbox/shop-2026-04",
        "outbox tap --stream file:///var/lib/outbox/shop --snapshot file:///var/lib/outbox/shop-2026-03 --follow",
    ),
)
@flags.stream
@_to
@click.option("--through", metavar="ID|TIME", help="The last event to take in; the newest by default.")
@click.option(
    "--snapshot", metavar="URL", help="An earlier snapshot, for what the stream no longer has: it was trimmed since."
)
@click.option("--keep-tombstones", is_flag=True, help="Keep the event of a subject that was deleted.")
@flags.outbox
@flags.config
@flags.as_json
def compact(
    stream: str | None,
    target: str,
    through: str | None,
    snapshot: str | None,
    keep_tombstones: bool,
    outbox: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Write the latest event of each subject, through an ID, into a new stream: a snapshot.

    The stream itself stays as it is. IDs are kept; events without a subject are all kept;
    subjects whose latest event is a tombstone are left out. New consumers read the snapshot and
    go on in the stream behind it (`outbox tap --snapshot`), which may be trimmed that far. No
    relay appends to a snapshot. One that was interrupted is finished by the same command.
    """
    from stream_store import open_stream
    from stream_store.compaction import compact as compact_stream
    from stream_store.place import end_through
    from stream_store.snapshot import SnapshotAndLive

    settings = load_one({"stream": stream, "name": outbox}, config)
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(open_stream(settings.stream))
        source: Readable = (
            live if snapshot is None else SnapshotAndLive(stack.enter_context(open_stream(snapshot)), live)
        )
        opened = stack.enter_context(open_stream(lasting(target), "write"))
        tell = stack.enter_context(bar("compacting", "IDs"))
        done = compact_stream(
            source,
            opened,
            through=None if through is None else end_through(live, through, "--through"),
            keep_tombstones=keep_tombstones,
            tell=lambda what, at, of: tell(at, of, what),
        )
    if as_json:
        printing.print_json(done)
        return
    printing.print_facts(
        [
            ("snapshot", done.target),
            ("of", done.source),
            ("through", done.through),
            ("subjects", done.subjects),
            ("events read", done.events_read),
            ("events written", done.events_written),
            ("consumers go on behind", done.tail),
        ]
    )
