"""Readers that a stream knows: tables and consumer groups, and how far each has come.

What a known reader has not reached is kept for it: the relay deletes no row before every table
holds it (`--delete-after materialized`), and retention trims nothing ahead of a reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

Kind = Literal["table", "group"]
TABLE: Kind = "table"
GROUP: Kind = "group"


# A reader that runs says so at least this often, though it has not moved: silence means that it does not run.
REPORT_AGAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who reads the stream, and has everything through an ID as far as he has said."""

    kind: Kind
    name: str
    through: int
    reported_at: datetime


def reached(readers: Iterable[Reader], kind: Kind, name: str) -> int | None:
    """How far a reader has come; None when it is not known."""
    return next((each.through for each in readers if (each.kind, each.name) == (kind, name)), None)


def lowest(readers: Iterable[Reader], kind: Kind) -> int | None:
    """The ID that all known readers of a kind have reached; None when there are none."""
    return min((each.through for each in readers if each.kind == kind), default=None)
