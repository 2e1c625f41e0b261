"""Where the out table stands: its rows against the sequence and against what was deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding

# Rows are counted no further than this: a check must not scan a backlog of millions.
COUNTED_ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """The rows as one statement saw them, and the sequence as it stood afterwards."""

    deleted_through: int
    highest_id: int
    late_rows: int
    lowest_id: int | None
    rows_waiting: int
    drawn: int


def look(subject: Subject) -> Iterator[Finding]:
    session = subject.session
    deleted_through, highest, late, lowest, waiting = session.row("check_position")
    # Behind the rows: what the sequence has given out since then is above them all.
    drawn = read_drawn(subject)
    position = Position(int(deleted_through), int(highest or 0), int(late), lowest, int(waiting), drawn)
    yield from judge(position, subject)
    yield from judge_relay(position, subject)


def read_drawn(subject: Subject) -> int:
    """The last ID that the sequence has given out."""
    session = subject.session
    if session.dialect == "mysql" and "mariadb" not in str(session.value("version")).lower():
        session.query("fresh_statistics")
    return int(session.value("check_drawn"))


def judge(position: Position, subject: Subject) -> Iterator[Finding]:
    table = subject.table
    if position.late_rows:
        yield error(
            "late-rows",
            f"{table} has rows at or below ID {position.deleted_through}, through which everything was relayed and deleted "
            f"({position.late_rows} in all, the lowest is {position.lowest_id}): someone wrote an explicit ID, or the "
            "sequence was reset",
            f"{subject.command('rebase')} --stream URL --dry-run shows how such rows get new IDs",
        )
    else:
        yield ok("late-rows", "no row lies below what was relayed and deleted")
    if position.highest_id > position.drawn:
        yield error(
            "explicit-ids",
            f"row {position.highest_id} of {table} lies above the sequence, which stands at {position.drawn}: someone wrote an "
            "explicit ID, and IDs that are given out later would lie below it",
            f"delete that row and emit it anew, or move the sequence past it: {_move(subject, position.highest_id)}",
        )
    else:
        yield ok("explicit-ids", "every row's ID was given out by the sequence")
    if position.drawn < position.deleted_through:
        yield error(
            "sequence-reset",
            f"the sequence stands at {position.drawn}, but rows through {position.deleted_through} were relayed and deleted: "
            "it was reset, and IDs would be given out twice",
            f"{subject.command('rebase')} --stream URL --dry-run, or, when nothing was emitted since: "
            f"{_move(subject, position.deleted_through)}",
        )
    else:
        yield ok("sequence-reset", f"the sequence stands at {position.drawn}")


def judge_relay(position: Position, subject: Subject) -> Iterator[Finding]:
    info = subject.info
    leads = info is not None and info.lease_seconds_left is not None and info.lease_seconds_left > 0
    if leads and info is not None:
        yield ok("relay", f"{info.leader} leads")
    elif position.rows_waiting:
        more = " or more" if position.rows_waiting >= COUNTED_ROWS_MAX else ""
        yield warning(
            "relay",
            f"no relay is at work, and rows wait: {position.rows_waiting}{more}",
            f"{subject.command('relay')} --stream URL",
        )
    else:
        yield ok("relay", "no relay is at work, and nothing waits")


def _move(subject: Subject, through: int) -> str:
    if subject.session.dialect == "postgresql":
        sequence = subject.companion("_id_seq").replace("'", "''")
        return f"SELECT setval('{sequence}', {through})"
    if subject.session.dialect == "mysql":
        return f"ALTER TABLE {subject.table} AUTO_INCREMENT = {through + 1}"
    name = subject.session.table.name.replace("'", "''")
    return f"UPDATE sqlite_sequence SET seq = {through} WHERE name = '{name}'"  # noqa: S608 - shown, not run
