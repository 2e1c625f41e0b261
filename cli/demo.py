"""`outbox demo`: the whole thing once, with crashes on the way, on one's own machine."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli import flags, printing
from cli.settings import keep_secret
from outbox.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from connector.demo import Moment, Outcome

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
@click.option("--keep", is_flag=True, help="Keep the demo's tables in the database given by --database.")
@flags.as_json
def demo(database: str | None, folder: str, orders: int, kills: int, keep: bool, as_json: bool) -> None:
    """Writers place orders, each with its event in one transaction, and roll some back; the
    relay that brings the events to the stream is killed on the way. At the end the business
    table is compared with the stream: nothing lost, nothing doubled.

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
    show = Demo(url, OutTable("outbox_demo"), place / "stream", orders=orders, kills=kills)
    show.prepare()
    try:
        if as_json:
            outcome = show.run(lambda _: None)
            printing.print_json({**asdict(outcome), "ok": outcome.ok})
        else:
            outcome = _watch(show, orders, str(url))
            _print_outcome(outcome, place, url.url, given=database is not None)
    finally:
        if database is not None and not keep:
            show.remove()
    if not outcome.ok:
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


def _watch(show: object, orders: int, database: str) -> Outcome:
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

        def tell(moment: Moment) -> None:
            progress.update(committed, completed=min(moment.committed, orders))
            # Rolled-back orders drew IDs too: the last ID is a little above the number of orders.
            progress.update(relayed, completed=moment.relayed, total=max(orders, moment.relayed))
            if moment.message:
                progress.console.print(f"  {moment.message}")

        return show.run(tell)


def _print_outcome(outcome: Outcome, place: Path, database: str, *, given: bool) -> None:
    found = outcome.verification
    printing.print_table(
        ("the proof", ""),
        [
            ("orders committed", f"{outcome.orders:,}"),
            ("orders rolled back", f"{outcome.rolled_back:,}"),
            ("relay killed (SIGKILL)", f"{outcome.kills}"),
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
    shown = f"sqlite:///{_short(place)}/shop.db" if not given else printing.redacted(database)
    click.echo(
        f"""
{"Nothing lost, nothing doubled." if outcome.ok else "THIS IS WRONG."} Took {outcome.seconds:.0f} s.

Next:
  {_program()} tap --stream file://{_short(place)}/stream --from earliest
  {_program()} verify --database {shown} --outbox outbox_demo --stream file://{_short(place)}/stream
  {_program()} init --database postgresql://you@localhost/yours   # then emit in your own transactions"""
    )


def _program() -> str:
    """The program as it has to be typed here: it may not be on the PATH."""
    return "outbox" if shutil.which("outbox") else _short(Path(sys.argv[0]).absolute())


def _short(place: Path) -> str:
    try:
        return str(place.relative_to(Path.cwd()))
    except ValueError:
        return str(place)
