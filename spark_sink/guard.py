"""Whether a table still is what our last commit left: a pure judgement over its history.

The marker in a Delta table survives a RESTORE, a REPLACE and an overwrite, and then says
that events are there which are not. A CLONE has none. So the marker alone is not believed:
every version since our last commit has to be an operation that leaves the rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_sink.note import Note, has_same_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_sink.delta import Commit, FileChange

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
    # Whether the history reaches back to our last commit, or to what was known before.
    whole: bool = True

    @property
    def ok(self) -> bool:
        return self.rewound is None and not self.foreign and self.whole


def judge(commits: Iterable[Commit], app_id: str, known_version: int = -1, newest: int | None = None) -> Verdict:
    """Walk back from the newest version to our last commit, and to what had been looked at before it.

    A repair or a redrive is ours, and passed over: it does not say that what others did below
    it is all right. Neither does a batch of what came in between our look and its commit.
    Everything through `known_version` has been judged before. The first commit has to be
    `newest`, where that is known: a history that ends before it says nothing of what is missing.
    """
    foreign: list[Commit] = []
    last: Note | None = None
    version: int | None = None
    looked_at = known_version
    highest = lowest = None
    for commit in commits:
        highest = commit.version if highest is None else highest
        lowest = commit.version
        if commit.version <= looked_at:
            break
        note = our_note(commit, app_id)
        if note is None:
            if _rewinds(commit):
                return Verdict(None, None, commit, tuple(foreign))
            if commit.operation not in HARMLESS:
                foreign.append(commit)
        elif not note.is_aside and last is None:
            last, version = note, commit.version
            looked_at = max(known_version, commit.version - 1 if note.seen is None else note.seen)
    whole = lowest is not None and lowest <= looked_at + 1 and newest in (None, highest)
    return Verdict(last, version, None, tuple(foreign), whole=whole)


def our_note(commit: Commit, app_id: str) -> Note | None:
    """What we wrote beside a commit; None when it is not ours."""
    note = Note.decode(commit.metadata)
    if note is None or note.app_id != app_id or commit.operation.startswith(NEVER_OURS):
        return None
    return note


def operation_of(commit: Commit) -> str:
    """What a person would call it: for Delta an overwrite is a WRITE like any other."""
    return "WRITE (overwrite)" if _overwrites(commit) else commit.operation


def _overwrites(commit: Commit) -> bool:
    return commit.operation == "WRITE" and str(commit.parameters.get("mode", "")).strip('"').lower() == "overwrite"


def _rewinds(commit: Commit) -> bool:
    return _overwrites(commit) or commit.operation.startswith(REWINDING)


def bookmark_at(
    commits: Sequence[Commit],
    version: int,
    app_id: str,
    restored: Callable[[Commit], int | None] | None = None,
) -> int | None:
    """The bookmark that the rows of a version really stand for, through any number of RESTOREs.

    `commits` are newest first and reach back to that version and beyond. `restored` tells the
    version that a RESTORE went back to. None when the history does not say, and when the rows
    are not ours alone: then no bookmark is true of them.
    """
    restored = restored or restored_version
    by_version = {commit.version: commit for commit in commits}
    while version in by_version:
        commit = by_version[version]
        note = our_note(commit, app_id)
        if note is not None and not note.is_aside:
            between = range(version - 1, version - 1 if note.seen is None else note.seen, -1)
            alone = all(_is_harmless(by_version[each], app_id) for each in between if each in by_version)
            return note.bookmark if alone else None
        if commit.operation == "RESTORE":
            target = restored(commit)
            if target is None or target >= version:
                return None
            version = target
        elif note is not None or commit.operation in HARMLESS:
            version -= 1
        else:
            return None
    # Before our first commit there is nothing, if this is where the table begins.
    return 0 if version < 0 else None


def undone_since(
    commits: Sequence[Commit],
    version: int,
    app_id: str,
    restored: Callable[[Commit], int | None] | None = None,
) -> tuple[tuple[int, Note], ...]:
    """Our commits that RESTOREs have undone since the one that `bookmark_at` takes the bookmark from.

    What came before that one was settled when it was made.
    """
    restored = restored or restored_version
    by_version = {commit.version: commit for commit in commits}
    newest, in_effect = version, set()
    while version in by_version:
        commit = by_version[version]
        in_effect.add(version)
        note = our_note(commit, app_id)
        if note is not None and not note.is_aside:
            break
        target = restored(commit) if commit.operation == "RESTORE" else version - 1
        if target is None or target >= version:
            break
        version = target
    gone = (each for each in range(version + 1, newest) if each in by_version and each not in in_effect)
    notes = ((each, _note_of_table(by_version[each], app_id)) for each in gone)
    return tuple((each, note) for each, note in notes if note is not None)


def _note_of_table(commit: Commit, app_id: str) -> Note | None:
    """What we wrote beside a commit, also under a name that the bookmark had before or has got since."""
    note = Note.decode(commit.metadata)
    if note is None or not has_same_owner(note.app_id, app_id) or commit.operation.startswith(NEVER_OURS):
        return None
    return note


def _is_harmless(commit: Commit, app_id: str) -> bool:
    return commit.operation in HARMLESS or our_note(commit, app_id) is not None


def same_files_as(changes: Iterable[FileChange]) -> int | None:
    """The newest earlier version with the same files as the version of the first change.

    For a RESTORE that named a time: which time that is depends on somebody's time zone, but the
    files that it left are those of the version it went back to. `changes` are newest first.
    """
    # What the versions since the one in question have done to its files, taken together.
    added: set[str] = set()
    removed: set[str] = set()
    for change in changes:
        gone = change.added & removed
        back = change.removed & added
        removed = (removed - gone) | (change.removed - back)
        added = (added - back) | (change.added - gone)
        if not added and not removed:
            return change.version - 1 if change.version > 0 else None
    return None


def restored_version(commit: Commit) -> int | None:
    """The version that a RESTORE went back to; None when it named a time."""
    found = commit.parameters.get("version")
    try:
        return int(str(found).strip('"'))
    except ValueError:
        return None
