"""`outbox flux`: the way back in. JSON lines become rows of an out table."""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import InvalidEvent, OutboxError, Transient, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox.database import DatabaseUrl, Session
    from outbox.names import OutTable
    from outbox.outbox import Outbox
    from outbox.row import Encoder, Row

READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
# A slow producer's lines are committed when no more came for this long.
IDLE_SECONDS = 0.1
# With --skip-bad, why a line is bad is said this many times.
REASONS_SAID_MAX = 5


@dataclass
class Count:
    """Lines so far. `committed_through` is the last line whose batch is in the out table."""

    events: int = 0
    bad: int = 0
    committed_through: int = 0


@click.command(
    short_help="Bring JSON lines into the out table.",
    epilog=flags.examples(
        "outbox tap --stream file:///var/lib/outbox/a | outbox flux --database sqlite:///b.db",
        "mkfifo events && outbox flux --database postgresql://web@db/shop events",
        "outbox flux --database postgresql://web@db/shop --skip-bad bad.jsonl < events.jsonl",
    ),
)
@click.argument("file", required=False, metavar="[FILE]")
@flags.database
@flags.outbox
@click.option(
    "--batch",
    "batch_rows",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Lines a transaction.",
)
@click.option(
    "--skip-bad", metavar="FILE", help="Append bad lines to this file and go on, instead of ending at the first."
)
@click.option(
    "--max-data-bytes", type=click.IntRange(1), metavar="N", help="The largest data of an event; 1 MiB by default."
)
@flags.config
@flags.as_json
def flux(
    file: str | None,
    database: str | None,
    outbox: str | None,
    batch_rows: int,
    skip_bad: str | None,
    max_data_bytes: int | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Bring JSON lines from FILE, a FIFO or stdin into the out table, until their end.

    A line is one object in CloudEvents' JSON format, as `outbox tap` writes it: type,
    subject, time, datacontenttype, data or data_base64; all other members become headers.
    Only type is needed. id, source, specversion and previd are ignored: the out table gives
    each event an ID of its own. Empty lines are passed over.

    Lines go in by batches, each in one transaction. At a bad line nothing of its batch is
    written; the error names the line, and how many lines were committed before it. When
    the input pauses, what has come so far is committed.
    """
    from outbox.lines import LINE_WORDS
    from outbox.row import DATA_BYTES_MAX, Encoder

    settings = load_one({"database": database, "name": outbox}, config)
    url, table = settings.database, settings.table
    encoder = Encoder(max_data_bytes or DATA_BYTES_MAX, words=LINE_WORDS)
    count = Count()
    with _input(file) as source, _bad_file(skip_bad) as bad, _reported(count):
        _pour(source, bad, url, table, batch_rows, encoder, count)
    if as_json:
        printing.print_json({"outbox": str(table), "events": count.events, "bad": count.bad})
    else:
        skipped = f", {printing.counted(count.bad, 'bad line')} appended to {skip_bad}" if count.bad else ""
        printing.say(f"{printing.counted(count.events, 'event')} written to {table}{skipped}")


def _pour(
    source: IO[bytes],
    bad: IO[bytes] | None,
    url: DatabaseUrl,
    table: OutTable,
    batch_rows: int,
    encoder: Encoder,
    count: Count,
) -> None:
    from outbox.database import Session
    from outbox.outbox import Outbox

    writer = Outbox(table.name, schema=table.schema)
    with Session(url, table, application="outbox flux") as session:
        for first, lines in read_batches(source.fileno(), batch_rows):
            last = first + len(lines) - 1
            rows, bad_lines = _sort_out(first, lines, encoder, keep_bad=bad is not None, bad_before=count.bad)
            # Before the commit: a full disk must not make committed lines look uncommitted.
            if bad is not None and bad_lines:
                bad.writelines(line + b"\n" for line in bad_lines)
                bad.flush()
            if rows:
                _commit(session, writer, rows, _lines(first, last))
            count.events += len(rows)
            count.bad += len(bad_lines)
            count.committed_through = last


def _sort_out(
    first: int, lines: list[bytes], encoder: Encoder, *, keep_bad: bool, bad_before: int
) -> tuple[list[Row], list[bytes]]:
    """The rows of the good lines, and the bad lines; or an error at the first bad one."""
    from outbox.lines import parse_line

    rows: list[Row] = []
    bad_lines: list[bytes] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            rows.append(encoder.encode(**parse_line(line)))
        except InvalidEvent as error:
            if not keep_bad:
                raise InvalidEvent(f"line {number:,} is bad: {error}") from error
            if bad_before + len(bad_lines) < REASONS_SAID_MAX:
                printing.say(f"line {number:,} is bad: {error}")
            bad_lines.append(line)
    return rows, bad_lines


def _commit(session: Session, writer: Outbox, rows: list[Row], what: str) -> None:
    from outbox.connections import open_connection
    from outbox.database import is_driver_error

    inserted = False
    try:
        with session.transaction():
            writer.insert(*open_connection(session.driver), rows)
            inserted = True
    except Transient as error:
        if inserted:
            # The answer to COMMIT was lost, so it may have been done.
            raise Transient(f"{error}; whether the database has committed {what} is not known") from error
        raise
    except Exception as error:
        if isinstance(error, OutboxError) or not is_driver_error(error):
            raise
        raise refusal(session, what, error) from error


def refusal(session: Session, what: str, error: Exception) -> OutboxError:
    """What a driver's error about an INSERT means to a person."""
    from outbox.database import one_line

    return OutboxError(
        f"{session.url} refused {what}: {one_line(error)}. Is {session.table} installed (`outbox init`), "
        "and may this role emit (`outbox init --grant-writer`)?"
    )


def read_batches(descriptor: int, batch_rows: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines as they come, with the number of the first: full batches, or what came before a pause."""
    number, lines, rest, ended = 1, list[bytes](), b"", False
    while not ended:
        # Waiting for ever while nothing is pending; a plain file never lets us wait.
        ready, _, _ = select.select([descriptor], [], [], IDLE_SECONDS if lines else None)
        if ready:
            chunk = os.read(descriptor, READ_BYTES)
            ended = not chunk
            *whole, rest = (rest + chunk).split(b"\n")
            lines += whole
            if ended and rest:
                lines.append(rest)
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidEvent(
                    f"line {number + len(lines):,} is bad: it is longer than {printing.size(LINE_BYTES_MAX)}; expected is "
                    "one event a line, each ended by a line break"
                )
        while len(lines) >= batch_rows or (lines and (ended or not ready)):
            yield number, lines[:batch_rows]
            number += len(lines[:batch_rows])
            lines = lines[batch_rows:]


@contextmanager
def _input(file: str | None) -> Iterator[IO[bytes]]:
    if file is None or file == "-":
        yield sys.stdin.buffer
        return
    try:
        # Unbuffered: `read_batches` waits on the descriptor itself. A FIFO waits here for its writer.
        opened = Path(file).open("rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    with opened as source:
        yield source


@contextmanager
def _bad_file(path: str | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    try:
        opened = Path(path).open("ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"--skip-bad {path} cannot be written: {error.strerror}") from None
    with opened as bad:
        yield bad


@contextmanager
def _reported(count: Count) -> Iterator[None]:
    """Say with any error how far the work had come, so that it can go on from there."""
    try:
        yield
    except KeyboardInterrupt:
        printing.say(_progress(count))
        raise
    except OutboxError as error:
        error.args = (f"{error}\n{_progress(count)}",)
        raise
    except Exception:
        printing.say(_progress(count))
        raise


def _progress(count: Count) -> str:
    if not count.committed_through:
        return "nothing was committed"
    through = count.committed_through
    return (
        f"{_lines(1, through)} {'was' if through == 1 else 'were'} committed ({printing.counted(count.events, 'event')}); "
        f"go on with line {through + 1:,}"
    )


def _lines(first: int, last: int) -> str:
    return f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"
