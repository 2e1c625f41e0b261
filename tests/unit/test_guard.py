"""The judgement over a table's history, and how far an unfinished replay has come."""

from __future__ import annotations

from dataclasses import replace

from spark_sink.delta import Commit
from spark_sink.guard import bookmark_at, judge
from spark_sink.note import Note
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
