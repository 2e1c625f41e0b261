"""`verify`: out table and stream agree and every ID is accounted for, or it says what is wrong."""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.verify import _facts
from connector.options import DeleteAfter
from connector.rebase import apply
from connector.verify import verify
from outbox.batch import EventBatch
from outbox.database import Session
from outbox.errors import StreamMissing
from stream_store import memory, open_stream
from tests.integration.relays import (
    RelayThread,
    emit,
    insert,
    installed,
    relay_once,
    stream_tail,
    table_ids,
    transaction,
    until,
)

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from connector.verify import Verification


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


@pytest.fixture
def sqlite_outbox(sqlite_url: str, stream_url: str) -> RelayOptions:
    """What is wrong with a stream is the same on every database: SQLite is the quickest."""
    return installed(sqlite_url, stream_url)


def keeping(options: RelayOptions) -> RelayOptions:
    return replace(options, delete_after=DeleteAfter.parse("never"))


def run_sql(options: RelayOptions, sql: str) -> None:
    with Session(options.database, options.table) as session:
        session.run(sql)


def explicit(options: RelayOptions, row_id: int) -> None:
    overriding = " OVERRIDING SYSTEM VALUE" if options.database.dialect == "postgresql" else ""
    run_sql(options, f"INSERT INTO outbox (id, type){overriding} VALUES ({row_id}, 'explicit')")


def verified(options: RelayOptions) -> Verification:
    return verify(options.database, options.table, options.stream)


def assert_accounted(result: Verification) -> None:
    assert result.events + result.dead + result.trimmed + result.recorded_lost == result.tail


