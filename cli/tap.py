"""`outbox tap`: the events of a stream as CloudEvents JSON lines."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import OutboxError, StreamMissing, UsageError

if TYPE_CHECKING:
    from stream_store import Stream
    from stream_store.cloudevents import TypeFilter
    from stream_store.stream import Readable

POLL_SECONDS_MIN = 0.002
POLL_SECONDS_MAX = 0.05
MISSING_POLL_SECONDS = 0.2


@click.command(
    short_help="Write events as CloudEvents JSON lines.",
    epilog=flags.examples(
        "outbox tap --stream file:///var/lib/outbox/shop | jq .type",
        "outbox tap --stream file:///var/lib/outbox/shop --from 2026-03-01T12:00:00Z --follow",
        "outbox tap --stream file:///var/lib/outbox/shop --from latest --follow --types 'order.*'",
        "outbox tap --stream file:///var/lib/outbox/shop --snapshot file:///var/lib/outbox/shop-2026-03 --follow",
        "mkfifo events && outbox tap --stream file:///var/lib/outbox/shop --follow --output events",
    ),
)
@flags.stream
@flags.outbox
@click.option(
    "--from", "start", default="earliest", show_default=True, metavar="ID|TIME|earliest|latest",
    help="The first event: an ID, a time in ISO 8601 (UTC unless it says otherwise), the oldest, or only new ones.",
)  # fmt: skip
@click.option("--to", "end", metavar="ID|TIME", help="The last event, inclusive; the newest by default.")
@click.option("--follow", is_flag=True, help="Go on with new events as they come.")
@click.option(
    "--types", multiple=True, metavar="PATTERN", help="Only these types: 'order.*' or a full name; repeatable."
)
@click.option(
    "--snapshot", metavar="URL",
    help="Begin with this snapshot of the stream (`outbox stream compact`), and go on in the stream behind it.",
)  # fmt: skip
@click.option("--output", metavar="FILE|FIFO", help="Write here instead of stdout. A file is overwritten.")
@flags.config
def tap(
    stream: str | None,
    outbox: str | None,
    start: str,
    end: str | None,
    follow: bool,
    types: tuple[str, ...],
    snapshot: str | None,
    output: str | None,
    config: str | None,
) -> None:
    """Write the events of a stream, one CloudEvents 1.0 JSON object a line, in ID order.

    Each line has "previd", the ID that the event follows: when it is not the "id" of the
    line before, something between them was left out (by --types, or by you). Headers are
    extension attributes; data is the stored JSON text, byte for byte. Data that is binary,
    or not valid JSON, is in data_base64; a tombstone has no data.

    --from and --to are inclusive. A TIME stands for the first event at or after it (--to:
    the last before a later one); events go by ID, and their times may be slightly out of
    order.

    To a FIFO whose reader leaves, --follow goes on with the next reader; the lines that were
    being written then are written to it again.
    """
    from stream_store.cloudevents import TypeFilter

    settings = load_one({"stream": stream, "name": outbox}, config)
    # More than one pattern may stand in one flag.
    patterns = tuple(part for text in types for part in re.split(r"[,\s]+", text) if part)
    types_filter = TypeFilter(patterns) if patterns else None
    stop = threading.Event()
    if follow:
        signal.signal(signal.SIGTERM, partial(_end, stop))
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(_open(settings.stream, follow, stop))
        opened: Readable = live
        if snapshot is not None:
            from stream_store import open_stream
            from stream_store.snapshot import SnapshotAndLive

            opened = SnapshotAndLive(stack.enter_context(open_stream(snapshot)), live)
        after, through = _range(opened, start, end, follow=follow)
        with Sink(output, reopen=follow, stop=stop) as sink:
            try:
                _write_all(opened, after, through, types_filter, sink, follow=follow, stop=stop)
            except BrokenPipeError:
                sink.forget()


def _end(stop: threading.Event, *_: object) -> None:
    """End after the lines that are being written; at once when told again."""
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()


def _open(url: str, follow: bool, stop: threading.Event) -> Stream:
    from stream_store import open_stream

    said = False
    while True:
        try:
            return open_stream(url, "read")
        except StreamMissing as error:
            if not follow or stop.is_set():
                raise
            if not said:
                printing.say(f"{error}: waiting for it")
            said = True
            stop.wait(MISSING_POLL_SECONDS)


def _range(stream: Readable, start: str, end: str | None, *, follow: bool) -> tuple[int, int | None]:
    """`after` and `through` of a read that begins and ends where the flags say."""
    from stream_store.place import end_through, parse_place, require_order, start_after

    if end is None:
        return start_after(stream, start, "--from"), None
    require_order(start, end, ("--from", "--to"))
    if follow and not isinstance(parse_place(end, "--to"), int):
        raise UsageError("--to TIME is looked up once, at the start: it does not go with --follow; give an ID")
    return start_after(stream, start, "--from"), end_through(stream, end, "--to")


def _write_all(
    stream: Readable,
    after: int,
    through: int | None,
    types: TypeFilter | None,
    sink: Sink,
    *,
    follow: bool,
    stop: threading.Event,
) -> None:
    from stream_store.cloudevents import for_terminal, to_lines
    from stream_store.gathering import gather
    from stream_store.json_text import as_buffer

    source: str | None = None
    pause_seconds = POLL_SECONDS_MIN
    while not stop.is_set():
        seen, tail = after, stream.tail()
        for batch in gather(stream.read(after, through)):
            if source is None:
                # Bound before its first event, so it has one now.
                source = stream.info().source or "/outbox"
            for lines in to_lines(batch, source, types):
                sink.write(as_buffer(for_terminal(lines) if sink.is_terminal else lines))
            after = batch.last_id
            if stop.is_set():
                return
        # The last ID may be a dead one: what counts is that the stream has gone past it.
        if not follow or (through is not None and tail >= through):
            return
        pause_seconds = POLL_SECONDS_MIN if after > seen else min(pause_seconds * 1.5, POLL_SECONDS_MAX)
        stop.wait(pause_seconds)


class Sink:
    """Where the lines go: stdout, a file, or a FIFO that may see several readers."""

    def __init__(self, path: str | None, *, reopen: bool, stop: threading.Event) -> None:
        self._path = Path(path) if path and path != "-" else None
        self._stop = stop
        self._file = self._open()
        self._reopens = reopen and self._path is not None and self._path.is_fifo()

    @property
    def is_terminal(self) -> bool:
        return self._file.isatty()

    def write(self, lines: Any) -> None:
        """Write and flush; `BrokenPipeError` when nobody reads any more."""
        while not self._stop.is_set():
            try:
                rest = memoryview(lines)
                while rest:
                    rest = rest[self._file.write(rest) :]
                self._file.flush()
            except BrokenPipeError:
                if not self._reopens:
                    raise
                self.forget()
                self._file = self._open()
            except OSError as error:
                self.forget()
                raise OutboxError(f"{self._path or 'stdout'} cannot be written: {error.strerror}") from error
            else:
                return

    def forget(self) -> None:
        """Close without another try to write what is left."""
        if self._path is None:
            # Python flushes stdout once more at its end, and would complain then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
        else:
            self._file.close()

    def _open(self) -> IO[bytes]:
        if self._path is None:
            return sys.stdout.buffer
        try:
            descriptor = self._wait_for_reader() if self._path.is_fifo() else None
            # Unbuffered: lines come by the thousand, and nothing is left to flush at a close.
            return open(descriptor or self._path, "wb", buffering=0)  # noqa: PTH123 - closed by __exit__
        except OSError as error:
            raise UsageError(f"--output {self._path} cannot be written: {error.strerror}") from None

    def _wait_for_reader(self) -> int:
        """Open a FIFO when it has a reader. Not by a blocking open, which no signal would end."""
        while True:
            try:
                descriptor = os.open(self._path or "", os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                if self._stop.wait(POLL_SECONDS_MAX):
                    raise SystemExit(0) from None
            else:
                os.set_blocking(descriptor, True)
                return descriptor

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
