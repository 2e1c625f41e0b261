"""The cleaner: which ranges it keeps, when one is due, and that it deletes what was appended and nothing else."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import cleaner
from connector.cleaner import RANGE_ROWS_MAX, AppendedRange, Cleaner, nothing_left, ranges
from connector.options import DeleteAfter, RelayOptions
from connector.source import Rows
from connector.sources import open_source
from connector.sources.session import open_session
from outbox.batch import SCHEMA
from outbox.database import DatabaseUrl
from outbox.errors import LateRow, StaleTail
from outbox.names import OutTable
from outbox.schema import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.source import Source
    from outbox.database import Session

ID_MAX = 2**63 - 1


def rows_of(ids: list[int]) -> Rows:
    columns = [pa.array(ids, pa.int64()), *(pa.nulls(len(ids), kind) for kind in SCHEMA.types[1:])]
    return Rows(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names), pa.array([7] * len(ids), pa.int64()))


def waiting(policy: str, materialized_through: int | None = None) -> Cleaner:
    """A cleaner that only keeps ranges: it is never started, and its session never used."""
    return Cleaner(None, DeleteAfter.parse(policy), lambda: materialized_through, lambda: ID_MAX)  # type: ignore[arg-type]


def appended(after: int, through: int, *, rows: int = 1, at: float = 0.0) -> AppendedRange:
    return AppendedRange(after, through, rows, 0, 0, at, at)


# Ranges


@given(
    st.lists(st.integers(1, ID_MAX), min_size=1, max_size=50, unique=True).map(sorted),
    st.integers(0, 5),
)
def test_range_adds_up_exactly_whatever_its_ids(ids: list[int], distance: int):
    after = max(ids[0] - 1 - distance, 0)
    (found,) = ranges(after, rows_of(ids))
    assert (found.after, found.through, found.rows) == (after, ids[-1], len(ids))
    assert (found.id_sum, found.version_sum) == (sum(ids), 7 * len(ids))


def test_no_range_has_too_many_rows_for_one_transaction():
    ids = list(range(11, 2 * RANGE_ROWS_MAX + 16))
    found = list(ranges(10, rows_of(ids)))
    assert [part.rows for part in found] == [RANGE_ROWS_MAX, RANGE_ROWS_MAX, 5]
    assert found[0].after == 10
    for one, next_one in itertools.pairwise(found):
        assert one.through == next_one.after
    assert sum(part.id_sum for part in found) == sum(ids)


def test_ranges_that_follow_each_other_join():
    first, second = next(ranges(0, rows_of([1, 3]))), next(ranges(3, rows_of([5])))
    joined = first.joined(second)
    assert (joined.after, joined.through, joined.rows, joined.id_sum, joined.version_sum) == (0, 5, 3, 9, 21)
    assert (joined.begun_at, joined.appended_at) == (first.begun_at, second.appended_at)


def test_ranges_that_do_not_follow_each_other_never_join():
    with pytest.raises(AssertionError):
        next(ranges(0, rows_of([1]))).joined(next(ranges(2, rows_of([3]))))


# What is due when


def due_ranges(held: Cleaner, *, over: bool = False) -> list[tuple[int, int]]:
    found = []
    while (due := held._next_due(over=over)) is not None:
        found.append((due.after, due.through))
    return found


def test_never_keeps_nothing_in_mind():
    held = waiting("never")
    held.take(appended(0, 5))
    assert due_ranges(held, over=True) == []


def test_small_ranges_are_deleted_together():
    held = waiting("durable")
    for number in range(10):
        held.take(appended(number, number + 1))
    assert due_ranges(held) == [(0, 10)]


def test_joined_range_stays_within_one_transaction():
    held = waiting("durable")
    for number in range(3):
        held.take(appended(number * 10, number * 10 + 10, rows=RANGE_ROWS_MAX // 2))
    assert due_ranges(held) == [(0, 20), (20, 30)]


def test_age_counts_from_the_last_row_of_a_range(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(cleaner.time, "monotonic", lambda: now)
    held = waiting("10s")
    held.take(appended(0, 1, at=1000.0))
    held.take(appended(1, 2, at=1000.5))
    now = 1010.2
    assert due_ranges(held, over=True) == []
    now = 1010.5
    assert due_ranges(held) == [(0, 2)]


def test_steady_trickle_does_not_keep_rows_from_growing_old(monkeypatch: pytest.MonkeyPatch):
    """Each row comes within a second of the one before; their range must not grow for ever."""
    monkeypatch.setattr(cleaner.time, "monotonic", lambda: 1100.0)
    held = waiting("10s")
    for number in range(1000):
        held.take(appended(number, number + 1, at=1000.0 + number / 10))
    through = due_ranges(held)[-1][1]
    assert through >= 880, "everything older than 10 s, but for the gathering of a second"


def test_materialized_waits_for_the_slowest_sink():
    reached: int | None = None
    held = Cleaner(None, DeleteAfter.parse("materialized"), lambda: reached, lambda: ID_MAX)  # type: ignore[arg-type]
    held.take(appended(0, 5, at=0))
    held.take(appended(5, 9, at=100))
    assert due_ranges(held, over=True) == []
    reached = 4
    assert due_ranges(held) == []
    reached = 8
    assert due_ranges(held) == [(0, 5)]
    reached = 9
    assert due_ranges(held) == [(5, 9)]


def test_deletes_wait_while_there_is_a_backlog_but_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(cleaner.time, "monotonic", lambda: now)
    held = waiting("durable")
    held.backlog = True
    held.take(appended(0, 5, at=1000.0))
    assert due_ranges(held) == []
    now += cleaner.BACKLOG_PATIENCE_SECONDS
    assert due_ranges(held) == [(0, 5)]
    held.take(appended(5, 6, at=now))
    assert due_ranges(held, over=True) == [(5, 6)], "at the end everything goes"


def test_nothing_goes_before_the_stream_has_settled_it():
    settled = iter([4, 5, 5, 9])
    held = Cleaner(None, DeleteAfter.parse("durable"), lambda: None, lambda: next(settled))  # type: ignore[arg-type]
    held.take(appended(0, 5, rows=RANGE_ROWS_MAX))
    held.take(appended(5, 9))
    assert due_ranges(held, over=True) == []
    assert due_ranges(held) == [(0, 5)]
    assert due_ranges(held) == [(5, 9)]


def test_range_does_not_grow_while_it_is_being_settled():
    def settle() -> int:
        held.take(appended(5, 6))
        return 5

    held = Cleaner(None, DeleteAfter.parse("durable"), lambda: None, settle)  # type: ignore[arg-type]
    held.take(appended(0, 5))
    assert held._next_due(over=False) == appended(0, 5)
    assert [(left.after, left.through) for left in held._ranges] == [(5, 6)]


# What is deleted


class Table:
    """A real out table of five rows, and a cleaner on it that is driven step by step."""

    def __init__(self, url: str) -> None:
        self.options = RelayOptions(DatabaseUrl.parse(url), OutTable(), "memory://unused")
        install(self.options.database, self.options.table)
        self.session: Session = open_session(self.options, "test")
        self.source: Source = open_source(self.options)
        self.source.open()
        self.cleaner = Cleaner(self.session, DeleteAfter.parse("durable"), lambda: None, lambda: ID_MAX)
        for number in range(5):
            self.session.run("INSERT INTO outbox (type, data) VALUES ('t', :data)", {"data": f'"{number}"'})

    def read(self, after: int = 0, through: int = 5) -> AppendedRange:
        """The range as the relay would know it after an append."""
        (rows,) = self.source.read(after, 100, through=through)
        (found,) = ranges(after, rows)
        return found

    def left(self) -> tuple[list[int], int]:
        ids = [int(number) for (number,) in self.session.run("SELECT id FROM outbox ORDER BY id")]
        return ids, int(self.session.row("standing")[1])


@pytest.fixture
def table(sqlite_url: str) -> Iterator[Table]:
    held = Table(sqlite_url)
    yield held
    held.source.close()
    held.session.close()


def test_range_goes_and_deleted_through_moves(table: Table):
    table.cleaner._delete(table.read(through=3))
    assert table.left() == ([4, 5], 3)
    table.cleaner._delete(table.read(after=3))
    assert table.left() == ([], 5)
    assert table.cleaner.rows_deleted == 5


def test_range_that_another_relay_has_deleted_is_fine(table: Table):
    held = table.read(through=3)
    table.cleaner._delete(held)
    table.cleaner._delete(held)
    assert table.left() == ([4, 5], 3)
    assert table.cleaner.rows_deleted == 3


def test_range_that_another_relay_has_deleted_in_part_is_not_ours(table: Table):
    held = table.read()
    table.cleaner._delete(table.read(through=2))
    with pytest.raises(StaleTail):
        table.cleaner._delete(held)
    assert table.left() == ([3, 4, 5], 2)


def test_range_behind_one_that_is_still_there_is_not_deleted(table: Table):
    with pytest.raises(StaleTail):
        table.cleaner._delete(table.read(after=3))
    assert table.left() == ([1, 2, 3, 4, 5], 0)


@pytest.mark.parametrize(
    "tampering",
    [
        "DELETE FROM outbox WHERE id = 3",
        "DELETE FROM outbox WHERE id = 5",
        "INSERT INTO outbox (id, type) VALUES (0, 't')",
        """DELETE FROM outbox WHERE id = 2;INSERT INTO outbox (id, type, data) VALUES (2, 't', '"another"')""",
    ],
)
def test_rows_that_are_not_what_was_appended_stay(table: Table, tampering: str):
    held = table.read()
    if "(0," in tampering:
        held = AppendedRange(-1, 5, held.rows, held.id_sum, held.version_sum, 0.0, 0.0)
        table.session.run("UPDATE outbox_info SET deleted_through = -1")
    for statement in tampering.split(";"):
        table.session.run(statement)
    before = table.left()
    with pytest.raises(StaleTail, match="are not what was appended"):
        table.cleaner._delete(held)
    assert table.left() == before


def test_range_in_which_nothing_is_left_moves_deleted_through_only_if_that_is_so(table: Table):
    with pytest.raises(StaleTail):
        table.cleaner._delete(nothing_left(0, 5))
    assert table.left() == ([1, 2, 3, 4, 5], 0)
    table.session.run("DELETE FROM outbox")
    table.cleaner._delete(nothing_left(0, 5))
    assert table.left() == ([], 5)


def test_thread_deletes_what_it_is_given_and_ends_when_told(table: Table):
    table.cleaner.start(0)
    table.cleaner.take(table.read(through=2))
    table.cleaner.take(table.read(after=2))
    table.cleaner.finish(30)
    table.cleaner.check()
    assert table.left() == ([], 5)


def test_late_row_ends_the_thread_with_its_error(table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cleaner, "LATE_CHECK_SECONDS", 0.0)
    table.cleaner._late_check_due = 0.0
    table.cleaner.start(2)
    table.cleaner.finish(30)
    with pytest.raises(LateRow, match="row 1 appeared"):
        table.cleaner.check()