def test_every_number_of_an_outbox_that_is_all_right(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    with transaction(outbox) as session:
        insert(session)
        session.run("ROLLBACK")
    explicit(outbox, 5) if outbox.database.dialect == "sqlite" else emit(outbox, 1)
    relay_once(keeping(outbox))
    emit(outbox, 2)
    result = verified(outbox)
    assert result.ok, result
    assert (result.lost, result.duplicated, result.conflicting, result.problems) == (0, 0, 0, [])
    assert (result.tail, result.events, result.dead, result.trimmed, result.recorded_lost) == (5, 4, 1, 0, 0)
    assert (result.rows_kept, result.rows_pending) == (1, 2)
    assert (result.last_id_drawn, result.deleted_through) == (7, 3)


def test_nothing_emitted_yet_is_all_right(outbox: RelayOptions):
    relay_once(outbox)
    result = verified(outbox)
    assert result.ok, result
    assert (result.tail, result.events, result.rows_kept, result.rows_pending) == (0, 0, 0, 0)


def test_pending_rows_are_all_counted(outbox: RelayOptions):
    relay_once(outbox)
    emit(outbox, 12_000)
    assert verified(outbox).rows_pending == 12_000


def test_row_that_the_stream_never_had_is_lost(outbox: RelayOptions):
    emit(outbox, 2)
    if outbox.database.dialect == "sqlite":
        explicit(outbox, 4)
    else:
        with transaction(outbox) as session:
            insert(session)
            session.run("ROLLBACK")
        emit(outbox, 1)
    relay_once(keeping(outbox))
    explicit(outbox, 3)
    result = verified(outbox)
    assert not result.ok
    assert (result.lost, result.lost_ids, result.rows_kept) == (1, [3], 4)
    assert_accounted(result)


def test_row_below_what_was_deleted_is_a_problem(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    explicit(outbox, 2)
    result = verified(outbox)
    assert not result.ok
    # The stream has another event under that ID.
    assert (result.conflicting, result.conflicting_ids) == (1, [2])
    assert result.problems == ["row 2 lies at or below 3, where every row had been deleted"]


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"])
def test_row_with_other_content_is_a_conflict(database: str, stream_url: str, request: pytest.FixtureRequest):
    outbox = installed(str(request.getfixturevalue(f"{database}_url")), stream_url)
    emit(outbox, 4)
    relay_once(keeping(outbox))
    run_sql(outbox, "UPDATE outbox SET subject = NULL WHERE id = 2")
    run_sql(outbox, """UPDATE outbox SET data = '{"n": 7}' WHERE id = 3""")
    result = verified(outbox)
    assert not result.ok
    assert (result.conflicting, result.conflicting_ids, result.lost) == (2, [2, 3], 0)


def test_sequence_that_was_reset_is_a_problem(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    reset = {
        "postgresql": "ALTER SEQUENCE outbox_id_seq RESTART",
        "mysql": "TRUNCATE TABLE outbox",
        "sqlite": "DELETE FROM sqlite_sequence",
    }
    run_sql(outbox, reset[outbox.database.dialect])
    result = verified(outbox)
    assert (result.ok, result.problems) == (False, ["the sequence stands at 0, below the stream's tail 3"])


def test_another_server_is_a_problem(outbox: RelayOptions):
    emit(outbox, 1)
    relay_once(outbox)
    run_sql(outbox, "UPDATE outbox_info SET server_id = 'another'")
    result = verified(outbox)
    assert not result.ok
    assert "the database server changed: another before" in result.problems[0]


def test_partners_that_do_not_belong_together_are_a_problem(sqlite_outbox: RelayOptions, tmp_path: Path):
    emit(sqlite_outbox, 1)
    relay_once(sqlite_outbox)
    other = installed(sqlite_outbox.database.url, f"file://{tmp_path}/other", "other")
    relay_once(other)
    result = verify(sqlite_outbox.database, sqlite_outbox.table, other.stream)
    assert not result.ok
    assert any("are not partners" in problem for problem in result.problems)


def test_stream_that_is_not_there_is_an_error(sqlite_outbox: RelayOptions):
    with pytest.raises(StreamMissing):
        verified(sqlite_outbox)


def go_back_in_time(outbox: RelayOptions, tmp_path: Path, *, lose: int) -> None:
    """Two events, and `lose` more that the stream acknowledged and then lost."""
    emit(outbox, 2)
    relay_once(outbox)
    folder = Path(outbox.stream.removeprefix("file://"))
    shutil.copytree(folder, tmp_path / "older")
    emit(outbox, lose)
    relay_once(outbox)
    shutil.rmtree(folder)
    (tmp_path / "older").rename(folder)


def test_stream_that_went_back_in_time_is_a_problem_and_its_events_are_lost(outbox: RelayOptions, tmp_path: Path):
    go_back_in_time(outbox, tmp_path, lose=3)
    result = verified(outbox)
    assert (result.ok, result.tail, result.deleted_through) == (False, 2, 5)
    assert (result.lost, result.lost_ids) == (3, [3, 4, 5])
    (problem,) = result.problems
    assert problem.startswith("TAIL_LOST: rows through 5 were deleted, the stream ends at 2")
    assert ("lost", "3 (IDs 3, 4, 5)") in _facts(result)
    # And that is what a rebase records.
    apply(outbox.database, outbox.table, outbox.stream)
    result = verified(outbox)
    assert (result.ok, result.lost, result.recorded_lost) == (True, 0, 3)


def test_late_row_where_the_stream_lost_its_tail_is_not_lost(outbox: RelayOptions, tmp_path: Path):
    go_back_in_time(outbox, tmp_path, lose=3)
    explicit(outbox, 4)
    result = verified(outbox)
    assert (result.lost, result.lost_ids, result.rows_pending) == (2, [3, 5], 1)


def test_lost_ids_are_all_counted_and_the_first_are_named(sqlite_outbox: RelayOptions, tmp_path: Path):
    go_back_in_time(sqlite_outbox, tmp_path, lose=1000)
    result = verified(sqlite_outbox)
    assert (result.lost, result.lost_ids) == (1000, list(range(3, 103)))
    assert ("lost", "1,000 (IDs 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …)") in _facts(result)


@pytest.mark.parametrize("delete_after", ["durable", "never"])
def test_damaged_stream_is_a_problem_that_names_the_file(sqlite_outbox: RelayOptions, delete_after: str):
    emit(sqlite_outbox, 500)
    relay_once(replace(sqlite_outbox, delete_after=DeleteAfter.parse(delete_after)))
    folder = Path(sqlite_outbox.stream.removeprefix("file://"))
    segment = max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    result = verified(sqlite_outbox)
    assert not result.ok
    assert any(segment.name in problem for problem in result.problems)
    assert result.unread > 0
    assert result.events + result.unread == result.tail == 500


def test_trimmed_and_recorded_losses_are_accounted_for(sqlite_url: str, stream_url: str):
    outbox = installed(sqlite_url, stream_url + "?segment_bytes=1")
    for _ in range(3):
        emit(outbox, 2)
        relay_once(outbox)
    with contextlib.closing(open_stream(outbox.stream, "write")) as stream:
        stream.trim(3)
        stream.lose(9)
    run_sql(outbox, "UPDATE sqlite_sequence SET seq = 9")
    emit(outbox, 1)
    relay_once(outbox)
    result = verified(outbox)
    assert result.ok, result
    assert (result.tail, result.trimmed, result.events, result.recorded_lost, result.dead) == (10, 2, 5, 3, 0)
    assert_accounted(result)


def damaged_memory(sqlite_url: str, name: str) -> tuple[RelayOptions, list[EventBatch]]:
    """A stream of three batches that a test may tamper with."""
    outbox = installed(sqlite_url, f"memory://{name}")
    for _ in range(3):
        emit(outbox, 2)
        relay_once(outbox)
    return outbox, memory._stores[name].batches


def test_event_that_stands_twice_is_duplicated(sqlite_url: str):
    outbox, batches = damaged_memory(sqlite_url, "twice")
    assert verified(outbox).ok
    batches.insert(1, batches[1])
    result = verified(outbox)
    assert not result.ok
    # The whole batch stands twice; its first event is where the order breaks.
    assert result.duplicated_ids == [3]
    assert any("chain is broken" in problem for problem in result.problems)


def test_batch_that_is_missing_breaks_the_chain(sqlite_url: str):
    outbox, batches = damaged_memory(sqlite_url, "missing")
    del batches[1]
    result = verified(outbox)
    assert not result.ok
    assert "the chain is broken: event 5 follows 4, not 2" in result.problems
    assert "the IDs go through 6, accounted for are 4" in result.problems


def test_verify_is_right_at_any_moment_of_a_running_relay(outbox: RelayOptions):
    """Writers write, the relay appends and deletes, and verify sees nothing wrong in between."""
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            emit(outbox, 50)
            with transaction(outbox) as session:
                insert(session)
                session.run("ROLLBACK")

    writer = threading.Thread(target=write)
    with RelayThread(outbox):
        writer.start()
        try:
            until(lambda: stream_tail(outbox.stream) > 0, "the relay is at work")
            for _ in range(8):
                result = verified(outbox)
                assert result.ok, result
                assert_accounted(result)
        finally:
            over.set()
            writer.join()
        until(lambda: table_ids(outbox) == [], "everything is relayed")
    result = verified(outbox)
    assert result.ok, result


def test_progress_is_told(sqlite_outbox: RelayOptions):
    emit(sqlite_outbox, 10)
    relay_once(keeping(sqlite_outbox))
    seen: list[tuple[str, int, int]] = []
    verify(
        sqlite_outbox.database,
        sqlite_outbox.table,
        sqlite_outbox.stream,
        lambda what, at, through: seen.append((what, at, through)),
    )
    assert ("reading the stream", 10, 10) in seen
    assert ("comparing the out table", 10, 10) in seen
