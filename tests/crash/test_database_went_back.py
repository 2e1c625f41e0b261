"""The database gives out IDs again: restored from a copy, truncated, or written with IDs by hand.

Each time: exit code 4, nothing appended that should not be, and `outbox rebase` is the way on.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from connector.cleaner import Cleaner, ranges
from connector.options import DeleteAfter
from connector.rebase import plan
from connector.sources import open_source
from connector.sources.session import open_session
from outbox.errors import StaleTail
from tests.crash.backup import Backup
from tests.crash.outbox_case import NEVER, row
from tests.crash.relay_process import At, running, until

if TYPE_CHECKING:
    from tests.crash.outbox_case import OutboxCase, Row

TRUNCATE = {
    "postgresql": ["TRUNCATE outbox RESTART IDENTITY"],
    "mysql": ["TRUNCATE TABLE outbox"],
    "sqlite": ["DELETE FROM outbox", "DELETE FROM sqlite_sequence WHERE name = 'outbox'"],
}


def write_again(case: OutboxCase, count: int) -> dict[int, Row]:
    """Rows whose IDs the stream has already; they are not what it has under them."""
    found: dict[int, Row] = {}
    connection = case.connect()
    for _ in range(count):
        content = replace(case.new_row(), subject="after the restore")
        found[case.insert(connection, content)] = content
    connection.commit()
    connection.close()
    return found


def test_restored_database_stops_the_relay_before_ids_come_again(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    backup = Backup(case)
    case.write(4)
    assert case.relay_once() == 0
    tail = case.tail()
    backup.restore()
    assert case.relay_once() == 4
    assert case.rebase() == ["move-sequence"]
    case.write(2)
    assert case.relay_once() == 0
    assert min(set(case.streamed()) - set(range(tail + 1))) == tail + 1
    case.assert_exactly_once()


def test_restored_database_that_gave_out_ids_again_stops_the_relay(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    backup = Backup(case)
    case.write(4, dead_every=0)
    assert case.relay_once() == 0
    tail = case.tail()
    backup.restore()
    again = write_again(case, 15)
    assert max(again) > tail > min(again)
    assert case.relay_once() == 4
    found = case.verify()
    assert not found.ok
    assert found.conflicting_ids == [event_id for event_id in sorted(again) if event_id <= tail]
    assert case.rebase() == ["renumber-rows"]
    assert case.relay_once() == 0
    below = {event_id: content for event_id, content in again.items() if event_id <= tail}
    above = {event_id: content for event_id, content in again.items() if event_id > tail}
    case.committed |= above
    case.move_committed(max(again), below)
    case.assert_exactly_once()


def test_restored_database_with_unrelayed_rows_goes_on_after_a_rebase(case: OutboxCase) -> None:
    """The copy holds rows that were relayed and deleted since: the stream has them already."""
    case.write(4)
    assert case.relay_once() == 0
    case.write(2)
    backup = Backup(case)
    case.write(3)
    assert case.relay_once() == 0
    backup.restore()
    assert len(case.rows_in_table()) == 6
    assert case.relay_once() == 4
    assert case.rebase() == ["move-sequence"]
    case.write(2)
    # What is kept and what is new wait for their deletion together, with nothing between them.
    assert case.relay_once(delete_after=DeleteAfter("age", 3600.0)) == 0
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_database_restored_under_a_running_relay_stops_it(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    backup = Backup(case)
    with running(case.orders(once=False)) as relay:
        case.write(4)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        backup.restore()
        assert relay.wait() == 4, relay.said()
    rebase_sequence(case)


def test_sqlite_file_restored_in_place_under_a_running_relay_stops_it(sqlite_case: OutboxCase) -> None:
    case, copy = sqlite_case, sqlite_case.folder / "copy.db"
    case.write(4)
    assert case.relay_once() == 0
    with closing(sqlite3.connect(case.database.path)) as live, closing(sqlite3.connect(copy)) as saved:
        live.backup(saved)
        with running(case.orders(once=False)) as relay:
            case.write(4)
            until(lambda: case.deleted_through() == max(case.committed), relay.said)
            saved.backup(live)
            assert relay.wait() == 4, relay.said()
    rebase_sequence(case)


def test_cleanup_that_does_not_follow_the_last_one_deletes_nothing(case: OutboxCase) -> None:
    """`deleted_through` went back with the database: to go on would leave what came back behind."""
    case.write(4, dead_every=0)
    options = case.options()
    with closing(open_source(options)) as source, open_session(options, "outbox cleaner") as session:
        source.open()
        cleaner = Cleaner(session, DeleteAfter(), lambda: None, lambda: 2**63 - 1)
        for rows in source.read(6, 100):
            for appended in ranges(6, rows):
                cleaner.take(appended)
        cleaner.start(6)
        cleaner.finish(10)
        with pytest.raises(StaleTail):
            cleaner.check()
    assert case.deleted_through() == 0
    assert case.rows_in_table() == sorted(case.committed)


def test_truncate_under_a_running_relay_stops_it(case: OutboxCase) -> None:
    case.write(4)
    with running(case.orders(once=False)) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        case.execute(*TRUNCATE[case.dialect])
        assert relay.wait() == 4, relay.said()
    rebase_sequence(case)


def test_truncate_while_the_relay_is_stopped_stops_the_next_one(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    case.execute(*TRUNCATE[case.dialect])
    assert case.relay_once() == 4
    rebase_sequence(case)


def test_truncated_table_that_grew_past_the_tail_stops_the_relay(case: OutboxCase) -> None:
    """The sequence alone tells nothing any more: the rows lie where all had been deleted."""
    case.write(4)
    assert case.relay_once() == 0
    tail = case.tail()
    case.execute(*TRUNCATE[case.dialect])
    again = write_again(case, tail + 3)
    assert case.relay_once() == 4
    assert max(case.streamed()) == tail
    assert case.rebase() == ["renumber-rows"]
    assert case.relay_once() == 0
    case.committed |= {event_id: content for event_id, content in again.items() if event_id > tail}
    case.move_committed(max(again), {event_id: content for event_id, content in again.items() if event_id <= tail})
    case.assert_exactly_once()


def test_explicit_id_where_all_was_deleted_stops_a_running_relay(case: OutboxCase) -> None:
    case.write(4)
    orders = replace(case.orders(once=False), replacements=(("connector.cleaner", "LATE_CHECK_SECONDS", 0.05),))
    with running(orders) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        late = insert_at(case, 3)
        assert relay.wait() == 4, relay.said()
        assert "row 3 appeared" in relay.said()
    rebase_late_row(case, late)


def test_explicit_id_where_all_was_deleted_stops_the_next_relay(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    late = insert_at(case, 3)
    assert case.relay_once() == 4
    rebase_late_row(case, late)


def test_explicit_id_among_relayed_rows_that_are_kept_stops_the_next_relay(case: OutboxCase) -> None:
    case.write(5)
    dead = sorted(set(range(1, max(case.committed))) - set(case.committed))
    assert case.relay_once(delete_after=NEVER) == 0
    late = insert_at(case, dead[0])
    assert case.relay_once(delete_after=NEVER) == 4
    rebase_late_row(case, late)


def test_explicit_id_in_a_range_to_be_deleted_stops_the_relay(case: OutboxCase) -> None:
    """The clean-up finds one row more than was appended, and deletes none of them."""
    case.write(5, dead_every=1)
    assert 4 not in case.committed
    with running(case.orders(At("clean", "before"), act="hold")) as relay:
        relay.wait_until_reached()
        late = insert_at(case, 4)
        relay.go_on()
        assert relay.wait() == 4, relay.said()
    assert case.rows_in_table() == sorted({*case.committed, 4})
    rebase_late_row(case, late)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_sequence_reset_below_rows_that_are_not_relayed_stops_the_relay(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """MySQL's counter does not go below its rows."""
    case: OutboxCase = request.getfixturevalue(f"{kind}_case")
    case.write(12)
    reset = {"postgresql": "ALTER SEQUENCE outbox_id_seq RESTART", "sqlite": "DELETE FROM sqlite_sequence"}
    case.execute(reset[kind])
    assert case.relay_once() == 4
    assert case.streamed() == {}
    rebase_sequence(case, streamed={})


