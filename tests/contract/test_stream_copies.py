"""Copies, snapshots and erasures, from and to every kind of stream."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import StaleTail, StreamLocked, Trimmed, UsageError, WrongPartner
from stream_store import check, open_stream, open_to_maintain
from stream_store.compaction import compact
from stream_store.copying import copy
from stream_store.erasure import find_subjects
from stream_store.readers import TABLE
from stream_store.snapshot import SnapshotAndLive, read_from_snapshot, unfinished_through
from tests.crash.stream_events import EPOCH, assert_chained, batch, chain_of, ids_of, row, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KINDS = ["memory", "file"]
_names = itertools.count()


@pytest.fixture(params=KINDS)
def source_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path, "source")


@pytest.fixture(params=KINDS)
def target_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path, "target")


def url_of(kind: str, folder: Path, name: str) -> str:
    if kind == "memory":
        return f"memory://copies-{name}-{next(_names)}"
    return f"file://{folder}/{name}?segment_bytes=1500"


def fill(url: str, last: int = 60) -> None:
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        for first in range(stream.tail() + 1, last, 10):
            stream.append(batch(range(first, first + 10)))


def facts(url: str) -> tuple[object, ...]:
    with open_stream(url) as stream:
        info = stream.info()
        rows = rows_of(stream.read(info.trimmed_through))
        return info.tail, info.trimmed_through, info.lost, info.outbox_id, info.source, info.compacted, rows


@pytest.mark.parametrize("kind", ["object+file", "s3", "redis", "kafka"])
def test_copy_goes_to_other_kinds_and_back_again(request, tmp_path, kind):
    """What was trimmed, lost, dead or erased is so there, too."""
    fixtures = {"s3": "s3_url", "redis": "redis_stream_url", "kafka": "kafka_url"}
    elsewhere = request.getfixturevalue(fixtures[kind]) if kind in fixtures else f"{kind}://{tmp_path}/elsewhere"
    here, back = (url_of("file", tmp_path, name) for name in ("source", "back"))
    fill(here)
    with open_stream(here, "write") as source:
        source.trim(25)
        source.redact([40, 41])
        source.append(batch([63, 70], prev_id=60))
        source.lose(80)
        source.append(batch(range(81, 90)))
        with open_stream(elsewhere, "write") as target:
            copy(source, target)
            assert copy(source, target).events == 0
    with open_stream(elsewhere) as source, open_stream(back, "write") as target:
        copy(source, target)
    assert facts(elsewhere) == facts(here)
    assert facts(back) == facts(here)
    assert check(elsewhere).ok


def test_copy_is_the_same_stream_elsewhere(source_url, target_url):
    with open_stream(source_url, "write") as source:
        source.bind("outbox-a", "/shop")
        source.append(batch([2, 3, 7], prev_id=0))
        source.lose(20)
        source.append(batch(range(21, 60)))
        source.redact([30, 31])
        source.lose(70)
        told: list[tuple[int, int]] = []
        with open_stream(target_url, "write") as target:
            done = copy(source, target, lambda at, of: told.append((at, of)))
            assert (done.after, done.through, done.events, done.lost_ids) == (0, 70, 42, 24)
            assert told[-1][1] == 70
            assert target.stream_id != source.stream_id
    assert facts(target_url) == facts(source_url)
    assert check(target_url).ok


def test_copy_of_a_trimmed_stream_begins_where_it_does(source_url, target_url):
    fill(source_url)
    with open_stream(source_url, "write") as source, open_stream(target_url, "write") as target:
        source.trim(25)
        assert source.info().trimmed_through
        copy(source, target)
        # It grows, and is trimmed, on.
        source.append(batch(range(61, 70)))
        assert copy(source, target).events == 9
        assert copy(source, target).events == 0
    assert facts(target_url) == facts(source_url)
    assert check(target_url).ok


def test_copy_goes_on_where_it_was(source_url, target_url):
    fill(source_url)
    with open_stream(source_url) as source, open_stream(target_url, "write") as target:
        target.bind("outbox-a", "/shop")
        target.append(batch(range(1, 14)))
        assert copy(source, target).after == 13
        assert_chained(list(target.read(0)), 0)
    assert facts(target_url) == facts(source_url)


def test_copy_onto_something_else_is_refused(source_url, target_url):
    fill(source_url)
    with open_stream(source_url) as source, open_stream(target_url, "write") as target:
        target.append(batch(range(1, 14), salt="another"))
        with pytest.raises(WrongPartner, match="another event at its end, ID 13"):
            copy(source, target)
        target.append(batch(range(14, 90)))
        with pytest.raises(WrongPartner, match="goes through ID 89"):
            copy(source, target)
        target.bind("outbox-b", "/shop")
        with pytest.raises(WrongPartner, match="outbox-b"):
            copy(source, target)
        assert target.tail() == 89
        with pytest.raises(WrongPartner, match="the very stream"):
            copy(source, source)


def test_copy_that_was_left_behind_by_a_trim_says_so(source_url, target_url):
    fill(source_url)
    with open_stream(source_url, "write") as source, open_stream(target_url, "write") as target:
        target.append(batch([1, 2]))
        source.trim(40)
        with pytest.raises(Trimmed, match="what lies between is gone"):
            copy(source, target)


def test_copy_finds_out_that_it_is_not_alone(source_url, target_url, monkeypatch):
    fill(source_url)
    with open_stream(source_url) as source, open_stream(target_url, "write") as target:
        read = source.read

        def slow(after: int, through: int):
            target.append(batch([1, 2]))
            return read(after, through)

        monkeypatch.setattr(source, "read", slow)
        with pytest.raises(StaleTail, match="somebody else writes there"):
            copy(source, target)


def keyed(events: Iterable[tuple[int, str | None, str | None]], prev_id: int | None = None) -> EventBatch:
    """Events as (ID, subject, data)."""
    rows = [
        {**row(event_id), "subject": subject, "data": data, "data_bytes": None, "datacontenttype": None}
        for event_id, subject, data in events
    ]
    first = rows[0]["id"]
    return EventBatch(first - 1 if prev_id is None else prev_id, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


STORY = [
    (1, "a", "1"), (2, "b", "1"), (3, None, "1"), (4, "a", "2"), (5, "c", "1"),
    (6, "b", None), (7, None, "2"), (8, "c", "2"), (9, "d", "1"), (10, "a", "3"),
]  # fmt: skip


@pytest.fixture
def live_url(source_url: str) -> str:
    with open_stream(source_url, "write") as source:
        source.bind("outbox-a", "/shop")
        for position in range(0, 10, 2):
            source.append(keyed(STORY[position : position + 2]))
    return source_url


def state_of(batches: Iterable[EventBatch]) -> dict[str, str | None]:
    """What a consumer has that keeps the latest of each subject."""
    state = {}
    for event in rows_of(batches):
        if event["subject"] is not None:
            state[event["subject"]] = event["data"]
    return {subject: data for subject, data in state.items() if data is not None}


def test_snapshot_has_the_latest_event_of_each_subject(live_url, target_url):
    with open_stream(live_url) as live, open_stream(target_url, "write") as target:
        done = compact(live, target)
        assert ids_of(target.read(0)) == [3, 7, 8, 9, 10]
        assert_chained(list(target.read(0)), 0)
        assert (done.through, done.subjects, done.tail, done.events_read, done.events_written) == (10, 4, 10, 10, 5)
        info = target.info()
        assert (info.compacted, info.outbox_id, info.source) == (True, "outbox-a", "/shop")
        assert state_of(target.read(0)) == state_of(live.read(0)) == {"a": "3", "c": "2", "d": "1"}
        assert unfinished_through(target) is None
        with pytest.raises(UsageError, match="finished snapshot"):
            compact(live, target)
    assert check(target_url).ok


def test_snapshot_may_keep_tombstones_and_end_anywhere(live_url, target_url):
    with open_stream(live_url) as live, open_stream(target_url, "write") as target:
        assert compact(live, target, through=8, keep_tombstones=True).tail == 8
        assert ids_of(target.read(0)) == [3, 4, 6, 7, 8]


def test_snapshot_ends_with_the_last_event_whatever_it_is(live_url, target_url):
    """Consumers go on behind it: a tombstone that was left out there would not be seen by anybody."""
    with open_stream(live_url) as live, open_stream(target_url, "write") as target:
        compact(live, target, through=6)
        assert ids_of(target.read(0)) == [3, 4, 5, 6]


def test_redacted_event_is_the_latest_and_no_tombstone(live_url, target_url):
    with open_stream(live_url, "write") as live, open_stream(target_url, "write") as target:
        live.redact([8])
        compact(live, target)
        assert ids_of(target.read(0)) == [3, 7, 8, 9, 10]


def test_consumers_read_the_snapshot_and_go_on_in_the_live_stream(live_url, target_url):
    with open_stream(live_url, "write") as live, open_stream(target_url, "write") as target:
        compact(live, target, through=8)
        whole = state_of(live.read(0))
        live.append(keyed([(12, "e", "1"), (13, "c", None)], prev_id=10))
        live.trim(8)
        batches = list(read_from_snapshot(target, live))
        assert ids_of(batches) == [3, 4, 7, 8, 9, 10, 12, 13]
        assert_chained(batches, 0)
        assert state_of(batches) == {"a": "3", "d": "1", "e": "1"} != whole
        assert ids_of(read_from_snapshot(target, live, after=4)) == [7, 8, 9, 10, 12, 13]
        assert ids_of(read_from_snapshot(target, live, after=9, through=12)) == [10, 12]
        assert ids_of(read_from_snapshot(target, live, after=3, through=7)) == [4, 7]
        both = SnapshotAndLive(target, live)
        assert (both.tail(), both.info().trimmed_through, both.find(EPOCH + timedelta(seconds=4))) == (13, 0, 4)
        assert both.find(EPOCH + timedelta(seconds=11)) == 12


def test_snapshot_of_a_trimmed_stream_is_made_from_the_one_before(live_url, target_url, tmp_path):
    with (
        open_stream(live_url, "write") as live,
        open_stream(target_url, "write") as first,
        open_stream(url_of("file", tmp_path, "second"), "write") as second,
    ):
        compact(live, first, through=8)
        live.append(keyed([(11, "c", "3"), (12, "b", "9")]))
        live.trim(8)
        compact(SnapshotAndLive(first, live), second)
        assert ids_of(second.read(0)) == [3, 7, 9, 10, 11, 12]
        assert state_of(read_from_snapshot(second, live)) == {"a": "3", "b": "9", "c": "3", "d": "1"}


def test_snapshot_and_stream_that_do_not_fit_are_refused(live_url, target_url):
    with open_stream(live_url, "write") as live, open_stream(target_url, "write") as target:
        with pytest.raises(UsageError, match="no snapshot"):
            SnapshotAndLive(live, live)
        compact(live, target, through=4)
        live.trim(9)
        with pytest.raises(Trimmed, match="take a newer snapshot"):
            read_from_snapshot(target, live)
        with open_stream("memory://another", "write") as other, pytest.raises(WrongPartner, match="outbox-a"):
            SnapshotAndLive(target, other)


def test_unfinished_snapshot_is_finished_as_what_it_was(live_url, target_url, monkeypatch):
    monkeypatch.setattr("stream_store.compaction.GATHER_ROWS", 1)
    with open_stream(live_url, "write") as live, open_stream(target_url, "write") as target:
        append = target.append
        with monkeypatch.context() as patch:
            patch.setattr(target, "append", lambda each: append(each) if each.last_id < 8 else 1 / 0)
            with pytest.raises(ZeroDivisionError):
                compact(live, target)
        assert unfinished_through(target) == 10
        with pytest.raises(UsageError, match="not finished"):
            read_from_snapshot(target, live)
        live.append(keyed([(11, "a", "4"), (12, "z", "1")]))
        with pytest.raises(UsageError, match="through ID 10, not 12"):
            compact(live, target, through=12)
        compact(live, target)
        assert ids_of(target.read(0)) == [3, 7, 8, 9, 10]
        assert unfinished_through(target) is None


def test_snapshot_goes_to_no_place_that_is_in_use(live_url, target_url):
    fill(target_url)
    with open_stream(live_url) as live, open_stream(target_url, "write") as target:
        with pytest.raises(WrongPartner, match="something else"):
            compact(live, target)
        assert target.tail() == 60
    with open_stream("memory://an empty one", "write") as empty, pytest.raises(UsageError, match="nothing to compact"):
        compact(empty, empty)


def test_events_of_a_subject_are_found_and_erased(live_url):
    with open_to_maintain(live_url) as live:
        found = find_subjects(live, ["a", "d", "nobody"])
        assert (found.ids, found.redacted) == ((1, 4, 9, 10), 0)
        assert live.redact(found.ids) == 4
        found = find_subjects(live, ["a"])
        assert (found.ids, found.redacted, found.events) == ((), 3, 3)
    assert check(live_url).redacted == 4


def test_stream_that_another_process_writes_is_maintained_by_it(tmp_path):
    url = url_of("file", tmp_path, "busy")
    fill(url)
    with open_stream(url, "write") as writer, open_to_maintain(url) as maintained:
        maintained.trim(25)
        trimmed = maintained.info().trimmed_through
        assert 0 < trimmed <= 25
        assert maintained.redact([30, 31, 31]) == 2
        assert maintained.redact([30]) == 0
        writer.append(batch([61]))
        assert chain_of(maintained.read(60)) == [(60, 61)]
        deadline = time.monotonic() + 20
        while list((tmp_path / "busy" / "requests").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(UsageError, match="open for reading"):
            maintained.append(batch([62]))
        (tmp_path / "busy" / "damaged").mkdir()
        (tmp_path / "busy" / "damaged" / "x").touch()
        with pytest.raises(Exception, match="put aside"):
            maintained.redact([32])
    maintained = open_to_maintain(url)
    maintained.close()


def test_writer_that_does_not_answer_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    from stream_store.file import requests
    from stream_store.file.lock import WriterLock

    url = url_of("file", tmp_path, "silent")
    fill(url)
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.2)
    lock = WriterLock(tmp_path / "silent")
    try:
        with open_to_maintain(url) as maintained, pytest.raises(StreamLocked, match="has not done what was asked"):
            maintained.trim(30)
    finally:
        lock.release()
    assert not list((tmp_path / "silent" / "requests").iterdir())


def test_known_readers_are_not_copied(source_url, target_url):
    fill(source_url)
    with open_stream(source_url) as source, open_stream(target_url, "write") as target:
        source.report(TABLE, "orders", 7)
        copy(source, target)
        assert target.readers() == []
