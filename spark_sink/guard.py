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
# Never ours, whatever metadata they carry: a RESTORE or CLONE may be given a user's own.
NEVER_OURS = ("RESTORE", "CLONE")
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
    """Walk back from the newest version to our last commit, and to what had been looked at before it.

    A repair or a redrive is ours, and passed over: it does not say that what others did below
    it is all right. Neither does a batch of what came in between our look and its commit.
    """
    foreign: list[Commit] = []
    last: Note | None = None
    version: int | None = None
    looked_at = -1
    for commit in commits:
        if last is not None and commit.version <= looked_at:
            break
        note = our_note(commit, app_id)
        if note is None:
            if _rewinds(commit):
                return Verdict(None, None, commit, tuple(foreign))
            if commit.operation not in HARMLESS:
                foreign.append(commit)
        elif not note.is_aside and last is None:
            last, version = note, commit.version
            looked_at = commit.version - 1 if note.seen is None else note.seen
    return Verdict(last, version, None, tuple(foreign))


def our_note(commit: Commit, app_id: str) -> Note | None:
    """What we wrote beside a commit; None when it is not ours."""
    note = Note.decode(commit.metadata)
    if note is None or note.app_id != app_id or commit.operation.startswith(NEVER_OURS):
        return None
    return note


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
        note = our_note(commit, app_id)
        if note is not None:
            if not note.is_aside:
                return note.bookmark
            version -= 1
        elif commit.operation == "RESTORE":
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