def rebase_sequence(case: OutboxCase, streamed: dict[int, Row] | None = None) -> None:
    assert case.streamed() == (case.committed if streamed is None else streamed)
    assert case.rebase() == ["move-sequence"]
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def insert_at(case: OutboxCase, row_id: int) -> Row:
    content = row(row_id, "late")
    connection = case.connect()
    case.insert(connection, content, row_id)
    connection.commit()
    connection.close()
    return content


def rebase_late_row(case: OutboxCase, content: Row) -> None:
    before = case.streamed()
    assert before == case.committed
    assert not case.verify().ok
    assert [step.kind for step in plan(case.database, case.table, case.stream)] == ["renumber-rows"]
    assert case.rebase() == ["renumber-rows"]
    assert case.relay_once() == 0
    case.move_committed(max(before), {0: content})
    case.assert_exactly_once()


def test_explicit_id_above_the_sequence_stops_an_idle_relay_on_postgresql(postgresql_case: OutboxCase) -> None:
    """Nobody draws an ID any more: the sequence alone would never tell."""
    case = postgresql_case
    case.write(4)
    orders = replace(case.orders(once=False), replacements=(("connector.follower", "LOOK_SECONDS", 0.05),))
    with running(orders) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        explicit = insert_at(case, 5000)
        assert relay.wait() == 4, relay.said()
    assert case.relay_once() == 4
    assert case.streamed() == case.committed
    case.committed[5000] = explicit
    assert case.rebase() == ["move-sequence"]
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_explicit_id_far_above_the_sequence_stops_the_relay_on_postgresql(postgresql_case: OutboxCase) -> None:
    case = postgresql_case
    case.write(4)
    assert case.relay_once() == 0
    case.committed[5000] = insert_at(case, 5000)
    case.write(2)
    assert case.relay_once() == 4
    assert 5000 not in case.streamed()
    assert case.rebase() == ["move-sequence"]
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_explicit_id_far_above_moves_the_counter_and_the_relay_goes_on(
    request: pytest.FixtureRequest, kind: str
) -> None:
    case: OutboxCase = request.getfixturevalue(f"{kind}_case")
    case.write(4)
    assert case.relay_once() == 0
    case.committed[5000] = insert_at(case, 5000)
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()
