"""`outbox init`, `outbox upgrade`, `outbox uninstall`: the out table comes and goes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import SchemaError

if TYPE_CHECKING:
    from cli.settings import OutboxSettings


_only_print = click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL for the database's own client; change nothing."
)


@click.command(
    short_help="Install the out table.",
    epilog=flags.examples(
        "outbox init --database postgresql://owner@db/shop --source /shop",
        "outbox init --database mysql://owner@db/shop --outbox billing_outbox",
        "outbox init --database postgresql://owner@db/shop --print | less     # look first, or hand it to a DBA",
        "outbox init --database postgresql://owner@db/shop --grant-writer web --grant-relay relay",
    ),
)
@flags.database
@flags.outbox
@flags.setting("source", "URI", "The events' CloudEvents source; /NAME by default. It never changes afterwards.")
@_only_print
@click.option("--grant-writer", metavar="ROLE", multiple=True, help="Let this role emit: INSERT and nothing else.")
@click.option("--grant-relay", metavar="ROLE", multiple=True, help="Let this role run the relay.")
@flags.config
@flags.as_json
def init(
    database: str | None,
    outbox: str | None,
    source: str | None,
    only_print: bool,
    grant_writer: tuple[str, ...],
    grant_relay: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> None:
    """Install the out table with its companions: info table, lag view, SQL emit function.

    Safe to run again: what is there stays, and roles may be granted later by another run.
    """
    from outbox import schema

    settings = load_one({"database": database, "name": outbox, "source": source}, config)
    url, table = settings.new_database, settings.table
    if only_print:
        _print_script(settings, grant_writer, grant_relay)
        return
    installed = schema.install(url, table, source=settings.source)
    refused = _grant(settings, grant_writer, grant_relay)
    if as_json:
        roles = {"writers": list(grant_writer), "relays": list(grant_relay), "refused": refused}
        printing.print_json({"outbox": str(table), **asdict(installed), **roles})
        return
    state = "installed" if installed.created else "was installed already"
    printing.print_facts(
        [
            ("out table", f"{table} {state} in {url}"),
            ("source", installed.source),
            ("outbox id", installed.outbox_id),
            ("schema version", installed.version),
            *(("may emit", role) for role in grant_writer),
            *(("may relay", role) for role in grant_relay),
        ]
    )
    for statement in refused:
        printing.say(f"not granted, an administrator may: {statement}")


def _grant(settings: OutboxSettings, writers: tuple[str, ...], relays: tuple[str, ...]) -> list[str]:
    """Grant, and return what only an administrator could have granted."""
    from outbox import grants

    for role in writers:
        grants.grant_writer(settings.database, settings.table, role)
    return [refused for role in relays for refused in grants.grant_relay(settings.database, settings.table, role)]


def _print_script(settings: OutboxSettings, writers: tuple[str, ...], relays: tuple[str, ...]) -> None:
    from outbox import grants, schema

    dialect, table = settings.new_database.dialect, settings.table
    click.echo(schema.render(dialect, table, settings.source), nl=False)
    for role in writers:
        click.echo(grants.render_grant_writer(dialect, table, role), nl=False)
    for role in relays:
        click.echo(grants.render_grant_relay(dialect, table, role), nl=False)


@click.command(
    short_help="Bring an older out table up to date.",
    epilog=flags.examples(
        "outbox upgrade --database postgresql://owner@db/shop",
        "outbox upgrade --database postgresql://owner@db/shop --print | less     # look first, or hand it to a DBA",
    ),
)
@flags.database
@flags.outbox
@_only_print
@flags.config
@flags.as_json
def upgrade(database: str | None, outbox: str | None, only_print: bool, config: str | None, as_json: bool) -> None:
    """Apply the migrations that an out table of an older version lacks. Safe to run again."""
    from outbox import schema

    settings = load_one({"database": database, "name": outbox}, config)
    table = settings.table
    if only_print:
        _print_upgrade(settings)
        return
    applied = schema.upgrade(settings.database, table)
    if as_json:
        printing.print_json({"outbox": str(table), "applied": applied})
    else:
        printing.say(f"{table}: applied {', '.join(applied)}" if applied else f"{table} is up to date")


def _print_upgrade(settings: OutboxSettings) -> None:
    """What is missing depends on what is installed, so this looks at the database."""
    from outbox import schema
    from outbox.database import Session
    from outbox.info import SCHEMA_VERSION

    url, table = settings.database, settings.table
    with Session(url, table, application="outbox upgrade") as session:
        rows = session.query("identity") if session.value("installed") else []
    if not rows:
        raise SchemaError(f"there is no out table {table} in {url}: run `outbox init`")
    version, source = int(rows[0][0]), str(rows[0][2])
    if version == SCHEMA_VERSION:
        printing.say(f"{table} is up to date")
    else:
        script = schema.render_upgrade(url.dialect, table, installed_version=version, source=source)
        click.echo(script, nl=False)


@click.command(
    short_help="Drop the out table.",
    epilog=flags.examples(
        "outbox uninstall --database postgresql://owner@db/shop",
        "outbox uninstall --database postgresql://owner@db/shop --print     # for a DBA; it asks no questions",
    ),
)
@flags.database
@flags.outbox
@click.option(
    "--force", is_flag=True, help="Also while a relay is at work or rows are not in the stream yet: they are lost."
)
@_only_print
@flags.config
@flags.as_json
def uninstall(
    database: str | None, outbox: str | None, force: bool, only_print: bool, config: str | None, as_json: bool
) -> None:
    """Drop the out table and its companions; the stream stays.

    Refused while rows are not in the stream yet, or while a relay is at work; the script that
    --print shows does not look for either.
    """
    from outbox import schema
    from outbox.queries import block, statements

    settings = load_one({"database": database, "name": outbox}, config)
    table = settings.table
    if only_print:
        dialect = settings.new_database.dialect
        click.echo(schema.as_script(dialect, table, statements(block(dialect, "uninstall", table))), nl=False)
        return
    schema.uninstall(settings.database, table, force=force)
    if as_json:
        printing.print_json({"outbox": str(table), "uninstalled": True})
    else:
        printing.say(f"{table} is gone from {settings.database}")
