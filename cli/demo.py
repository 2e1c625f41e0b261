"""`outbox demo`: the whole thing once, with crashes on the way, on one's own machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli import flags, printing
from cli.settings import keep_secret
from outbox.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from connector.demo import Moment, Outcome

# The Delta tables of the demo, as [[outbox.table]] of its outbox.toml.
_FIELDS = 'schema = "order string, customer string, total int"'
TABLES = {
    "events": ['mode = "append"'],
    "last_orders": ['mode = "upsert"', 'key = ["customer"]', _FIELDS],
    "customer_history": ['mode = "scd2"', 'key = ["customer"]', _FIELDS],
}
COLUMNS_SHOWN = ("id", "_event_id", "type", "customer", "total", "data", "_valid_from", "_valid_to", "_is_current")
# Only a folder that the demo made itself is emptied for the next run.
MARK = ".outbox-demo"


@click.command(
    short_help="See it work: writers, kills, and the proof.",
    epilog=flags.examples("outbox demo", "outbox demo --database postgresql://me@localhost/scratch --orders 20000"),
)
@flags.database
@click.option(
    "--folder",
    default="demo-data",
    show_default=True,
    metavar="FOLDER",
    help="Where the demo keeps its database and stream.",
)
@click.option(
    "--orders", default=10_000, show_default=True, type=click.IntRange(min=1), help="How many orders are placed."
)
@click.option(
    "--kills",
    default=3,
    show_default=True,
    type=click.IntRange(min=0),
    help="How often the relay is killed on the way.",
)
@click.option(
    "--sink-kills",
    default=2,
    show_default=True,
    type=click.IntRange(min=0),
    help="How often the Spark sink is killed on the way.",
)
@click.option("--stream-only", is_flag=True, help="End at the stream: no Spark, no Delta tables.")
@click.option("--keep", is_flag=True, help="Keep the demo's tables in the database given by --database.")
@flags.as_json
def demo(
    database: str | None,
    folder: str,
    orders: int,
    kills: int,
    sink_kills: int,
    stream_only: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Writers place orders, each with its event in one transaction, and roll some back. A relay
    brings the events to a stream, a Spark sink brings the stream into three Delta tables
    (append, upsert, scd2), and both are killed on the way. At the end the business table is
    compared with the stream, and the stream with each table: nothing lost, nothing doubled.

    By default everything is in FOLDER, on SQLite. With --database the tables outbox_demo and
    outbox_demo_orders are made there for the time of the demo.
    """
    from connector.demo import Demo
    from outbox.database import DatabaseUrl
    from outbox.names import OutTable

    given = DatabaseUrl.parse(database) if database else None
    if given is not None:
        keep_secret(given)
    place = _fresh_folder(Path(folder))
    url = given or DatabaseUrl.parse(f"sqlite:///{place / 'shop.db'}")
    config = None if stream_only or not _has_spark() else _write_config(place, None if given else str(url))
    show = Demo(
        url, OutTable("outbox_demo"), place / "stream",
        orders=orders, kills=kills, sink_config=config, sink_kills=sink_kills,
    )  # fmt: skip
    show.prepare()
    try:
        if as_json:
            outcome = show.run(lambda _: None)
            proof = _prove_tables(config, url.url, quiet=True) if config else None
            printing.print_json(
                {**asdict(outcome), "ok": outcome.ok and proof in (None, 0), "tables": sorted(TABLES) if config else []}
            )
        else:
            outcome = _watch(show, orders, str(url), config)
            _print_outcome(outcome, given=database is not None)
            proof = _prove_tables(config, url.url) if config else None
            _print_next(outcome, place, url.url, given=database is not None, config=config)
    finally:
        if database is not None and not keep:
            show.remove()
    if not outcome.ok or proof not in (None, 0):
        raise CheckFailed("the demo found a difference between orders and stream: please report this")


def _fresh_folder(folder: Path) -> Path:
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).exists():
                raise UsageError(f"{folder} is not a folder of an earlier demo: choose another with --folder")
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
    except OSError as error:
        raise UsageError(f"--folder {folder} cannot be used: {error.strerror}; choose another") from None
    return folder.resolve()


def _has_spark() -> bool:
    from importlib.util import find_spec

    return find_spec("pyspark") is not None and find_spec("delta") is not None


