"""The object-store stream, its process killed at each request that changes something."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from stream_store import Outcome, check, open_stream
from stream_store.redaction import REDACTED_CONTENT_TYPE
from tests.crash.object_process import begin, live, objects, run_killed, trim_and_redact
from tests.crash.stream_events import assert_chained, batch, ids_of, row, rows_of


def assert_whole(url: str, acknowledged: int) -> None:
    """Everything acknowledged is there once, and a second life brings the stream to where the first would have."""
    with open_stream(url) as reader:
        tail = reader.tail()
        assert tail >= acknowledged
        assert rows_of(reader.read(0)) == [row(event_id) for event_id in range(1, tail + 1)]
    with objects(url) as stream:
        stream.bind("outbox-a", "/shop")
        assert stream.tail() == tail
        if tail:
            assert stream.append(batch(range(1, tail + 1))).outcome is Outcome.DUPLICATE
        assert stream.append(batch([tail + 1, tail + 2])).outcome is Outcome.APPENDED
        stream._changes.merge()
        # After the merge: an object that was written for this very state could not have been told from one under way.
        stream._changes.sweep()
        batches = list(stream.read(0))
        assert_chained(batches, 0)
        assert rows_of(batches) == [row(event_id) for event_id in range(1, tail + 3)]
    found = check(url)
    assert found.ok, found.damage
    assert (found.events, found.dead_ids, found.unacknowledged_bytes) == (tail + 2, 0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_writer_killed_at_each_request_loses_nothing(folder: Path, when: str) -> None:
    """From nothing: creation, bond, appends, merges of batches, merges of merged objects, deletes."""
    for nth in itertools.count(1):
        url, acknowledged = f"object+file://{folder}/{nth}", folder / f"{nth}.ack"
        acknowledged.touch()
        was_killed = run_killed(live, url, acknowledged, nth, when)
        if not was_killed:
            break
        said = [int(line) for line in acknowledged.read_text().split()]
        if said or (folder / str(nth) / "stream.json").exists():
            assert_whole(url, max(said, default=0))
    # Probe twice, identity, bond; seven appends; three merges of three requests each.
    assert nth > 20, "the scenario should have had more requests"


@pytest.mark.parametrize("when", ["before", "after"])
def test_trim_and_redaction_killed_at_each_request_are_done_or_repeated(folder: Path, when: str) -> None:
    for nth in itertools.count(1):
        url, acknowledged = f"object+file://{folder}/{nth}", folder / f"{nth}.ack"
        with objects(url) as stream:
            for first in range(1, 25, 3):
                stream.append(batch(range(first, first + 3)))
                if first == 13:
                    stream._changes.merge()
        acknowledged.touch()
        was_killed = run_killed(trim_and_redact, url, acknowledged, nth, when)
        with objects(url) as stream:
            kept = stream.info().trimmed_through
            assert kept in (0, 6) or kept % 3 == 0
            assert ids_of(stream.read(kept)) == list(range(kept + 1, 25))
            stream.trim(7)
            stream.redact([11, 20])
            stream.append(batch([25]))
            stream._changes.merge()
            stream._changes.sweep()
            kept = stream.info().trimmed_through
            events = {event["id"]: event for event in rows_of(stream.read(kept))}
            assert sorted(events) == list(range(kept + 1, 26))
            for event_id, event in events.items():
                gone = event["datacontenttype"] == REDACTED_CONTENT_TYPE
                assert gone == (event_id in (11, 20)), event_id
                assert gone or event == row(event_id)
        found = check(url)
        assert found.ok, found.damage
        assert found.unacknowledged_bytes == 0
        # In no object is there anything left of what was erased.
        for path in (folder / str(nth)).rglob("*"):
            assert path.is_dir() or b'"n":11,' not in path.read_bytes()
        if not was_killed:
            break
    assert nth > 6


@pytest.mark.parametrize("when", ["before", "after"])
def test_begin_killed_at_each_request_has_begun_or_not(folder: Path, when: str) -> None:
    for nth in itertools.count(1):
        url, acknowledged = f"object+file://{folder}/{nth}", folder / f"{nth}.ack"
        was_killed = run_killed(begin, url, acknowledged, nth, when)
        with objects(url) as stream:
            if stream.tail() == 0:
                stream.begin(1000, compacted=True)
            info = stream.info()
            assert (info.tail, info.trimmed_through, info.lost, info.compacted) == (1000, 1000, (), True)
            assert stream.append(batch([1001])).outcome is Outcome.APPENDED
            assert ids_of(stream.read(1000)) == [1001]
        assert check(url).ok
        if not was_killed:
            break
    assert nth > 5
