"""`outbox stream trim`: forget what need not be kept, and say who keeps the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from cli import flags, printing
from cli.settings import load_one
from outbox.errors import UsageError, WrongPartner

if TYPE_CHECKING:
    from cli.settings import OutboxSettings
    from stream_store import Stream
    from stream_store.retention import Choice, Hold, Policy


@click.command(
    short_help="Forget the oldest events of a stream.",
    epilog=flags.examples(
        "outbox stream trim --stream file:///var/lib/outbox/shop --database postgresql://relay@db/shop --keep-days 30",
        "outbox stream trim --config outbox.toml --outbox shop.outbox --dry-run      # by retain = … of the file",
        "outbox stream trim --stream file:///var/lib/outbox/shop --through 2026-01-01T00:00:00Z --dry-run --json",
    ),
)
@flags.stream
@flags.database
@flags.outbox
@click.option("--keep-days", type=click.FloatRange(min=0), metavar="DAYS", help="Keep events that are younger.")
@click.option("--keep-bytes", metavar="SIZE", help="Keep the newest so many bytes, such as 50GB.")
@click.option("--keep-count", type=click.IntRange(min=0), metavar="N", help="Keep the newest so many events.")
@click.option("--through", metavar="ID|TIME", help="Forget the events through this one, in the place of a limit.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and what is held back by whom; change nothing.")
@click.option("--force", is_flag=True, help="Whatever tables and groups have not read yet; never past the out table.")
@click.option(
    "--no-out-table", is_flag=True, help="The out table is gone for good, and its rows with it: ask no database."
)
@click.option(
    "--reader-max-age", metavar="DURATION",
    help="A table or group that has said nothing for longer counts no more, such as 7d.  [default: all count]",
)  # fmt: skip
@flags.config
@flags.as_json
def trim(
    stream: str | None,
    database: str | None,
    outbox: str | None,
    keep_days: float | None,
    keep_bytes: str | None,
    keep_count: int | None,
    through: str | None,
    dry_run: bool,
    force: bool,
    no_out_table: bool,
    reader_max_age: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Forget the oldest events: those that exceed any limit, as far as nobody needs them any more.

    What a known table or consumer group has not read yet is kept for it, and said. The stream
    is never trimmed past what was deleted from the out table, so name the database, too; for
    one that is gone, say --no-out-table. A relay may run meanwhile: it does the trimming then, when it
    writes a stream that only one process can write.

    Whole stored units go: of a file stream, segments. Without a limit, `retain` of
    outbox.toml counts.
    """
    from connector.options import parse_duration_seconds
    from stream_store import open_to_maintain
    from stream_store.place import end_through
    from stream_store.retention import Policy, plan, plan_through

    settings = load_one({"stream": stream, "database": database, "name": outbox}, config)
    limits = Policy(
        keep_age=None if keep_days is None else timedelta(days=keep_days),
        keep_bytes=None if keep_bytes is None else Policy.parse(keep_bytes).keep_bytes,
        keep_count=keep_count,
    )
    policy = _policy(settings, limits, keep_bytes, through)
    max_age = None if reader_max_age is None else timedelta(seconds=parse_duration_seconds(reader_max_age))
    with open_to_maintain(settings.stream) as opened:
        deleted_through = _deleted_through(settings, opened, needed=not (dry_run or no_out_table))
        if through is None:
            choice = plan(opened, policy, deleted_through=deleted_through, reader_max_age=max_age, force=force)
        else:
            choice = plan_through(
                opened,
                end_through(opened, through, "--through"),
                deleted_through=deleted_through,
                reader_max_age=max_age,
                force=force,
            )
        if not dry_run and choice.through > choice.trimmed_through:
            opened.trim(choice.through)
        trimmed_through = opened.info().trimmed_through
    _print(choice, trimmed_through, deleted_through, max_age, dry_run=dry_run, as_json=as_json)


def _policy(settings: OutboxSettings, limits: Policy, keep_bytes: str | None, through: str | None) -> Policy:
    from stream_store.retention import Policy

    if keep_bytes is not None and limits.keep_bytes is None:
        raise UsageError(f"--keep-bytes {keep_bytes!r} is not a size: write 500MB, 50GB or 2TiB")
    if limits and through is not None:
        raise UsageError("--through names the end, --keep-… a limit: give one of them")
    if limits or through is not None:
        return limits
    retain = settings.text("retain")
    if retain is None:
        raise UsageError(
            "say what to keep: --keep-days, --keep-bytes, --keep-count, or --through; or retain = … in outbox.toml"
        )
    return Policy.parse(retain)


def _deleted_through(settings: OutboxSettings, stream: Stream, *, needed: bool) -> int | None:
    """Through which ID rows were deleted from the out table; None when it cannot be asked."""
    from outbox.database import Session
    from outbox.info import read_info

    outbox_id = stream.info().outbox_id
    if "database" not in settings.given:
        if needed and outbox_id is not None and not stream.info().compacted:
            raise UsageError(
                f"{stream.url} belongs to outbox {outbox_id}, and it must not be trimmed past the rows that the out table "
                "still has: name it by --database URL, or say --no-out-table when it is gone for good"
            )
        return None
    with Session(settings.database, settings.table, application="outbox stream trim") as session:
        info = read_info(session)
    if outbox_id not in (None, info.outbox_id):
        raise WrongPartner(f"{stream.url} belongs to outbox {outbox_id}, {settings.table} is outbox {info.outbox_id}")
    return info.deleted_through


def _print(
    choice: Choice,
    trimmed_through: int,
    deleted_through: int | None,
    max_age: timedelta | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        found = {
            **printing.plain(choice),
            "trimmed_through_before": choice.trimmed_through,
            "trimmed_through": trimmed_through,
            "applied": not dry_run,
            "deleted_through": deleted_through,
            "reader_max_age_seconds": None if max_age is None else max_age.total_seconds(),
        }
        printing.print_json(found)
        return
    facts: list[tuple[str, Any]] = [
        ("events that may go", f"through {choice.wanted:,}" if choice.wanted > choice.trimmed_through else "none"),
        ("would be trimmed" if dry_run else "trimmed", _done(choice, trimmed_through, dry_run=dry_run)),
        *(("held back by", _held(hold)) for hold in choice.held_by),
        *(("passed over", _held(hold)) for hold in choice.passed_over),
        ("silent readers count", "always" if max_age is None else f"for {printing.duration(max_age.total_seconds())}"),
        ("out table", "not asked" if deleted_through is None else f"deleted through {deleted_through:,}"),
    ]
    printing.print_facts(facts)


def _done(choice: Choice, trimmed_through: int, *, dry_run: bool) -> str:
    if dry_run:
        return f"through {choice.through:,}, as far as whole stored units reach" if choice.through else "nothing"
    if trimmed_through == choice.trimmed_through:
        return f"nothing more: through {trimmed_through:,} as before" if trimmed_through else "nothing"
    rest = "" if trimmed_through == choice.through else ": the stored unit behind it also holds events that are kept"
    return f"through {trimmed_through:,}{rest}"


def _held(hold: Hold) -> str:
    silent = "" if hold.silent_seconds is None else f", silent for {printing.duration(hold.silent_seconds)}"
    return f"{hold.kind} {hold.name}, at {hold.through:,}{silent}"
