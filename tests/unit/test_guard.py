"""The judgement over a table's history, and how far an unfinished replay has come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_sink.delta import Commit, FileChange
from spark_sink.guard import HARMLESS, bookmark_at, judge, restored_version, same_files_as, undone_since
from spark_sink.note import Note, app_id_of
from spark_sink.replay import done_through

APP = "outbox/o/t/main"


def ours(version: int, bookmark: int, operation: str = "WRITE", mode: str = "Append", **more) -> Commit:
    note = replace(Note(APP, bookmark, 0, bookmark, seen=version - 1), **more)
    return Commit(version, operation, {"mode": mode}, note.encode())


def theirs(version: int, operation: str, **parameters: object) -> Commit:
    return Commit(version, operation, parameters, None)


def test_nothing_but_harmless_commits_since_ours():
    verdict = judge([theirs(5, "OPTIMIZE"), ours(4, 40), theirs(3, "DELETE")], APP)
    assert verdict.ok
    assert verdict.note.bookmark == 40
    assert verdict.version == 4


def test_a_foreign_commit_and_a_restore_are_found():
    assert [commit.version for commit in judge([theirs(5, "DELETE"), ours(4, 40)], APP).foreign] == [5]
    assert judge([theirs(6, "OPTIMIZE"), theirs(5, "RESTORE"), ours(4, 40)], APP).rewound.version == 5
    assert judge([theirs(5, "WRITE", mode="Overwrite"), ours(4, 40)], APP).rewound.version == 5


def test_a_foreign_commit_between_our_look_and_our_commit_is_found():
    verdict = judge([ours(6, 60, seen=4), theirs(5, "DELETE"), ours(4, 40)], APP)
    assert [commit.version for commit in verdict.foreign] == [5]
    assert verdict.note.bookmark == 60


def test_a_repair_does_not_hide_what_others_did_before_it():
    verdict = judge([ours(6, 40, "MERGE", role="repair"), theirs(5, "DELETE"), ours(4, 40)], APP)
    assert [commit.version for commit in verdict.foreign] == [5]
    assert verdict.note.role == "batch"


def test_a_repair_of_an_older_bookmark_does_not_speak_for_the_table():
    commits = [ours(6, 40, mode="Overwrite", role="repair"), ours(5, 50), ours(4, 40)]
    assert judge(commits, APP).note.bookmark == 50
    assert bookmark_at(commits, 6, APP) == 50


def test_a_rebuild_and_an_acceptance_settle_what_came_before():
    assert judge([ours(6, 40, mode="Overwrite", role="rebuild"), theirs(5, "RESTORE"), ours(4, 40)], APP).ok
    assert judge([ours(6, 40, role="accept"), theirs(5, "DELETE"), ours(4, 40)], APP).ok


def test_a_restore_that_carries_our_note_is_still_a_restore():
    assert judge([ours(6, 40, "RESTORE"), ours(5, 50)], APP).rewound.version == 6


def restore(version: int, to: int | str) -> Commit:
    named = {"version": str(to), "timestamp": None} if isinstance(to, int) else {"version": None, "timestamp": to}
    return Commit(version, "RESTORE", named, None)


@pytest.mark.parametrize(
    "commit",
    [
        restore(5, 2),
        restore(5, "2026-03-01 12:00:00"),
        theirs(5, "CLONE", source="delta.`/elsewhere`"),
        theirs(5, "REPLACE TABLE"),
        theirs(5, "REPLACE TABLE AS SELECT"),
        theirs(5, "CREATE OR REPLACE TABLE"),
        theirs(5, "CREATE OR REPLACE TABLE AS SELECT"),
        theirs(5, "CREATE TABLE AS SELECT"),
        theirs(5, "TRUNCATE"),
        theirs(5, "WRITE", mode="Overwrite"),
        # As DESCRIBE HISTORY shows it.
        theirs(5, "WRITE", mode='"Overwrite"'),
    ],
    ids=lambda commit: f"{commit.operation} {dict(commit.parameters)}",
)
def test_what_puts_other_rows_in_the_place_of_ours_is_found_below_harmless_commits(commit):
    verdict = judge([theirs(6, "OPTIMIZE"), commit, ours(4, 40)], APP)
    assert verdict.rewound == commit
    assert not verdict.ok


@pytest.mark.parametrize(
    "operation", ["WRITE", "MERGE", "DELETE", "UPDATE", "STREAMING UPDATE", "COPY INTO", "Convert", "unknown", "None"]
)
def test_what_others_write_is_found(operation):
    verdict = judge([theirs(6, "OPTIMIZE"), theirs(5, operation, mode="Append"), ours(4, 40)], APP)
    assert [commit.version for commit in verdict.foreign] == [5]
    assert not verdict.ok


@pytest.mark.parametrize("operation", sorted(HARMLESS))
def test_what_leaves_the_rows_alone_is_harmless(operation):
    assert judge([theirs(5, operation), ours(4, 40)], APP).ok


def test_a_commit_of_another_sink_on_the_same_table_is_ours():
    assert judge([ours(5, 50, writer="elsewhere:1"), ours(4, 40)], APP).ok


def test_a_note_of_another_table_or_outbox_is_not_ours():
    other = replace(Note(APP, 50, 40, 50, seen=4), app_id="outbox/other/t/main")
    verdict = judge([Commit(5, "WRITE", {"mode": "Append"}, other.encode()), ours(4, 40)], APP)
    assert [commit.version for commit in verdict.foreign] == [5]


def test_a_table_that_nobody_has_written_to_is_all_right():
    verdict = judge([theirs(1, "SET TBLPROPERTIES"), theirs(0, "CREATE TABLE")], APP)
    assert verdict.ok
    assert verdict.note is None


def test_a_history_that_does_not_reach_back_to_our_last_commit_proves_nothing():
    cleaned_up = [theirs(9, "OPTIMIZE"), theirs(8, "OPTIMIZE")]
    assert not judge(cleaned_up, APP).whole
    # Unless everything below was judged before.
    assert judge(cleaned_up, APP, known_version=7).ok
    # Ours is there, and what had been looked at before it need not be.
    assert judge([theirs(9, "OPTIMIZE"), ours(8, 80)], APP).ok
    assert not judge([theirs(9, "OPTIMIZE"), ours(8, 80, seen=5)], APP).whole


def test_a_history_without_the_newest_version_proves_nothing():
    """Its commit file is gone, or cannot be seen from here."""
    assert not judge([], APP).whole
    assert not judge([], APP, known_version=7, newest=8).ok
    assert not judge([ours(8, 80)], APP, newest=9).whole
    assert judge([ours(9, 90)], APP, newest=9).ok


def test_what_was_judged_before_is_not_judged_again():
    assert judge([ours(6, 60), theirs(5, "DELETE"), ours(4, 40)], APP, known_version=5).ok


def test_the_bookmark_of_what_a_restore_left():
    commits = [restore(5, 2), ours(4, 40), ours(3, 30), ours(2, 20), ours(1, 10), theirs(0, "CREATE TABLE")]
    assert bookmark_at(commits, 5, APP) == 20
    assert bookmark_at(commits[1:], 4, APP) == 40
    # Commits that leave the rows alone, before and after.
    assert bookmark_at([theirs(6, "OPTIMIZE"), *commits], 6, APP) == 20
    assert bookmark_at([restore(6, 5), *commits], 6, APP) == 20


def test_the_bookmark_after_restores_of_restores():
    history = [ours(2, 20), ours(1, 10), theirs(0, "CREATE TABLE")]
    history = [ours(4, 10, role="reset"), restore(3, 1), *history]
    history = [ours(5, 30), *history]
    assert bookmark_at(history, 5, APP) == 30
    # To before the first one, to the first one itself, to behind the reset, to the beginning.
    for to, bookmark in [(2, 20), (3, 10), (4, 10), (0, 0)]:
        assert bookmark_at([restore(6, to), *history], 6, APP) == bookmark
    assert bookmark_at([restore(7, 6), restore(6, 2), *history], 7, APP) == 20


def test_what_restores_have_undone_since_the_commit_that_the_rows_stand_for():
    redrive = ours(3, 30, "MERGE", role="redrive", after=4, through=5)
    commits = [restore(5, 2), ours(4, 40, after=30), redrive, ours(2, 30), ours(1, 10)]
    assert [version for version, _ in undone_since(commits, 5, APP)] == [3, 4]
    # What was redriven again, or repaired, since then is in effect.
    assert [version for version, _ in undone_since([ours(6, 40, role="repair"), *commits], 6, APP)] == [3, 4]
    # So is what another RESTORE has brought back.
    assert [version for version, _ in undone_since([restore(6, 3), *commits], 6, APP)] == [4]
    assert undone_since([ours(6, 30, role="reset", seen=5), *commits], 6, APP) == ()
    # The bookmark may have had another name meanwhile.
    renamed = ours(3, 30, "MERGE", role="redrive", app_id=f"{APP}/generation")
    assert [version for version, _ in undone_since([restore(4, 2), renamed, ours(2, 30)], 4, APP)] == [3]
    assert undone_since([restore(2, 0), ours(1, 10), theirs(0, "CREATE TABLE")], 2, APP)[0][0] == 1


def test_the_bookmark_is_not_guessed():
    # A time that nobody has resolved, or a version that cannot be.
    assert bookmark_at([restore(3, "yesterday"), ours(2, 20), ours(1, 10)], 3, APP) is None
    assert bookmark_at([restore(3, "yesterday"), ours(2, 20), ours(1, 10)], 3, APP, lambda _: 1) == 10
    assert bookmark_at([restore(3, 7), ours(2, 20)], 3, APP) is None
    # Others have written what it went back to, or since.
    assert bookmark_at([restore(4, 3), theirs(3, "WRITE"), ours(2, 20)], 4, APP) is None
    assert bookmark_at([theirs(4, "DELETE"), restore(3, 1), ours(2, 20), ours(1, 10)], 4, APP) is None
    # The table was replaced, and then restored.
    assert bookmark_at([restore(4, 3), theirs(3, "REPLACE TABLE"), ours(2, 20)], 4, APP) is None
    # A batch of ours landed on the RESTORE that it had not seen: the rows are not all those through its end.
    assert bookmark_at([ours(4, 30, seen=2), restore(3, 1), ours(2, 20), ours(1, 10)], 4, APP) is None
    # The history is not there any more.
    assert bookmark_at([restore(9, 4), ours(8, 80), ours(7, 70)], 9, APP) is None


def test_a_restore_that_named_a_time_is_known_by_its_files():
    def change(version: int, added: str = "", removed: str = "") -> FileChange:
        return FileChange(version, frozenset(added), frozenset(removed))

    history = [change(3, "c"), change(2, "b"), change(1, "a"), change(0)]
    assert same_files_as([change(4, removed="bc"), *history]) == 1
    assert same_files_as([change(4, removed="abc"), *history]) == 0
    assert same_files_as([change(4), *history]) == 3
    # The files were joined meanwhile; the RESTORE brings the old ones back.
    joined = [change(4, "d", "abc"), *history]
    assert same_files_as([change(5, "ab", "d"), *joined]) == 2
    # A commit that brought no rows has the same files: whichever it was, the later bookmark is as true.
    assert same_files_as([change(5, removed="c"), change(4, "c"), change(3), change(2, "b"), change(1, "a")]) == 3
    assert same_files_as([change(5, removed="x"), change(4, "c")]) is None


@pytest.mark.parametrize(("given", "version"), [("7", 7), ('"7"', 7), (7, 7), (None, None), ("null", None)])
def test_the_version_that_a_restore_names(given, version):
    assert restored_version(Commit(9, "RESTORE", {"version": given}, None)) == version


def test_a_note_comes_back_as_it_was_written():
    note = Note(APP, 50, 40, 50, role="repair", rows=3, prev_id=39, seen=7, part="0..50")
    assert Note.decode(note.encode()) == note
    assert note.is_aside


@pytest.mark.parametrize("text", [None, "", "a word", '{"outbox": 7}', '"outbox"', '{"outbox"', '["outbox"]'])
def test_other_metadata_is_no_note(text):
    assert Note.decode(text) is None


def test_a_bookmark_that_was_put_back_by_public_means_has_another_name():
    assert app_id_of("o", "t", {}) == APP
    assert app_id_of("o", "t", {"outbox.generation": "g"}) == f"{APP}/g"


def piece(version: int, after: int, through: int, part: str | None) -> Commit:
    return ours(version, 100, role="repair", after=after, through=through, part=part)


def test_an_unfinished_replay_goes_on_behind_its_last_piece():
    commits = [ours(9, 110), piece(8, 10, 20, "0..50"), piece(7, 0, 10, "0..50"), ours(6, 100)]
    assert done_through(commits, APP, 0, "0..50") == 20
    assert done_through(commits, APP, 0, "0..60") == 0
    assert done_through(commits, APP, 5, "5..50") == 5


def test_a_finished_replay_and_one_before_foreign_writes_begin_anew():
    done = [piece(8, 10, 20, None), piece(7, 0, 10, "0..20")]
    assert done_through(done, APP, 0, "0..20") == 0
    damaged = [piece(9, 10, 20, "0..50"), theirs(8, "UPDATE"), piece(7, 0, 10, "0..50")]
    assert done_through(damaged, APP, 0, "0..50") == 0
    changed = [ours(8, 100, role="schema"), piece(7, 0, 10, "0..50")]
    assert done_through(changed, APP, 0, "0..50") == 0
