"""`outbox relay`: the daemon."""

from __future__ import annotations

import os
import signal
import threading

import click

from cli import flags
from cli.settings import FENCES, load_all, program_setting

INTERRUPTED = 130


@click.command(
    short_help="Put committed events into the stream.",
    epilog=flags.examples(
        "outbox relay --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox relay --database sqlite:///shop.db --stream file:///var/lib/outbox/shop --once",
        "outbox relay --config outbox.toml --log-format json          # every outbox of the file",
        "outbox relay --config outbox.toml --outbox billing_outbox    # one of them",
    ),
)
@flags.database
@flags.stream
@flags.outbox
@click.option("--once", is_flag=True, help="Until the out table is drained, then exit 0.")
@flags.setting(
    "delete_after",
    "WHEN",
    "Delete rows when they are durable in the stream (the default), materialized by every known sink, "
    "at an age such as 24h, or never.",
)
@flags.setting(
    "on_blocker",
    "WHAT",
    "What to do with a transaction that holds the stream back: wait (the default) or 'terminate after 5m'.",
)
@flags.setting(
    "fence", "|".join(FENCES), "How to settle gaps: by listing lock holders where possible, or always by a barrier."
)
@flags.setting("batch_rows", "N", "The most rows to read by one statement; 1000000 by default.")
@flags.setting("idle_poll", "DURATION", "How long to wait between looks at an idle out table; 80ms by default.")
@flags.setting("lease", "DURATION", "How long a silent leader stays leader before a standby takes over; 5s by default.")
@flags.setting(
    "retain",
    "WHAT",
    "What the stream keeps: an age (30d), a size (50GB), '1000000 events', or several of them with commas; everything by "
    "default. What a known reader has not read yet is kept.",
)
@click.option("--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]")
@flags.config
def relay(
    database: str | None,
    stream: str | None,
    outbox: str | None,
    once: bool,
    delete_after: str | None,
    on_blocker: str | None,
    fence: str | None,
    batch_rows: str | None,
    idle_poll: str | None,
    lease: str | None,
    retain: str | None,
    log_format: str | None,
    config: str | None,
) -> int:
    """Put each committed event exactly once, in ID order, into the stream, until told to stop.

    Any number of relays may be started for the same outbox: one leads, the others stand by.
    A relay may be killed at any moment. With outbox.toml, one process serves every outbox
    of the file.

    SIGTERM or Ctrl-C: finish what is under way, then exit 0; a second one: exit at once,
    with 130. Exit code 75 asks to be restarted, 4 asks not to be before a person has looked.
    """
    from cli.log import configure

    found = load_all(
        {
            "database": database,
            "stream": stream,
            "name": outbox,
            "delete_after": delete_after,
            "on_blocker": on_blocker,
            "fence": fence,
            "batch_rows": batch_rows,
            "idle_poll": idle_poll,
            "lease": lease,
            "retain": retain,
        },
        config,
    )
    options = [settings.relay_options() for settings in found]
    configure(program_setting("log_format", log_format, config, "human"))

    import structlog

    from connector.supervisor import run

    log = structlog.get_logger()

    stop = threading.Event()

    def handle(number: int, _: object) -> None:
        if stop.is_set():
            # Safe at any moment, as a crash is; and no thread could keep us from it.
            os._exit(INTERRUPTED)
        stop.set()
        log.info(f"{signal.Signals(number).name}: finishing what is under way; once more to exit at once")

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return run(options, once=once, stop=stop)
