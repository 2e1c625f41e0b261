"""`outbox emit`: one event from the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from cli import flags, printing
from cli.flux import refusal
from cli.settings import load_one
from outbox.errors import InvalidEvent, OutboxError, UsageError


@click.command(
    short_help="Emit one event.",
    epilog=flags.examples(
        "outbox emit --database sqlite:///shop.db --type order.paid --subject 17 --data '{\"total\": 12.50}'",
        "outbox emit --database sqlite:///shop.db --type order.deleted --subject 17        # a tombstone",
        "outbox emit --database sqlite:///shop.db --type report.made --data @report.json --header tenant=acme",
        "outbox emit --database sqlite:///shop.db --type photo.taken --content-type image/png --data @photo.png",
    ),
)
@flags.database
@flags.outbox
@click.option("--type", "event_type", required=True, metavar="TYPE", help="What happened, such as order.paid.")
@click.option("--subject", metavar="TEXT", help="The entity that it happened to.")
@click.option(
    "--data", metavar="JSON|@FILE|-", help="JSON text, a file, or - for stdin. Without it the event is a tombstone."
)
@click.option(
    "--content-type", metavar="TYPE", help="The data's media type. If it is not JSON, the data goes in as bytes."
)
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A CloudEvents extension attribute; repeatable."
)
@click.option(
    "--max-data-bytes", type=click.IntRange(1), metavar="N", help="The largest data of the event; 1 MiB by default."
)
@flags.config
@flags.as_json
def emit(
    database: str | None,
    outbox: str | None,
    event_type: str,
    subject: str | None,
    data: str | None,
    content_type: str | None,
    headers: tuple[str, ...],
    max_data_bytes: int | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Emit one event into the out table, in a transaction of its own."""
    from outbox.connections import open_connection
    from outbox.database import Session, is_driver_error
    from outbox.outbox import Outbox
    from outbox.row import DATA_BYTES_MAX, Encoder

    settings = load_one({"database": database, "name": outbox}, config)
    table = settings.table
    payload = None if data is None else _read(data)
    is_json = content_type is None or re.fullmatch(r"[^;]*[/+]json\s*(;.*)?", content_type, re.IGNORECASE)
    limit_bytes = max_data_bytes or DATA_BYTES_MAX
    if payload is not None:
        _check_size(payload, limit_bytes)
    row = Encoder(limit_bytes).encode(
        event_type,
        subject,
        data_json=_json_text(payload) if payload is not None and is_json else None,
        data_bytes=payload if payload is not None and not is_json else None,
        datacontenttype=content_type,
        headers=dict(_header(text) for text in headers),
    )
    with Session(settings.database, table, application="outbox emit") as session:
        try:
            with session.transaction():
                Outbox(table.name, schema=table.schema).insert(*open_connection(session.driver), [row])
        except Exception as error:
            if isinstance(error, OutboxError) or not is_driver_error(error):
                raise
            raise refusal(session, "the event", error) from error
    if as_json:
        printing.print_json({"outbox": str(table), "events": 1})
    else:
        printing.say(f"1 event of type {event_type} written to {table}")


def _read(data: str) -> bytes:
    if data == "-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--data {data}: the file cannot be read: {error.strerror}") from None


def _check_size(payload: bytes, limit_bytes: int) -> None:
    if len(payload) > limit_bytes:
        raise InvalidEvent(
            f"--data has {len(payload):,} bytes, the limit is {limit_bytes:,}: put it into an object store and emit "
            "its address, or raise --max-data-bytes"
        )


def _json_text(payload: bytes) -> str:
    """The text, when it is JSON. The encoder looks again, but speaks to programmers."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise UsageError("--data is not UTF-8: JSON is; for other data give its --content-type") from None
    try:
        # Numbers stay text: Python's int refuses 4300 digits.
        json.loads(text, parse_constant=_refuse_constant, parse_int=str, parse_float=str)
    except RecursionError:
        raise InvalidEvent("--data is nested too deeply: make it flatter") from None
    except ValueError as error:
        raise InvalidEvent(
            f"--data is not JSON: {error}; text needs its double quotes ('\"text\"'), other data its --content-type"
        ) from None
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--header {text!r}: write NAME=VALUE")
    return name, value
