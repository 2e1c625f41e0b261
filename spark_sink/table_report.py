"""What a table says of itself: bookmark, description, files, and what has happened to it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_sink.acceptance import Foreign, foreign_of
from spark_sink.guard import our_note
from spark_sink.table import PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_sink.table import Table

COMMITS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """One of our commits, newest first."""

    version: int
    role: str
    after: int
    through: int
    writer: str


@dataclass(frozen=True, slots=True)
class TableReport:
    """`rewound` and `foreign` are what `outbox sink` would stop at."""

    table: str
    outbox_id: str | None
    bookmark: int
    version: int
    files: int
    size_bytes: int
    description: Mapping[str, Any]
    rewound: Foreign | None
    foreign: tuple[Foreign, ...]
    commits: tuple[OwnCommit, ...]

    @property
    def ok(self) -> bool:
        return self.rewound is None and not self.foreign


def report(table: Table) -> TableReport:
    state = table.peek(need_bookmark=False)
    verdict = table.verdict(state)
    notes = ((commit, our_note(commit, state.app_id)) for commit in table.commits(state))
    own = (
        OwnCommit(commit.version, note.role, note.after, note.through, note.writer)
        for commit, note in notes
        if note is not None
    )
    return TableReport(
        table=str(table.name),
        outbox_id=state.properties.get(PROPERTY + "outbox_id"),
        bookmark=state.bookmark,
        version=state.version,
        files=state.snapshot.files,
        size_bytes=state.snapshot.size_bytes,
        description=json.loads(state.properties.get(PROPERTY + "spec", "{}")),
        rewound=None if verdict.rewound is None else foreign_of(verdict.rewound),
        foreign=tuple(foreign_of(commit) for commit in reversed(verdict.foreign)),
        commits=tuple(itertools.islice(own, COMMITS_SHOWN)),
    )
