"""A finding: what was looked at, what was seen, and the command that mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from outbox.database import is_driver_error
from outbox.errors import DatabaseUnavailable, OutboxError
from outbox.grants import quote_role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outbox.database import Session
    from outbox.info import Info

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. The name is stable: scripts may rely on it.

    An error means that the relay refuses to run, or that the guarantee does not hold. A
    warning means that it holds, at a price or with less help when something goes wrong.
    """

    level: Level
    name: str
    message: str
    fix: str | None = None


def ok(name: str, message: str) -> Finding:
    return Finding("ok", name, message)


def warning(name: str, message: str, fix: str) -> Finding:
    return Finding("warning", name, message, fix)


def error(name: str, message: str, fix: str) -> Finding:
    return Finding("error", name, message, fix)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at, and how old a transaction may be before it is worth a word."""

    session: Session
    patience_seconds: float
    # None while the out table is not installed, or its info row cannot be read.
    info: Info | None = None

    @property
    def table(self) -> str:
        """The out table's name as SQL takes it."""
        return self.session.table.quoted(self.session.dialect)

    def companion(self, suffix: str) -> str:
        return self.session.table.quoted(self.session.dialect, suffix)

    def command(self, words: str) -> str:
        """A command of ours, for this very outbox."""
        name = f" --outbox {shlex.quote(str(self.session.table))}" if str(self.session.table) != "outbox" else ""
        return f"outbox {words} --database {shlex.quote(str(self.session.url))}{name}"

    def role(self) -> str:
        """The role that the database sees, quoted."""
        return quote_role(str(self.session.value("check_role")), self.session.dialect)


def run(looks: Sequence[tuple[str, Callable[[Subject], Iterable[Finding]]]], subject: Subject) -> list[Finding]:
    """Every look in turn. One that the database refuses is a finding too; a lost connection ends it all."""
    findings: list[Finding] = []
    for name, look in looks:
        try:
            findings += look(subject)
        except DatabaseUnavailable:
            raise
        except Exception as refusal:
            if not isinstance(refusal, OutboxError) and not is_driver_error(refusal):
                raise
            findings.append(unseen(name, refusal))
    return findings


def unseen(name: str, refusal: Exception) -> Finding:
    """The database would not show it: neither good nor bad is known."""
    return warning(
        name,
        f"this could not be looked at: {str(refusal).strip()}",
        "run the check once as a role that may see it (an administrator)",
    )
