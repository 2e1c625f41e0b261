"""The stream's folder is an older copy of itself, empty, or another stream's.

What the out table still has is appended again; what it no longer has is an error that
`outbox rebase` records.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from outbox.errors import WrongPartner
from stream_store import open_stream
from tests.crash.outbox_case import NEVER, OutboxCase
from tests.crash.relay_process import At, running, until

if TYPE_CHECKING:
    from pathlib import Path


def copied(case: OutboxCase) -> Path:
    return shutil.copytree(case.stream_folder, case.folder / "copy")


def put_back(case: OutboxCase, copy: Path) -> None:
    """The copy in the place of the folder, in one step for whoever looks."""
    case.stream_folder.rename(case.folder / "gone")
    copy.rename(case.stream_folder)


def lose(case: OutboxCase, after: int, through: int) -> int:
    """The committed rows in a lost range are gone for good; how many IDs that are."""
    case.committed = {key: content for key, content in case.committed.items() if not after < key <= through}
    return through - after


def test_older_copy_of_the_stream_heals_while_the_rows_are_kept(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once(delete_after=NEVER) == 0
    copy = copied(case)
    case.write(4)
    assert case.relay_once(delete_after=NEVER) == 0
    put_back(case, copy)
    case.write(2)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_older_copy_that_ends_where_rows_were_deleted_heals(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    copy = copied(case)
    case.write(4)
    assert case.relay_once(delete_after=NEVER) == 0
    put_back(case, copy)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_older_copy_of_the_stream_stops_the_relay_when_rows_were_deleted(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    copy = copied(case)
    before = case.tail()
    case.write(4)
    assert case.relay_once() == 0
    through = case.deleted_through()
    put_back(case, copy)
    case.write(2)
    assert case.relay_once() == 4
    assert case.tail() == before
    assert not case.verify().ok
    assert case.rebase() == ["record-loss"]
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=lose(case, before, through))


def test_older_copy_under_a_running_relay_stops_it_when_rows_were_deleted(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    copy, before = copied(case), case.tail()
    with running(case.orders(once=False)) as relay:
        case.write(4)
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        put_back(case, copy)
        through = case.deleted_through()
        case.write(1)
        assert relay.wait() == 4, relay.said()
    assert case.rebase() == ["record-loss"]
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=lose(case, before, through))


def test_older_copy_put_in_place_between_append_and_delete_is_noticed_by_the_next_relay(case: OutboxCase) -> None:
    """The relay has the old folder open, and deletes what it appended there."""
    case.write(4)
    assert case.relay_once() == 0
    copy, before = copied(case), case.tail()
    case.write(2)
    with running(case.orders(At("clean", "before"), act="hold")) as relay:
        relay.wait_until_reached()
        put_back(case, copy)
        relay.go_on()
        relay.wait()
    case.write(1)
    assert case.relay_once() == 4
    through = case.deleted_through()
    assert case.rebase() == ["record-loss"]
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=lose(case, before, through))


def test_emptied_stream_folder_stops_the_relay(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    through = case.deleted_through()
    shutil.rmtree(case.stream_folder)
    case.write(2)
    assert case.relay_once() == 4
    assert case.rebase() == ["bind-stream", "record-loss"]
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=lose(case, 0, through))


def test_stream_folder_emptied_under_a_running_relay_stops_it(case: OutboxCase) -> None:
    case.write(4)
    with running(case.orders(once=False)) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        through = case.deleted_through()
        shutil.rmtree(case.stream_folder)
        case.write(2)
        assert relay.wait() == 4, relay.said()
    assert case.rebase() == ["bind-stream", "record-loss"]
    assert case.relay_once() == 0
    case.assert_exactly_once(recorded_lost=lose(case, 0, through))


def test_emptied_stream_folder_is_filled_again_by_a_rebase_while_the_rows_are_kept(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once(delete_after=NEVER) == 0
    shutil.rmtree(case.stream_folder)
    assert case.relay_once() == 4
    assert case.rebase() == ["bind-stream"]
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_stream_of_another_outbox_is_refused_and_left_alone(sqlite_case: OutboxCase) -> None:
    case = sqlite_case
    other = OutboxCase(f"sqlite:///{case.folder / 'other.db'}", case.folder / "other")
    for one in (case, other):
        one.write(4)
        assert one.relay_once() == 0
        one.write(1)
    case.stream_folder.rename(case.folder / "own")
    other.stream_folder.rename(case.stream_folder)
    assert case.relay_once() == 4
    with pytest.raises(WrongPartner):
        case.rebase()
    case.stream_folder.rename(other.stream_folder)
    (case.folder / "own").rename(case.stream_folder)
    for one in (case, other):
        assert one.relay_once() == 0
        one.assert_exactly_once()


def test_new_stream_in_place_of_the_bound_one_is_refused(sqlite_case: OutboxCase) -> None:
    case = sqlite_case
    case.write(4)
    assert case.relay_once() == 0
    case.stream_folder.rename(case.folder / "own")
    open_stream(case.stream, "write").close()
    assert case.relay_once() == 4
    shutil.rmtree(case.stream_folder)
    (case.folder / "own").rename(case.stream_folder)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_stream_of_a_new_outbox_is_not_taken_for_that_of_its_predecessor(sqlite_case: OutboxCase) -> None:
    """The out table was dropped and made anew: its IDs begin again, the stream is not its own."""
    case = sqlite_case
    case.write(4)
    assert case.relay_once() == 0
    again = OutboxCase(f"sqlite:///{case.folder / 'again.db'}", case.folder)
    again.write(8)
    assert again.relay_once() == 4
    assert case.streamed() == case.committed
