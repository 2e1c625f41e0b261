"""What others have added to the out table: triggers, unique indexes, foreign keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding


def triggers(subject: Subject) -> Iterator[Finding]:
    names = _first_column(subject, "check_triggers")
    if names:
        yield warning(
            "triggers",
            f"{subject.table} has triggers or rules of its own: {', '.join(names)}. One that changes or deletes a row "
            "makes an event vanish before the relay sees it, or stops the relay when it cleans up",
            f"drop it, unless it leaves the rows alone: DROP TRIGGER {names[0]}"
            + (f" ON {subject.table}" if subject.session.dialect == "postgresql" else ""),
        )
    else:
        yield ok("triggers", "no trigger touches the rows")


def unique_indexes(subject: Subject) -> Iterator[Finding]:
    names = _first_column(subject, "check_unique_indexes")
    if names:
        on_table = f" ON {subject.table}" if subject.session.dialect == "mysql" else ""
        yield warning(
            "unique-indexes",
            f"{subject.table} has unique indexes beside its key: {', '.join(names)}. Writers wait for each other on them, "
            "and once a row is relayed and deleted they keep nothing unique",
            f"DROP INDEX {names[0]}{on_table}; make a business table unique instead",
        )
    else:
        yield ok("unique-indexes", "the key is the only unique index")


def references(subject: Subject) -> Iterator[Finding]:
    found = [(str(table), str(name)) for table, name in subject.session.query("check_references")]
    if not found:
        yield ok("references", "no other table refers to the out table")
        return
    table, name = found[0]
    drop = "FOREIGN KEY" if subject.session.dialect == "mysql" else "CONSTRAINT"
    yield error(
        "references",
        f"{', '.join(sorted({table for table, _ in found}))} refers to {subject.table} by a foreign key: "
        "the relay cannot delete a row that is referred to, or deletes the other table's row with it",
        f"make {table} anew without the reference"
        if subject.session.dialect == "sqlite"
        else f"ALTER TABLE {table} DROP {drop} {name}",
    )


def _first_column(subject: Subject, block: str) -> list[str]:
    return [str(row[0]) for row in subject.session.query(block)]


TABLE = (("triggers", triggers), ("unique-indexes", unique_indexes), ("references", references))