def _write_config(place: Path, database: str | None) -> Path:
    """The outbox.toml of the demo, as a user would write it. A given database's URL may hold a password: not in a file."""
    lines = [
        "# Written by `outbox demo`.",
        "[[outbox]]",
        'name = "outbox_demo"',
        *([f'database = "{database}"'] if database else []),
        f'stream = "file://{place}/stream"',
    ]
    for name, keys in TABLES.items():
        lines += ["", "[[outbox.table]]", f'table = "{place}/{name}"', *keys]
    path = place / "outbox.toml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _prove_tables(config: Path, database: str, *, quiet: bool = False) -> int:
    """`outbox verify` over everything, as a user would call it; its exit code."""
    command = [sys.executable, "-m", "cli.main", "verify", "--config", str(config)]
    environment = {**os.environ, "OUTBOX_DATABASE_URL": database}
    if not quiet:
        click.echo(f"\n$ {_program()} verify --config {_short(config)}")
    return subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL if quiet else None, check=False
    ).returncode


def _print_tables(place: Path) -> None:
    """The last rows of each table, read by another implementation of Delta than the one that wrote them."""
    from deltalake import DeltaTable

    for name in TABLES:
        rows = DeltaTable(str(place / name)).to_pyarrow_table()
        id_column = "id" if "id" in rows.column_names else "_event_id"
        last = rows.sort_by([(id_column, "descending")]).slice(0, 3)
        shown = [column for column in COLUMNS_SHOWN if column in last.column_names]
        printing.print_table(
            (f"{name} ({rows.num_rows:,} rows)", *shown),
            [("", *(_cell(row[column]) for column in shown)) for row in last.select(shown).to_pylist()],
        )


def _cell(value: object) -> str:
    text = value.strftime("%H:%M:%S.%f")[:-3] if isinstance(value, datetime) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _watch(show: object, orders: int, database: str, config: Path | None) -> Outcome:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from connector.demo import Demo

    assert isinstance(show, Demo)
    console = Console(file=sys.stderr, highlight=False)
    console.print(
        f"out table outbox_demo in {printing.redacted(database)}; four writers, one order in ten rolled back\n"
    )
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        committed = progress.add_task("orders committed", total=orders)
        relayed = progress.add_task("relayed through ID", total=orders)
        materialized = progress.add_task("in every Delta table", total=orders) if config else None

        def tell(moment: Moment) -> None:
            progress.update(committed, completed=min(moment.committed, orders))
            # Rolled-back orders drew IDs too: the last ID is a little above the number of orders.
            progress.update(relayed, completed=moment.relayed, total=max(orders, moment.relayed))
            if materialized is not None:
                progress.update(materialized, completed=moment.materialized or 0, total=max(orders, moment.relayed))
            if moment.message:
                progress.console.print(f"  {moment.message}")

        return show.run(tell)


def _print_outcome(outcome: Outcome, *, given: bool) -> None:
    found = outcome.verification
    printing.print_table(
        ("the proof", ""),
        [
            ("orders committed", f"{outcome.orders:,}"),
            ("orders rolled back", f"{outcome.rolled_back:,}"),
            ("relay killed (SIGKILL)", f"{outcome.kills}"),
            ("sink killed (SIGKILL)", f"{outcome.sink_kills}"),
            ("events in the stream", f"{found.events:,}"),
            ("IDs proven dead", f"{found.dead:,}" + ("  (SQLite takes a rolled-back ID back)" if not given else "")),
            ("lost", f"{outcome.missing + found.lost}"),
            ("doubled", f"{outcome.doubled + found.duplicated}"),
            ("verify", "ok" if found.ok else "NOT OK: " + "; ".join(found.problems)),
        ],
    )
    click.echo("the last events:")
    for line in outcome.sample:
        click.echo("  " + line)


def _print_next(outcome: Outcome, place: Path, database: str, *, given: bool, config: Path | None) -> None:
    shown = f"sqlite:///{_short(place)}/shop.db" if not given else printing.redacted(database)
    stream = f"file://{_short(place)}/stream"
    if config is not None:
        _print_tables(place)
        more = [
            f"replay --stream {stream} --table {_short(place)}/last_orders --rebuild",
            f"status --config {_short(config)}",
        ]
    else:
        more = ["demo      # with `pip install 'outbox-connector[spark]'` and Java 17: on to Delta tables"]
    lines = [
        f"tap --stream {stream} --from earliest",
        f"verify --database {shown} --outbox outbox_demo --stream {stream}",
        *more,
        "init --database postgresql://you@localhost/yours   # then emit in your own transactions",
    ]
    click.echo(
        f"\n{'Nothing lost, nothing doubled.' if outcome.ok else 'THIS IS WRONG.'} Took {outcome.seconds:.0f} s.\n\nNext:"
    )
    for line in lines:
        click.echo(f"  {_program()} {line}")


def _program() -> str:
    """The program as it has to be typed here: it may not be on the PATH."""
    return "outbox" if shutil.which("outbox") else _short(Path(sys.argv[0]).absolute())


def _short(place: Path) -> str:
    try:
        return str(place.relative_to(Path.cwd()))
    except ValueError:
        return str(place)
