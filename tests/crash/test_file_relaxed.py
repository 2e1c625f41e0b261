"""File streams with `acks=write`: appends are not synced, `settle` is, and a power failure takes back only the rest."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_store import Outcome, check, open_stream
from stream_store.file import disk
from stream_store.file.mark import SETTLED_NAME
from tests.crash.outbox_case import OutboxCase
from tests.crash.relay_process import At, running
from tests.crash.stream_events import assert_chained, batch, ids_of, row, rows_of
from tests.crash.stream_faults import Disk, PowerCut, arm, run_and_kill

if TYPE_CHECKING:
    from collections.abc import Callable

RELAXED = "?acks=write&segment_bytes=2500"


def append_and_settle(url: str, last: int, settled: Callable[[int], None]) -> None:
    """What a relay does: append in threes, and now and then settle, which lets rows be deleted."""
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        while (tail := stream.tail()) < last:
            assert stream.append(batch(range(tail + 1, tail + 4))).outcome is Outcome.APPENDED
            if tail % 2:
                settled(stream.settle())


def assert_whole_through(url: str, settled: int, context: str) -> None:
    """What was settled is there, what is there is whole, and the relay appends the rest again."""
    with open_stream(url, "write") as stream:
        tail = stream.tail()
        assert tail >= settled, context
        batches = list(stream.read(0))
        assert_chained(batches, 0)
        assert rows_of(batches) == [row(event_id) for event_id in range(1, tail + 1)], context
        assert stream.append(batch(range(tail + 1, tail + 4))).outcome is Outcome.APPENDED
        assert stream.settle() == tail + 3
    found = check(url)
    assert found.ok, (context, found.damage)
    assert found.events == tail + 3


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_killed_writer_loses_nothing_at_all(folder: Path, halfway: bool) -> None:
    """A kill takes nothing out of the page cache."""
    for at in itertools.count(1):
        url = f"file://{folder}/{at}{RELAXED}"
        killed, settled = run_and_kill(lambda ack, url=url: append_and_settle(url, 15, ack), at, halfway=halfway)
        assert_whole_through(url, max(settled, default=0), f"killed at {at}")
        shutil.rmtree(folder / str(at))
        if not killed:
            break
    assert at > 25


@pytest.mark.parametrize("again", [RELAXED, ""], ids=["relaxed again", "strict again"])
@pytest.mark.parametrize(
    ("names", "data"),
    [("synced", "synced"), ("current", "synced"), ("current", "zeros"), ("synced", "between"), ("current", "current")],
)
def test_power_cut_takes_back_only_what_was_not_settled(folder: Path, names: str, data: str, again: str) -> None:
    for at in itertools.count(1):
        place, image = folder / f"{at}", folder / f"{at}-image"
        place.mkdir(mode=0o700)
        settled = [0]
        power = Disk(place, folder / f"{at}-shadow")

        def cut(power: Disk = power, image: Path = image) -> None:
            if not image.exists():
                power.image(image, names=names, data=data)
            raise PowerCut

        try:
            with power.recording(), arm(cut, at, halfway=False, seen=[]):
                append_and_settle(f"file://{place}{RELAXED}", 15, settled.append)
        except PowerCut:
            pass
        else:
            break
        assert_whole_through(f"file://{image}{again}", max(settled), f"cut at {at}")
        for path in (place, image, folder / f"{at}-shadow"):
            shutil.rmtree(path)
    assert at > 25


def test_appends_sync_nothing_and_settle_syncs_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{folder}/s"
    syncs: list[int] = []
    with open_stream(url + "?acks=write", "write") as stream:
        monkeypatch.setattr(disk, "sync", syncs.append)
        for event_id in range(1, 10):
            stream.append(batch([event_id]))
        assert syncs == []
        with open_stream(url) as reader:
            assert ids_of(reader.read(0)) == list(range(1, 10))
            assert reader.settle() == 0
            assert stream.settle() == 9
            assert reader.settle() == 9
        assert len(syncs) == 2  # the segment, and the record that says so
        assert stream.settle() == 9
        assert len(syncs) == 2
        monkeypatch.undo()
        stream.lose(20)
        assert stream.settle() == 20


def test_strict_writer_makes_a_relaxed_stream_strict_again(folder: Path) -> None:
    url = f"file://{folder}/s"
    with open_stream(url + "?acks=write", "write") as stream:
        stream.append(batch(range(1, 10)))
    assert (folder / "s" / SETTLED_NAME).exists()
    with open_stream(url, "write") as stream:
        assert not (folder / "s" / SETTLED_NAME).exists()
        stream.append(batch([10]))
        assert stream.settle() == 10
    assert check(url).ok


def test_relay_that_is_killed_before_it_settles_has_deleted_nothing(folder: Path) -> None:
    """The clean-up waits for `settle`: what a power failure could take back is still in the table."""
    case = OutboxCase(f"sqlite:///{folder / 'app.db'}", folder)
    case.stream += "?acks=write"
    case.write(10)
    with running(case.orders(At("settle", "before"))) as relay:
        assert relay.wait() < 0, relay.said()
    assert case.deleted_through() == 0
    assert len(case.rows_in_table()) == len(case.committed)
    shutil.rmtree(case.stream_folder)  # all of it was only in the page cache
    assert case.relay_once() == 4
    assert case.rebase() == ["bind-stream"]
    assert case.relay_once() == 0
    case.assert_exactly_once()
