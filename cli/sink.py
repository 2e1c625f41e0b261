"""`outbox sink`: the stream into Delta tables."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import click

from cli import flags, tables
from cli.settings import load_one, program_setting
from outbox.errors import UsageError

INTERRUPTED = 130


@click.command(
    short_help="Materialize the stream into Delta tables.",
    epilog=flags.examples(
        "outbox sink --stream file:///var/lib/outbox/shop --table /lake/events",
        "outbox sink --stream file:///var/lib/outbox/shop --table /lake/orders --mode upsert --key order \\",
        "            --types 'order.*' --schema 'order string, customer string, total double' --once",
        "outbox sink --config outbox.toml --every 60s          # every [[outbox.table]] of the file",
        "outbox sink --config outbox.toml --master spark://spark:7077 --conf spark.executor.memory=4g",
    ),
)
@flags.stream
@tables.table_flags
@tables.description_flags
@click.option("--once", is_flag=True, help="Until every table is at the stream's tail, then exit 0.")
@click.option("--every", metavar="DURATION", help="Look for new events this often; 500ms by default.")
@click.option(
    "--batch-rows", metavar="N", type=click.IntRange(min=1), help="The most events of one commit; 1000000 by default."
)
@click.option(
    "--after-restore",
    type=click.Choice(["stop", "replay"]),
    default="stop",
    help="After a RESTORE of a table: stop with exit code 4 (the default), or write what it lost again.",
)
@click.option(
    "--optimize-every",
    metavar="DURATION",
    help="OPTIMIZE each table this often, by its own history, between batches; never by default.",
)
@click.option(
    "--vacuum-after",
    metavar="DURATION",
    help="After each OPTIMIZE, VACUUM files that have been unused for so long; never by default.",
)
@tables.spark_flags
@flags.outbox
@click.option("--log-format", type=click.Choice(["human", "json"]), help="The log on stderr.  [env: OUTBOX_LOG_FORMAT]")
@click.option("--public-api", is_flag=True, help="Commit through Delta's public interface alone (slower).")
@click.option("--no-lock", is_flag=True, hidden=True, help="Take no lock on local tables; for tests.")
@flags.config
def sink(
    stream: str | None,
    once: bool,
    every: str | None,
    batch_rows: int | None,
    after_restore: str,
    optimize_every: str | None,
    vacuum_after: str | None,
    master: str | None,
    conf: tuple[str, ...],
    outbox: str | None,
    log_format: str | None,
    public_api: bool,
    no_lock: bool,
    config: str | None,
    **described: Any,
) -> int:
    """Materialize the stream into Delta tables, exactly once each, until told to stop.

    Each table carries its own bookmark, in the same commit as its rows: the sink may be
    killed at any moment, a second one does no harm, and there is no checkpoint to lose. A
    table that is not there is made. A table that is named alone goes on as it was made.

    A table that cannot go on does not hold up the others: the log names it, it is looked at
    again every minute, and the exit code is that of the worst table once the others are done.

    SIGTERM or Ctrl-C: finish the commit that is under way, then exit 0; a second one: exit at
    once, with 130. Exit code 4 asks a person to look first.
    """
    from cli.log import configure
    from connector.options import parse_duration_seconds

    settings = load_one({"stream": stream, "name": outbox}, config)
    url = settings.stream
    every_seconds = parse_duration_seconds(every) if every else None
    optimize_seconds = parse_duration_seconds(optimize_every) if optimize_every else None
    vacuum_seconds = parse_duration_seconds(vacuum_after) if vacuum_after else None
    if vacuum_after and not optimize_every:
        raise UsageError(
            "--vacuum-after goes with --optimize-every, which says how often: or run `outbox table vacuum` by hand"
        )
    named = described.pop("tables")
    wanted = tables.specs(settings, named, described)
    configure(program_setting("log_format", log_format, config, "human"))

    stop = threading.Event()

    def handle(_: int, __: object) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    spark = tables.open_spark(master, conf, "outbox sink")
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)

    from spark_sink.maintenance import Maintenance
    from spark_sink.materializer import POLL_SECONDS, Materializer
    from spark_sink.stored import stored_spec
    from spark_sink.table_sink import ROWS_MAX, SinkOptions

    wanted = [
        spec if tables.is_described(settings, str(spec.table), described) else stored_spec(spark, spec.table) or spec
        for spec in wanted
    ]
    options = SinkOptions(
        rows_max=batch_rows or ROWS_MAX,
        internals=False if public_api else None,
        lock=not no_lock,
        after_restore=after_restore,
    )
    with Materializer(spark, url, wanted, options) as materializer:
        upkeep = Maintenance(materializer.sinks, optimize_seconds, vacuum_seconds)

        def between() -> None:
            if not stop.is_set():
                upkeep.run_due(materializer.failed)

        if once:
            try:
                materializer.run_once(stop=stop)
            finally:
                between()
        else:
            materializer.run(stop, POLL_SECONDS if every_seconds is None else every_seconds, between)
    return 0
