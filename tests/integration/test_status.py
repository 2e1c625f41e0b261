"""`status`: where an outbox stands, field by field."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import connector.status
from cli.status import _facts
from connector.status import status
from outbox.database import Session
from outbox.errors import SchemaError
from stream_store import open_stream
from tests.integration.relays import (
    RelayThread,
    emit,
    insert,
    installed,
    relay_once,
    relay_options,
    stream_tail,
    transaction,
    until,
)

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from connector.status import Status


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


def look(outbox: RelayOptions, stream: str | None = None) -> Status:
    return status(outbox.database, outbox.table, stream or outbox.stream)


def test_new_outbox_without_a_stream(outbox: RelayOptions):
    seen = status(outbox.database, outbox.table, None)
    assert (seen.outbox, seen.source) == ("outbox", "/outbox")
    assert len(seen.outbox_id) == 36
    assert (seen.last_id_drawn, seen.deleted_through, seen.relayed_through) == (0, 0, 0)
    assert (seen.leader, seen.leader_alive) == (None, False)
    assert (seen.rows_waiting, seen.rows_waiting_is_exact, seen.oldest_waiting_seconds) == (0, True, None)
    assert (seen.late_id, seen.held_at, seen.blockers, seen.problems) == (None, None, [], [])
    assert (seen.stream, seen.stream_id, seen.stream_tail, seen.stream_size_bytes) == (None, None, None, None)


def test_password_is_never_shown(mariadb_url: str, stream_url: str):
    outbox = installed(mariadb_url, stream_url)
    seen = look(outbox)
    assert "secret" not in str(seen)
    assert "***" in seen.database


def test_out_table_that_is_not_there_is_said(database_url: str, stream_url: str):
    outbox = relay_options(database_url, stream_url)
    with pytest.raises(SchemaError, match="outbox init"):
        look(outbox)


def test_waiting_rows_are_counted_with_the_age_of_the_oldest(outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch):
    emit(outbox, 2)
    relay_once(outbox)
    emit(outbox, 3)
    seen = look(outbox)
    assert (seen.rows_waiting, seen.rows_waiting_is_exact) == (3, True)
    assert seen.oldest_waiting_seconds is not None
    assert 0 <= seen.oldest_waiting_seconds < 600
    assert (seen.last_id_drawn, seen.relayed_through, seen.deleted_through, seen.stream_tail) == (5, 2, 2, 2)
    # Without the stream it goes by what the relay said last.
    assert status(outbox.database, outbox.table, None).rows_waiting == 3
    monkeypatch.setattr(connector.status, "COUNTED_ROWS_MAX", 2)
    seen = look(outbox)
    assert (seen.rows_waiting, seen.rows_waiting_is_exact) == (2, False)


def test_leader_is_named_while_it_is_alive(outbox: RelayOptions):
    with RelayThread(outbox):
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 1, "the relay leads")
        seen = look(outbox)
        assert seen.leader is not None
        assert seen.leader_alive
    seen = look(outbox)
    assert (seen.leader, seen.leader_alive) == (None, False)
    with Session(outbox.database, outbox.table) as session:
        session.change("lease_take", leader="somebody", seconds=-1)
    seen = look(outbox)
    assert (seen.leader, seen.leader_alive) == ("somebody", False)


def test_stream_is_described(outbox: RelayOptions):
    emit(outbox, 5)
    relay_once(outbox)
    seen = look(outbox)
    with contextlib.closing(open_stream(outbox.stream)) as stream:
        facts = stream.info()
    assert (seen.stream, seen.stream_id, seen.stream_tail) == (outbox.stream, facts.stream_id, 5)
    assert (seen.stream_trimmed_through, seen.stream_segments, seen.stream_size_bytes) == (0, 1, facts.size_bytes)
    assert facts.size_bytes > 0
    assert seen.problems == []


def test_missing_stream_is_a_problem_not_an_error(outbox: RelayOptions):
    seen = look(outbox)
    assert len(seen.problems) == 1
    assert seen.stream_tail is None


def test_stream_of_another_outbox_is_a_problem(outbox: RelayOptions, tmp_path: Path):
    emit(outbox, 1)
    relay_once(outbox)
    other = installed(outbox.database.url, f"file://{tmp_path}/other", "other")
    relay_once(other)
    problems = look(outbox, other.stream).problems
    assert any("belongs to another outbox" in problem for problem in problems)
    assert any("bound to another stream" in problem for problem in problems)


def test_stream_that_went_back_in_time_is_a_problem(outbox: RelayOptions, tmp_path: Path):
    emit(outbox, 2)
    relay_once(outbox)
    folder = Path(outbox.stream.removeprefix("file://"))
    shutil.copytree(folder, tmp_path / "older")
    emit(outbox, 2)
    relay_once(outbox)
    shutil.rmtree(folder)
    (tmp_path / "older").rename(folder)
    (problem,) = look(outbox).problems
    assert problem == "TAIL_LOST: the stream ends at 2, rows through 4 were deleted"


def test_sequence_that_was_reset_is_a_problem(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    reset = {
        "postgresql": "ALTER SEQUENCE outbox_id_seq RESTART",
        "mysql": "TRUNCATE TABLE outbox",
        "sqlite": "DELETE FROM sqlite_sequence",
    }
    with Session(outbox.database, outbox.table) as session:
        session.run(reset[outbox.database.dialect])
    (problem,) = look(outbox).problems
    assert problem == "the sequence stands at 0, below the stream's tail 3"


def test_late_row_is_a_problem(outbox: RelayOptions):
    """With the stream and without it: what was deleted, the database knows by itself."""
    emit(outbox, 4)
    relay_once(outbox)
    overriding = " OVERRIDING SYSTEM VALUE" if outbox.database.dialect == "postgresql" else ""
    with Session(outbox.database, outbox.table) as session:
        for row_id in (3, 2):
            session.run(f"INSERT INTO outbox (id, type){overriding} VALUES ({row_id}, 'late')")
    for seen in (look(outbox), status(outbox.database, outbox.table, None)):
        assert (seen.late_id, seen.rows_waiting) == (2, 0)
        (problem,) = seen.problems
        assert "row 2 lies at or below 4" in problem
        assert "outbox rebase" in problem
        assert ("PROBLEM", problem) in _facts(seen)


def test_status_is_right_at_any_moment_of_a_running_relay(outbox: RelayOptions):
    """No false alarm from looking at database and stream one after the other."""
    with RelayThread(outbox):
        for _ in range(30):
            emit(outbox, 20)
            seen = look(outbox) if stream_tail(outbox.stream) else None
            assert seen is None or seen.problems == [], seen
            assert seen is None or seen.last_id_drawn >= (seen.stream_tail or 0)


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"])
def test_transaction_in_flight_without_rows_behind_it_holds_nothing(
    database: str, stream_url: str, request: pytest.FixtureRequest
):
    outbox = installed(str(request.getfixturevalue(f"{database}_url")), stream_url)
    with transaction(outbox) as session:
        insert(session)
        seen = status(outbox.database, outbox.table, None)
        assert (seen.held_at, seen.blockers) == (None, [])
        emit(outbox, 1)
        seen = status(outbox.database, outbox.table, None)
        assert seen.held_at == 1
        assert len(seen.blockers) == 1
        session.run("ROLLBACK")
    seen = status(outbox.database, outbox.table, None)
    assert (seen.held_at, seen.rows_waiting) == (None, 1)
