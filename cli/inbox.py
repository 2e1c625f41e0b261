"""`outbox inbox`: exactly-once consumption into a database, installed, run and looked after."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.inbox_run import consumer_flag, inbox_flag, run
from cli.settings import load_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox.database import Session
    from outbox.inbox.parking import Choice, Standing

SHOWN_MAX = 100

_outbox_id = click.option(
    "--outbox-id", metavar="ID", help="Only events of this outbox, where several streams flow in."
)
_place = flags.together(flags.database, inbox_flag, flags.config, flags.as_json)
_choice = flags.together(
    click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="This event; may be repeated."),
    click.option("--subject", metavar="SUBJECT", help="Every parked event of a subject."),
    click.option("--all", "everything", is_flag=True, help="Every parked event of the consumer."),
    _outbox_id,
)


@click.group(short_help="Consume streams into a database, exactly once.")
def inbox() -> None:
    """Consume streams into a database: effects and position commit in one transaction.

    `outbox inbox init` makes the tables, `outbox.Inbox` in your program or `outbox inbox run`
    consumes. Events that fail again and again are parked, with those of their subject behind them.
    """


@inbox.command(
    short_help="Install the inbox's tables.",
    epilog=flags.examples(
        "outbox inbox init --database postgresql://owner@db/billing",
        "outbox inbox init --database postgresql://owner@db/billing --print | less     # look first",
    ),
)
@flags.database
@inbox_flag
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL for the database's own client; change nothing."
)
@flags.config
@flags.as_json
def init(database: str | None, table: str, only_print: bool, config: str | None, as_json: bool) -> None:
    """Install the inbox's tables in the consumer's own database. Safe to run again."""
    from outbox.inbox import schema
    from outbox.names import OutTable

    url, name = load_one({"database": database}, config).new_database, OutTable.parse(table)
    if only_print:
        click.echo(schema.render(url.dialect, name), nl=False)
        return
    installed = schema.install(url, name)
    if as_json:
        printing.print_json({"inbox": str(name), **asdict(installed)})
        return
    state = "installed" if installed.created else "was installed already"
    facts = [("inbox", f"{name} {state} in {url}"), ("inbox id", installed.inbox_id)]
    printing.print_facts([*facts, ("schema version", installed.version)])


@inbox.command(
    short_help="Show where consumers stand.",
    epilog=flags.examples("outbox inbox status --database postgresql://app@db/billing --json"),
)
@click.option("--consumer", metavar="NAME", help="Only this one.")
@_place
def status(consumer: str | None, database: str | None, table: str, config: str | None, as_json: bool) -> None:
    """Show where each consumer stands in each stream, what it is failing at, and what is parked.

    How far a stream is ahead is the stream's to say: `outbox stream info`.
    """
    from outbox.inbox import parking

    with _session(database, table, config) as session:
        found = parking.standings(session, consumer)
    if as_json:
        printing.print_json(
            {"inbox": table, "consumers": [{**printing.plain(each), "parked": each.parked} for each in found]}
        )
        return
    if not found:
        printing.print_facts([("consumers", "none has begun yet")])
        return
    header = (
        "consumer",
        "stream",
        "reached",
        "handled",
        "moved at",
        "failed",
        "waiting",
        "due",
        "dropped",
        "failing at",
    )
    printing.print_table(header, [_row(each) for each in found])


@inbox.command(
    short_help="Show parked events.",
    epilog=flags.examples("outbox inbox parked --database sqlite:///billing.db --consumer billing --subject order-17"),
)
@consumer_flag
@click.option("--subject", metavar="SUBJECT", help="Only of this subject.")
@_outbox_id
@click.option("--dropped", is_flag=True, help="Those that were dropped, too.")
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN_MAX, show_default=True, help="The most to show.")
@_place
def parked(
    consumer: str,
    subject: str | None,
    outbox_id: str | None,
    dropped: bool,
    limit: int,
    database: str | None,
    table: str,
    config: str | None,
    as_json: bool,
) -> None:
    """Show the events that a consumer could not take, and those that wait behind them."""
    from outbox.inbox import parking

    with _session(database, table, config) as session:
        found = parking.find(session, consumer, outbox_id=outbox_id, subject=subject, with_dropped=dropped, limit=limit)
    if as_json:
        printing.print_json({"consumer": consumer, "parked": found})
        return
    if not found:
        printing.print_facts([("parked", f"nothing of consumer {consumer}")])
        return
    rows = [
        (
            str(each.id),
            each.type or "–",
            each.subject or "–",
            each.state,
            str(each.tries),
            printing.shown(each.parked_at),
            each.error or "–",
        )
        for each in found
    ]
    printing.print_table(("id", "type", "subject", "state", "tries", "parked at", "error"), rows)
    if len(found) == limit:
        printing.say("there may be more: --limit shows them")


@inbox.command(
    short_help="Take parked events up again.",
    epilog=flags.examples(
        "outbox inbox redrive --database sqlite:///billing.db --consumer billing --id 1042",
        "outbox inbox redrive --database sqlite:///billing.db --consumer billing --all      # after the handler was mended",
    ),
)
@consumer_flag
@_choice
@_place
def redrive(consumer: str, **given: Any) -> None:
    """Let the consumer take failed events up again, in order per subject.

    The running consumer does it at once, or the next one that is started. Events that
    wait behind a failed one follow it. May be killed at any moment: run it again.
    """
    from outbox.inbox import parking

    _decide(consumer, given, parking.redrive, "redriven")


@inbox.command(
    short_help="Decide that parked events never take effect.",
    epilog=flags.examples("outbox inbox drop --database sqlite:///billing.db --consumer billing --id 1042"),
)
@consumer_flag
@_choice
@_place
def drop(consumer: str, **given: Any) -> None:
    """Decide that parked events never take effect; those that wait behind them go on.

    Their content is erased; that they were dropped, and why they failed, is kept.
    """
    from outbox.inbox import parking

    _decide(consumer, given, parking.drop, "dropped")


@inbox.command(
    short_help="Remove a consumer's position in a stream.",
    epilog=flags.examples(
        "outbox inbox forget --database sqlite:///billing.db --consumer billing --outbox-id 6f6b4b1e-… --stream file:///shop"
    ),
)
@consumer_flag
@click.option("--outbox-id", metavar="ID", required=True, help="The outbox whose stream it has read: see status.")
@click.option("--stream", metavar="URL", help="Let this stream know the consumer no longer, too.")
@_place
def forget(
    consumer: str,
    outbox_id: str,
    stream: str | None,
    database: str | None,
    table: str,
    config: str | None,
    as_json: bool,
) -> None:
    """Remove a consumer's position in a stream. If it reads the stream again, it begins anew: effects come twice.

    Refused while events are parked. With --stream, retention waits for this consumer no longer.
    """
    from outbox.inbox import parking
    from outbox.inbox.schema import read_identity

    with _session(database, table, config) as session:
        inbox_id = read_identity(session, session.table)
        with session.transaction():
            reached = parking.forget(session, consumer, outbox_id)
    if stream is not None:
        from outbox.inbox.inbox import known_as
        from stream_store import open_stream

        with open_stream(stream) as opened:
            opened.forget("group", known_as(consumer, inbox_id))
    if as_json:
        printing.print_json({"consumer": consumer, "outbox_id": outbox_id, "reached": reached, "forgotten": True})
    else:
        printing.print_facts([("consumer", consumer), ("forgotten", f"outbox {outbox_id}, through ID {reached:,}")])


@inbox.command(
    short_help="Go on after a handler has committed by itself.",
    epilog=flags.examples(
        "outbox inbox resume --database sqlite:///billing.db --consumer billing --outbox-id 6f6b4b1e-… --through 1042"
    ),
)
@consumer_flag
@click.option("--outbox-id", metavar="ID", required=True, help="The outbox whose stream it reads: see status.")
@click.option("--through", type=int, metavar="ID", help="The last event whose effects are there.  [default: none is]")
@_place
def resume(
    consumer: str,
    outbox_id: str,
    through: int | None,
    database: str | None,
    table: str,
    config: str | None,
    as_json: bool,
) -> None:
    """Let a consumer go on whose handler had ended the transaction: TransactionEnded.

    Take the commit out of the handler first. Then look in your tables how far the effects have
    come, and say so by --through: events behind it are handled, those through it never again.
    """
    from outbox.inbox import parking

    with _session(database, table, config) as session, session.transaction():
        reached = parking.resume(session, consumer, outbox_id, through)
    if as_json:
        printing.print_json({"consumer": consumer, "outbox_id": outbox_id, "reached": reached, "resumed": True})
    else:
        printing.print_facts([("consumer", consumer), ("goes on behind", f"ID {reached:,}")])


@contextlib.contextmanager
def _session(database: str | None, table: str, config: str | None) -> Iterator[Session]:
    """A session on a database that has the inbox."""
    from outbox.database import Session
    from outbox.inbox.schema import read_identity
    from outbox.names import OutTable

    url = load_one({"database": database}, config).database
    with Session(url, OutTable.parse(table), application="outbox inbox") as session:
        read_identity(session, session.table)
        yield session


def _decide(consumer: str, given: dict[str, Any], change: Callable[[Session, str, Choice], int], what: str) -> None:
    """Change parked events in one transaction, and say how many."""
    from outbox.inbox.parking import Choice

    choice = Choice(given["ids"], given["subject"], given["everything"], given["outbox_id"])
    with _session(given["database"], given["table"], given["config"]) as session, session.transaction():
        count = change(session, consumer, choice)
    if given["as_json"]:
        printing.print_json({"consumer": consumer, what: count})
    else:
        printing.print_facts([("consumer", consumer), (what, count)])


def _row(standing: Standing) -> tuple[str, ...]:
    failing = "–"
    if standing.failing_id is not None:
        failing = f"{standing.failing_id}, {printing.counted(standing.failing_tries, 'try')}: {standing.failing_error}"
    counts = (standing.failed, standing.waiting, standing.due, standing.dropped)
    return (
        standing.consumer,
        standing.stream_url,
        printing.shown(standing.reached),
        printing.shown(standing.handled),
        printing.shown(standing.moved_at),
        *(printing.shown(count) for count in counts),
        failing,
    )


inbox.add_command(run)
