"""Whether a table still is what our last commit left: a pure judgement over its history.

The marker in a Delta table survives a RESTORE, a REPLACE and an overwrite, and then says
that events are there which are not. A CLONE has none. So the marker alone is not believed:
every version since our last commit has to be an operation that leaves the rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_sink.note import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_sink.delta import Commit

# Leave every row as it is.
HARMLESS = frozenset(
    {
        "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS",
        "CHANGE COLUMN", "CHANGE COLUMNS", "UPDATE SCHEMA", "UPGRADE PROTOCOL", "ADD CONSTRAINT", "DROP CONSTRAINT",
        "CLUSTER BY", "COMPUTE STATS", "ANALYZE TABLE", "OPTIMIZE CHECKPOINT", "DOMAIN METADATA CLEANUP", "REORG",
        "CREATE TABLE", "ROW TRACKING BACKFILL", "DROP FEATURE", "Empty Commit",
    }
)  # fmt: skip
# Put other rows in the place of the ones that were there.
REWINDING = ("RESTORE", "CLONE", "REPLACE", "TRUNCATE", "CREATE OR REPLACE", "CREATE TABLE AS SELECT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened to the table since our last commit."""

    # Our last commit that is still in effect as far as is known.
    note: Note | None
    version: int | None
    # The latest commit that put the table back or replaced its content.
    rewound: Commit | None
    # Commits of others that changed rows.
    foreign: tuple[Commit, ...]

    @property
    def ok(self) -> bool:
        return self.rewound is None and not self.foreign


def judge(commits: Iterable[Commit], app_id: str) -> Verdict:
    """Walk back from the newest version to our last commit."""
    foreign: list[Commit] = []
    for commit in commits:
        note = Note.decode(commit.metadata)
        # A RESTORE or CLONE may carry a user's own metadata, never ours.
        if note is not None and note.app_id == app_id and not _rewinds(commit):
            return Verdict(note, commit.version, None, tuple(foreign))
        if _rewinds(commit) and (note is None or note.app_id != app_id):
            return Verdict(None, None, commit, tuple(foreign))
        if commit.operation not in HARMLESS and (note is None or note.app_id != app_id):
            foreign.append(commit)
    return Verdict(None, None, None, tuple(foreign))


def _rewinds(commit: Commit) -> bool:
    if commit.operation == "WRITE":
        return str(commit.parameters.get("mode", "")).strip('"').lower() == "overwrite"
    return commit.operation.startswith(REWINDING)


def bookmark_at(commits: Sequence[Commit], version: int, app_id: str) -> int | None:
    """The bookmark that the rows of a version really stand for, through any number of RESTOREs.

    `commits` are newest first and reach back to that version and beyond. None when the
    history does not say.
    """
    by_version = {commit.version: commit for commit in commits}
    while version in by_version:
        commit = by_version[version]
        note = Note.decode(commit.metadata)
        if note is not None and note.app_id == app_id:
            return note.bookmark
        if commit.operation == "RESTORE":
            target = restored_version(commit)
            if target is None or target >= version:
                return None
            version = target
        elif _rewinds(commit):
            return None
        else:
            version -= 1
    return None


def restored_version(commit: Commit) -> int | None:
    """The version that a RESTORE went back to; None when it named a time."""
    found = commit.parameters.get("version")
    try:
        return int(str(found).strip('"'))
    except ValueError:
        return None
