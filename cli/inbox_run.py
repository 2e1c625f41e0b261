"""`outbox inbox run`: a consumer as a process, with a handler by its name."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from cli import flags
from cli.settings import load_one, program_setting
from outbox.errors import UsageError

inbox_flag = click.option(
    "--inbox", "table", metavar="NAME", default="inbox", show_default=True, help="The inbox's table."
)
consumer_flag = click.option("--consumer", metavar="NAME", required=True, help="The consumer.")


@click.command(
    "run",
    short_help="Run a consumer with a handler of yours.",
    epilog=flags.examples(
        "outbox inbox run --database postgresql://app@db/billing --consumer billing \\",
        "    --stream file:///var/lib/outbox/shop --handler billing.events:handle",
        "outbox inbox run --database sqlite:///billing.db --consumer billing --once \\",
        "    --stream file:///shop --stream file:///payments --handler billing.events:handle",
    ),
)
@flags.database
@click.option(
    "--stream",
    "streams",
    metavar="URL",
    multiple=True,
    help="A stream to consume; may be repeated.  [env: OUTBOX_STREAM]",
)
@consumer_flag
@click.option("--handler", metavar="MODULE:FUNCTION", required=True, help="Called as function(connection, event).")
@click.option("--batches", is_flag=True, help="Call it as function(connection, events), once for each transaction.")
@click.option("--session", is_flag=True, help="Give it a SQLAlchemy Session instead of a Connection.")
@inbox_flag
@click.option(
    "--batch-events",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The most events in one transaction.",
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often an event is tried before it is parked.",
)
@click.option(
    "--from",
    "start",
    metavar="ID|TIME|earliest|latest",
    default="earliest",
    show_default=True,
    help="Where a consumer that is new to a stream begins.",
)
@click.option("--once", is_flag=True, help="Until every stream is at its tail, then exit 0.")
@click.option("--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]")
@flags.config
def run(
    database: str | None,
    streams: tuple[str, ...],
    consumer: str,
    handler: str,
    batches: bool,
    session: bool,
    table: str,
    batch_events: int,
    tries: int,
    start: str,
    once: bool,
    log_format: str | None,
    config: str | None,
) -> None:
    """Consume streams into the database by a Python function, exactly once, until told to stop.

    Any number of processes may run the same consumer. A process may be killed at any moment.
    SIGTERM or Ctrl-C: finish the transaction, then exit 0. Exit code 75 asks to be restarted, 4
    asks not to be before a person has looked.
    """
    from cli.log import configure
    from outbox.inbox import Inbox
    from outbox.inbox.engine import open_engine
    from stream_store import open_stream

    settings = load_one({"database": database, "stream": streams[0] if streams else None}, config)
    url, urls = settings.database, streams or (settings.stream,)
    configure(program_setting("log_format", log_format, config, "human"))
    function = _load(handler)
    engine: Any = open_engine(url, "outbox inbox")
    if session:
        from sqlalchemy.orm import sessionmaker

        engine = sessionmaker(engine)
    chosen = {"batch_handler": function} if batches else {"handler": function}
    found = Inbox(engine, consumer, table=table, batch_events=batch_events, tries=tries, start=_start(start))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_stream(each)) for each in urls]
        found.run(opened, once=once, stop=_stop_on_signals(), **chosen)


def _load(handler: str) -> Any:
    """The function that `module:function` names; modules are looked for in the working folder, too."""
    import pkgutil
    import sys

    if ":" not in handler:
        raise UsageError(f"--handler {handler}: write MODULE:FUNCTION, as in billing.events:handle")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = pkgutil.resolve_name(handler)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--handler {handler} cannot be loaded: {error}") from error
    if not callable(function):
        raise UsageError(f"--handler {handler} is not a function")
    return function


def _start(text: str) -> Any:
    """`earliest`, `latest`, an ID, or a time."""
    from datetime import datetime

    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--from {text}: it is earliest, latest, an ID or a time such as 2026-03-01T12:00:00Z"
        ) from error


def _stop_on_signals() -> Any:
    """Set by the first SIGTERM or SIGINT; a second one ends the process at once, as a crash would."""
    import os
    import signal
    import threading

    stop = threading.Event()

    def handle(_: int, __: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop
