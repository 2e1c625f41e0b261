"""What every stream does, whatever stores it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from outbox.batch import SCHEMA, EventBatch
from outbox.errors import (
    StreamLocked,
    StreamMissing,
    StreamUnavailable,
    Transient,
    Trimmed,
    UsageError,
    WrongPartner,
)
from stream_store import Outcome, check, open_stream
from stream_store.readers import GROUP, TABLE, lowest, reached
from stream_store.redaction import REDACTED_CONTENT_TYPE
from tests.crash.stream_events import EPOCH, assert_chained, batch, chain_of, ids_of, row, rows_of

if TYPE_CHECKING:
    from pathlib import Path

_names = itertools.count()


BACKENDS = [
    "memory",
    "file",
    "file with small segments",
    "file with acks=write",
    "redis",
    "kafka",
    "objects",
    "objects merged often",
    "s3",
]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka_url"))
    if request.param == "memory":
        return f"memory://contract-{next(_names)}"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_stream_url"))
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    options = {
        "file with small segments": "?segment_bytes=1500",
        "file with acks=write": "?acks=write",
        "objects merged often": "?merge_objects=3&merge_bytes=5000",
    }
    scheme = "object+file" if "objects" in request.param else "file"
    return f"{scheme}://{tmp_path}/a stream" + options.get(request.param, "")


def test_new_stream_is_empty(url):
    with open_stream(url, "write") as stream:
        assert stream.tail() == 0
        assert list(stream.read(0)) == []
        assert stream.find(EPOCH) == 1
        info = stream.info()
        assert (info.tail, info.trimmed_through, info.lost) == (0, 0, ())
        assert info.outbox_id is None
        assert info.stream_id == stream.stream_id


def test_events_come_back_as_they_were(url):
    with open_stream(url, "write") as stream:
        appended = stream.append(batch(range(1, 40)))
        assert (appended.outcome, appended.tail) == (Outcome.APPENDED, 39)
        assert rows_of(stream.read(0)) == [{**row(event_id)} for event_id in range(1, 40)]


def test_batches_are_chained_and_jumped_ids_stay_visible(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([3, 4, 9], prev_id=0))
        stream.append(batch([15], prev_id=9))
        stream.append(batch([16, 20], prev_id=15))
        batches = list(stream.read(0))
        assert_chained(batches, 0)
        assert ids_of(batches) == [3, 4, 9, 15, 16, 20]


def test_batch_behind_a_later_prev_id_is_tail_lost(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2]))
        answer = stream.append(batch([9], prev_id=8))
        assert (answer.outcome, answer.tail, answer.at_id) == (Outcome.TAIL_LOST, 2, 9)
        assert ids_of(stream.read(0)) == [1, 2]


def test_batch_that_overlaps_the_tail_is_stale_and_refused_whole(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2, 3]))
        answer = stream.append(batch([3, 4], prev_id=2))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 3)
        assert stream.append(batch([7], prev_id=2)).outcome is Outcome.STALE
        assert ids_of(stream.read(0)) == [1, 2, 3]


def test_same_events_again_are_a_duplicate_however_they_are_cut(url):
    with open_stream(url, "write") as stream:
        for first in (1, 11, 21):
            stream.append(batch(range(first, first + 10)))
        for again in (batch(range(1, 31)), batch(range(5, 25)), batch([30]), batch([2, 9, 17, 28], prev_id=0)):
            assert stream.append(again).outcome is Outcome.DUPLICATE
        assert ids_of(stream.read(0)) == list(range(1, 31))


def test_late_row_is_an_error_not_a_skip(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2, 5, 6], prev_id=0))
        answer = stream.append(batch([2, 4, 6], prev_id=1))
        assert (answer.outcome, answer.at_id) == (Outcome.LATE, 4)
        answer = stream.append(batch([3]))
        assert (answer.outcome, answer.at_id) == (Outcome.LATE, 3)


def test_other_content_under_the_same_id_is_a_conflict(url):
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        rows = [row(event_id) for event_id in range(1, 10)]
        rows[6]["data"] = None
        changed = EventBatch(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        answer = stream.append(changed)
        assert (answer.outcome, answer.at_id) == (Outcome.CONFLICT, 7)
        assert rows_of(stream.read(0))[6] == row(7)


def test_unsound_batch_is_refused_before_anything_is_written(url):
    with open_stream(url, "write") as stream:
        with pytest.raises(ValueError, match="strictly increase"):
            stream.append(batch([1, 3, 3], prev_id=0))
        with pytest.raises(ValueError, match="schema"):
            stream.append(EventBatch(0, batch([1]).rows.drop_columns(["headers"])))
        assert stream.append(batch([1])).outcome is Outcome.APPENDED


def test_read_cuts_batches_at_both_ends(url):
    with open_stream(url, "write") as stream:
        for first in range(1, 100, 10):
            stream.append(batch(range(first, first + 10)))
        for after, through in [
            (0, 100),
            (4, 77),
            (10, 20),
            (99, 100),
            (55, 56),
            (0, 1),
            (30, 30),
            (100, 120),
            (50, None),
        ]:
            batches = list(stream.read(after, through))
            assert_chained(batches, after)
            assert ids_of(batches) == list(range(after + 1, (min(through, 100) if through else 100) + 1))


def test_read_between_rows_starts_at_the_next_one(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([5, 9, 14], prev_id=0))
        assert ids_of(stream.read(7)) == [9, 14]
        assert ids_of(stream.read(7, 13)) == [9]
        assert ids_of(stream.read(9, 13)) == []
        assert ids_of(stream.read(0, 4)) == []


def test_read_from_a_dead_id_says_which_event_comes_before(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([5, 9], prev_id=0))
        stream.append(batch([14, 15], prev_id=9))
        for after, before, ids in [
            (3, 0, [5, 9, 14, 15]),
            (5, 5, [9, 14, 15]),
            (6, 5, [9, 14, 15]),
            (8, 5, [9, 14, 15]),
            (10, 9, [14, 15]),
            (13, 9, [14, 15]),
            (14, 14, [15]),
        ]:
            batches = list(stream.read(after))
            assert_chained(batches, before)
            assert ids_of(batches) == ids, after
        stream.lose(20)
        stream.append(batch([23], prev_id=20))
        assert chain_of(stream.read(18)) == chain_of(stream.read(22)) == [(20, 23)]


def test_read_ends_at_the_tail_it_began_with(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2]))
        batches = stream.read(0)
        stream.append(batch([3]))
        assert ids_of(batches) == [1, 2]
        assert ids_of(stream.read(2)) == [3]


def test_cuts_cover_a_range_in_order_and_end_where_it_ends(url):
    with open_stream(url, "write") as stream:
        assert stream.cuts(0, 10) == []
        for first in range(1, 100, 10):
            stream.append(batch(range(first, first + 10)))
        for after, through in [(0, 100), (4, 77), (10, 20), (99, 100), (0, 1), (50, 1000)]:
            cuts = stream.cuts(after, through)
            ends = [cut.id for cut in cuts]
            assert ends == sorted(set(ends))
            assert after < ends[0]
            assert ends[-1] == min(through, 100)
            assert all(cut.size_bytes > 0 for cut in cuts)
        assert stream.cuts(30, 30) == stream.cuts(100, 120) == []
        with open_stream(url) as reader:
            assert [cut.id for cut in reader.cuts(0, 100)] == [cut.id for cut in stream.cuts(0, 100)]


def test_cuts_see_lost_and_trimmed_ranges(url):
    with open_stream(url, "write") as stream:
        for first in range(1, 200, 10):
            stream.append(batch(range(first, first + 10)))
        stream.lose(1_000_000)
        assert [cut.id for cut in stream.cuts(0, 2_000_000)][-1] == 1_000_000
        assert [cut.id for cut in stream.cuts(500, 600)] == [600]
        stream.trim(95)
        kept = stream.info().trimmed_through
        assert stream.cuts(kept, 200)
        if kept:
            with pytest.raises(Trimmed, match=str(kept)):
                stream.cuts(kept - 1, 200)


def test_find_gives_the_lowest_id_at_or_after_a_time(url):
    with open_stream(url, "write") as stream:
        for first in range(1, 60, 6):
            stream.append(batch(range(first, first + 6)))
        assert stream.find(EPOCH) == 1
        for event_id in range(1, 61):
            assert stream.find(EPOCH + timedelta(seconds=event_id)) == event_id
            assert stream.find(EPOCH + timedelta(seconds=event_id, microseconds=-1)) == event_id
        assert stream.find(EPOCH + timedelta(seconds=61)) == 61


def test_find_does_not_rely_on_times_in_id_order(url):
    with open_stream(url, "write") as stream:
        late, early = EPOCH + timedelta(hours=1), EPOCH - timedelta(hours=1)
        stream.append(batch([1, 2], at=early))
        stream.append(batch([3], at=late))
        stream.append(batch(range(4, 20), at=early))
        stream.append(batch([20], at=late + timedelta(hours=1)))
        assert stream.find(EPOCH) == 3
        assert stream.find(late + timedelta(microseconds=1)) == 20


def test_time_without_zone_is_refused(url):
    with open_stream(url, "write") as stream, pytest.raises(UsageError, match="time zone"):
        stream.find(datetime(2024, 1, 1))


def test_trim_forgets_the_front_and_says_so(url):
    with open_stream(url, "write") as stream:
        for first in range(1, 200, 10):
            stream.append(batch(range(first, first + 10)))
        stream.trim(95)
        kept = stream.info().trimmed_through
        assert 0 <= kept <= 95
        assert ids_of(stream.read(kept)) == list(range(kept + 1, 201))
        if kept:
            with pytest.raises(Trimmed, match=str(kept)):
                stream.read(kept - 1)
            assert stream.append(batch([kept])).outcome is Outcome.LATE
            assert stream.find(EPOCH) == kept + 1
        assert stream.append(batch([201])).outcome is Outcome.APPENDED
        stream.trim(10_000)
        assert stream.tail() == 201
        assert stream.append(batch([202])).outcome is Outcome.APPENDED
        trimmed = stream.info().trimmed_through
        assert ids_of(stream.read(trimmed))[-1] == 202


def test_trimmed_stream_opens_as_it_was(url):
    with open_stream(url, "write") as stream:
        for first in range(1, 200, 10):
            stream.append(batch(range(first, first + 10)))
        stream.trim(150)
        kept = stream.info().trimmed_through
    with open_stream(url, "write") as stream:
        assert stream.info().trimmed_through == kept
        assert ids_of(stream.read(kept)) == list(range(kept + 1, 201))


def test_lost_range_is_recorded_and_breaks_the_chain_visibly(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1, 2]))
        stream.lose(10)
        assert stream.tail() == 10
        stream.lose(10)
        assert stream.append(batch([11])).outcome is Outcome.APPENDED
        assert chain_of(stream.read(0)) == [(0, 2), (10, 11)]
        assert chain_of(stream.read(5)) == [(10, 11)]
        assert stream.append(batch([4])).outcome is Outcome.LATE
    with open_stream(url, "write") as stream:
        assert stream.info().lost == ((2, 10),)
        assert stream.tail() == 11
    found = check(url)
    assert found.ok
    assert (found.events, found.lost_ids, found.dead_ids) == (3, 8, 0)


def test_stream_may_begin_with_a_lost_range(url):
    with open_stream(url, "write") as stream:
        stream.lose(1000)
        assert stream.find(EPOCH) == 1001
        assert list(stream.read(0)) == []
        stream.append(batch([1001, 1002]))
        assert chain_of(stream.read(0)) == [(1000, 1002)]


def test_check_counts_events_and_dead_ids(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([3, 4, 9], prev_id=0))
        stream.append(batch([15], prev_id=9))
    found = check(url)
    assert found.ok
    assert (found.tail, found.events, found.dead_ids, found.unacknowledged_bytes) == (15, 4, 11, 0)


def test_stream_begins_behind_an_id(url):
    with open_stream(url, "write") as stream:
        stream.begin(500)
        assert stream.tail() == 500
        info = stream.info()
        assert (info.tail, info.trimmed_through, info.lost, info.compacted) == (500, 500, (), False)
        assert list(stream.read(500)) == []
        with pytest.raises(Trimmed, match="500"):
            list(stream.read(499))
        assert stream.append(batch([500])).outcome is Outcome.LATE
        assert stream.append(batch([1], prev_id=0)).outcome is Outcome.LATE
        assert stream.append(batch([501, 504], prev_id=500)).outcome is Outcome.APPENDED
    with open_stream(url, "write") as stream:
        assert (stream.tail(), stream.info().trimmed_through) == (504, 500)
        assert chain_of(stream.read(500)) == [(500, 504)]
    found = check(url)
    assert found.ok, found.damage
    assert (found.events, found.dead_ids) == (2, 2)


def test_compacted_stream_is_marked_for_ever(url):
    with open_stream(url, "write") as stream:
        stream.begin(0, compacted=True)
        assert stream.info().compacted
        stream.append(batch([3], prev_id=0))
    with open_stream(url, "write") as stream:
        assert stream.info().compacted
        stream.append(batch([9], prev_id=3))
        stream.bind("outbox-a", "/shop")
        assert stream.info().compacted
        assert ids_of(stream.read(0)) == [3, 9]
    assert check(url).compacted


def test_stream_that_was_used_does_not_begin_anew(url):
    with open_stream(url, "write") as stream:
        stream.begin(10)
        with pytest.raises(UsageError, match="in use"):
            stream.begin(20)
        stream.append(batch([11]))
        with pytest.raises(UsageError, match="in use"):
            stream.begin(20)
        assert ids_of(stream.read(10)) == [11]


def test_what_was_appended_is_settled(url):
    with open_stream(url, "write") as stream:
        assert stream.settle() == 0
        stream.append(batch(range(1, 20)))
        assert stream.settle() == stream.tail() == 19


def erased(event_id: int) -> dict[str, object]:
    gone = {"data": None, "data_bytes": None, "headers": None, "datacontenttype": REDACTED_CONTENT_TYPE}
    return {**row(event_id), **gone}


@pytest.fixture
def redactable(url: str) -> str:
    if url.startswith("kafka:"):
        with open_stream(url, "write") as stream, pytest.raises(UsageError, match="cannot be changed"):
            stream.redact([1])
        pytest.skip("a record of Kafka cannot be changed, and the stream says so")
    return url


def test_redaction_erases_content_and_nothing_else(redactable):
    url = redactable
    with open_stream(url, "write") as stream:
        for first in range(1, 100, 10):
            stream.append(batch(range(first, first + 10)))
        before = chain_of(stream.read(0))
        chosen = [3, 7, 13, 55, 56, 100]
        assert stream.redact([*chosen, 55, 4711]) == 6
        assert stream.redact(chosen) == 0
        assert stream.redact([7, 8]) == 1
        expected = [erased(event_id) if event_id in [*chosen, 8] else row(event_id) for event_id in range(1, 101)]
        assert rows_of(stream.read(0)) == expected
        assert_chained(list(stream.read(0)), 0)
        assert chain_of(stream.read(0))[-1][1] == before[-1][1] == stream.tail()
        assert stream.append(batch([101])).outcome is Outcome.APPENDED
        assert rows_of(stream.read(54, 57)) == [erased(55), erased(56), row(57)]
        assert stream.find(EPOCH + timedelta(seconds=56)) == 56
        with open_stream(url) as reader:
            assert rows_of(reader.read(0, 100)) == expected
    found = check(url)
    assert found.ok, found.damage
    assert (found.events, found.dead_ids, found.redacted) == (101, 0, 7)
    with open_stream(url, "write") as stream:
        assert rows_of(stream.read(0, 100)) == expected


def test_redacted_event_is_a_duplicate_of_the_row_that_was_kept(redactable):
    url = redactable
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 10)))
        stream.redact([7])
        assert stream.append(batch(range(1, 10))).outcome is Outcome.DUPLICATE
        for column, other in [("type", "another"), ("time", EPOCH), ("subject", "somebody else")]:
            rows = [row(event_id) for event_id in range(1, 10)]
            rows[6][column] = other
            answer = stream.append(EventBatch(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA)))
            assert (answer.outcome, answer.at_id) == (Outcome.CONFLICT, 7), column
        changed = stream.append(batch(range(1, 10), salt="other"))
        assert (changed.outcome, changed.at_id) == (Outcome.CONFLICT, 1)


def test_redaction_passes_over_lost_dead_and_trimmed_ids(redactable):
    url = redactable
    with open_stream(url, "write") as stream:
        assert stream.redact([]) == stream.redact([1, 2]) == 0
        stream.append(batch([1, 2, 5], prev_id=0))
        stream.lose(10)
        stream.append(batch([11, 15], prev_id=10))
        assert stream.redact([3, 4, 7, 10, 13, 15, 16]) == 1
        assert stream.info().lost == ((5, 10),)
        assert chain_of(stream.read(0)) == [(0, 5), (10, 15)]
        assert rows_of(stream.read(11)) == [erased(15)]
        stream.trim(5)
        assert stream.redact([1, 11]) in (1, 2)


def test_bind_is_kept_and_refuses_another_outbox(url):
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        stream.bind("outbox-a", "/shop")
        with pytest.raises(WrongPartner, match="outbox-a"):
            stream.bind("outbox-b", "/shop")
    with open_stream(url, "write") as stream:
        assert (stream.info().outbox_id, stream.info().source) == ("outbox-a", "/shop")
        with pytest.raises(WrongPartner, match="outbox-a"):
            stream.bind("outbox-b", "/shop")


def test_stream_is_the_same_when_opened_again(url):
    with open_stream(url, "write") as stream:
        stream.append(batch(range(1, 50)))
        stream_id = stream.stream_id
    with open_stream(url, "write") as stream:
        assert stream.stream_id == stream_id
        assert stream.tail() == 49
        assert stream.append(batch(range(1, 50))).outcome is Outcome.DUPLICATE
        assert stream.append(batch([50])).outcome is Outcome.APPENDED


def test_second_writer_is_refused_or_takes_over(url):
    """Never two at once: what the first one tries after the second has come leaves nothing behind."""
    with open_stream(url, "write") as stream:
        stream.append(batch([1]))
        try:
            second = open_stream(url, "write")
        except StreamLocked:
            with pytest.raises(StreamLocked, match="writer already"):
                open_stream(url, "write")
            assert stream.append(batch([2])).outcome is Outcome.APPENDED
            return
        with second:
            assert second.append(batch([2, 3])).outcome is Outcome.APPENDED
            try:
                answer = stream.append(batch([2], salt="other"))
            except Transient:
                pass
            else:
                assert answer.outcome in (Outcome.STALE, Outcome.CONFLICT)
            assert rows_of(second.read(0)) == [row(1), row(2), row(3)]
            assert second.append(batch([4])).outcome is Outcome.APPENDED


def test_writer_does_not_keep_readers_out(url):
    with open_stream(url, "write") as stream:
        stream.append(batch([1]))
        with open_stream(url) as reader:
            assert ids_of(reader.read(0)) == [1]
            stream.append(batch([2, 3]))
            assert reader.tail() == 3
            assert ids_of(reader.read(1)) == [2, 3]
    open_stream(url, "write").close()


def test_two_writers_never_interleave(url):
    """The second finds out at its next append, whatever it believed the tail to be."""
    if not url.startswith(("redis:", "object+file:", "s3:")):
        return  # elsewhere a lock keeps the second one out, or the first is fenced
    with open_stream(url, "write") as one, open_stream(url, "write") as two:
        assert one.append(batch([1, 2])).outcome is Outcome.APPENDED
        assert two.append(batch([1])).outcome is Outcome.DUPLICATE
        assert two.append(batch([3])).outcome is Outcome.APPENDED
        answer = one.append(batch([3, 4]))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 3)
        assert one.append(batch([3], salt="other")).outcome is Outcome.CONFLICT
        assert two.append(batch([1, 2], prev_id=0)).outcome is Outcome.DUPLICATE
        assert one.append(batch([4, 5])).outcome is Outcome.APPENDED
        assert ids_of(two.read(0)) == [1, 2, 3, 4, 5]


def test_reader_changes_nothing(url):
    open_stream(url, "write").close()
    with open_stream(url) as reader:
        for change in (
            lambda: reader.append(batch([1])),
            lambda: reader.bind("a", "b"),
            lambda: reader.lose(4),
            lambda: reader.trim(1),
            lambda: reader.begin(5),
            lambda: reader.redact([1]),
        ):
            with pytest.raises(UsageError, match="open for reading"):
                change()


def test_stream_that_is_not_there_is_not_made_by_a_reader(url):
    with pytest.raises(StreamMissing):
        open_stream(url)
    with pytest.raises(StreamMissing):
        open_stream(url, "write", create=False)
    with pytest.raises(StreamMissing):
        open_stream(url)


def test_closed_stream_takes_no_append(url):
    stream = open_stream(url, "write")
    stream.close()
    stream.close()
    with pytest.raises(StreamUnavailable, match="closed"):
        stream.append(batch([1]))


def test_readers_make_known_how_far_they_have_come(url):
    with open_stream(url, "write") as stream, open_stream(url) as reader:
        assert lowest(stream.readers(), TABLE) is None
        reader.report(TABLE, "/lake/orders", 40)
        reader.report(TABLE, "main.sales.orders", 7)
        reader.report(GROUP, "main.sales.orders", 3)
        assert lowest(stream.readers(), TABLE) == 7
        assert lowest(stream.readers(), GROUP) == 3
        reader.report(TABLE, "main.sales.orders", 60)
        assert lowest(stream.readers(), TABLE) == 40
        assert reached(stream.readers(), TABLE, "main.sales.orders") == 60
        stream.forget(TABLE, "/lake/orders")
        stream.forget(TABLE, "never heard of")
        assert [
            (each.kind, each.name, each.through) for each in sorted(stream.readers(), key=lambda each: each.kind)
        ] == [
            (GROUP, "main.sales.orders", 3),
            (TABLE, "main.sales.orders", 60),
        ]
        assert all(abs((datetime.now(UTC) - each.reported_at).total_seconds()) < 3600 for each in stream.readers())


def test_reader_follows_through_everything_a_writer_does(url):
    with open_stream(url, "write") as stream, open_stream(url) as reader:
        reached, seen = 0, []
        for first in range(1, 400, 4):
            stream.append(batch(range(first, first + 4)))
            batches = list(reader.read(reached))
            assert_chained(batches, reached)
            seen += ids_of(batches)
            reached = seen[-1]
        assert seen == list(range(1, 401))


@pytest.mark.parametrize("bad", ["nonsense", "ftp://x", "file://", "/just/a/path", "memory://x?segment_bytes=1"])
def test_url_that_means_nothing_is_refused(bad):
    with pytest.raises(UsageError):
        open_stream(bad, "write")


def test_file_urls_are_taken_generously(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_stream("file://some/stream", "write") as stream:
        stream.append(batch([1]))
        assert stream.url == (tmp_path / "some/stream").as_uri()
    for other in ("file:some/stream", f"file:{tmp_path}/some/stream", f"file://localhost{tmp_path}/some/stream"):
        assert open_stream(other).tail() == 1
    assert open_stream(f"file://{tmp_path}/some/%73tream").tail() == 1
    with pytest.raises(UsageError, match="segment_bites"):
        open_stream("file://some/stream?segment_bites=1")
    with pytest.raises(UsageError, match="whole number"):
        open_stream("file://some/stream?segment_bytes=0")
