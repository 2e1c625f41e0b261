"""What only an object-store stream does: merging, the number of requests, damage by name, refusals."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import obstore
import pytest

from connector.checks.stream import look as look_at_stream
from outbox.errors import StreamCorrupt, StreamRefused, StreamUnavailable, Trimmed, Unsupported, UsageError
from stream_store import Outcome, check, open_stream
from stream_store.file.frame import encode_events
from stream_store.objects.layout import batch_name, number_of, state_name
from stream_store.objects.plan import plan_merge
from stream_store.objects.state import Merged, State
from stream_store.objects.store import Store
from stream_store.objects.stream import _bytes_of
from stream_store.redaction import REDACTED_CONTENT_TYPE
from tests.crash.object_process import objects
from tests.crash.stream_events import EPOCH, assert_chained, batch, ids_of, row, rows_of

REQUESTS = ("put", "get", "get_range", "head", "list", "list_with_delimiter", "delete", "copy")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"object+file://{tmp_path}/s"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is asked of the store from now on."""
    counted: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def count(*given: object, **named: object) -> object:
            counted[name] += 1
            return original(*given, **named)

        return count

    for name in REQUESTS:
        monkeypatch.setattr(obstore, name, counting(name, getattr(obstore, name)))
    return counted


def fill(url: str, batches: int, each: int = 3) -> int:
    with open_stream(url, "write") as stream:
        for _ in range(batches):
            tail = stream.tail()
            assert stream.append(batch(range(tail + 1, tail + 1 + each))).outcome is Outcome.APPENDED
        return stream.tail()


def write_directly(url: str, folder: Path, count: int) -> None:
    """Many batches of one event, without asking the store for each."""
    with objects(url) as stream:
        for event_id in range(1, count + 1):
            path = folder / batch_name(event_id - 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            parts = encode_events(batch([event_id]), 0, stream._seed).parts
            path.write_bytes(b"".join(memoryview(part) for part in parts))


# ---- names


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 12_345_678, 2**63 - 1])
def test_names_keep_their_order_and_no_folder_has_more_than_a_thousand(number):
    name = batch_name(number)
    assert number_of(name) == number
    assert all(len(group) == 3 for group in name.split("/")[2:])
    assert number == 0 or batch_name(number - 1) < name
    assert number_of(state_name(7)) == 7


# ---- requests


def test_append_costs_two_requests(url, requests):
    with open_stream(url + "?merge_objects=1000", "write") as stream:
        stream.append(batch([1]))
        stream._merger.close()
        requests.clear()
        for event_id in range(2, 12):
            stream.append(batch([event_id]))
        assert requests == {"put": 10, "head": 10}


@pytest.mark.parametrize("count", [20, 3000])
def test_opening_costs_the_same_with_few_objects_and_with_many(url, tmp_path, requests, count):
    write_directly(url, tmp_path / "s", count)
    requests.clear()
    with open_stream(url) as reader:
        assert reader.tail() == count
        # Who it is; no state yet, as one listing says; six levels of names; the last batch; still no state.
        assert requests == {"get": 1, "list_with_delimiter": 7, "get_range": 1, "head": 1}
        requests.clear()
        assert reader.tail() == count
        assert sum(requests.values()) == 2
        requests.clear()
        assert [cut.id for cut in reader.cuts(0, count)] == list(range(1, count + 1))
        assert requests["list"] == 1
        assert sum(requests.values()) <= 3


def test_opening_a_merged_stream_costs_no_more(url, requests):
    tail = fill(url, 30)
    with objects(url) as stream:
        assert stream._changes.merge()
    fill(url, 3)
    requests.clear()
    with open_stream(url) as reader:
        assert reader.tail() == tail + 9
        assert sum(requests.values()) <= 13
        requests.clear()
        assert ids_of(reader.read(tail - 5, tail)) == list(range(tail - 4, tail + 1))
        # The index of the merged object, and the one frame.
        assert requests == {"get_range": 2}


def test_events_in_a_merged_object_are_read_by_a_few_large_requests(url, requests):
    tail = fill(url, 100)
    with objects(url) as stream:
        assert stream._changes.merge()
        assert stream.info().segments == 1
    with open_stream(url) as reader:
        reader.tail()
        requests.clear()
        assert rows_of(reader.read(0)) == [row(event_id) for event_id in range(1, tail + 1)]
        # The batch that might have been appended since, and the merged object.
        assert requests == {"get_range": 2, "head": 1}


# ---- merging


def test_small_objects_are_merged_beside_the_appends(url):
    tail = fill(url + "?merge_objects=8", 100)
    with open_stream(url + "?merge_objects=8", "write") as writer:
        deadline = time.monotonic() + 60
        while writer.info().segments >= 40 and time.monotonic() < deadline:
            tail += 1
            writer.append(batch([tail]))
    with open_stream(url) as reader:
        assert reader.info().segments < 40
        assert rows_of(reader.read(0)) == [row(event_id) for event_id in range(1, tail + 1)]
    assert check(url).ok


def test_merging_keeps_dead_and_lost_ids(url):
    with objects(url) as stream:
        stream.append(batch([3, 4, 9], prev_id=0))
        stream.lose(20)
        stream.append(batch([25], prev_id=20))
        before = (ids_of(stream.read(0)), stream.info().lost, stream.find(EPOCH + timedelta(seconds=9)))
        assert stream._changes.merge()
        assert not stream._changes.merge()
        assert (ids_of(stream.read(0)), stream.info().lost, stream.find(EPOCH + timedelta(seconds=9))) == before
        assert stream.append(batch([4], prev_id=3)).outcome is Outcome.DUPLICATE
        assert stream.append(batch([12])).outcome is Outcome.LATE
    found = check(url)
    assert (found.ok, found.events, found.dead_ids, found.lost_ids) == (True, 4, 10, 11)


def test_large_batch_is_copied_by_the_store_and_not_rewritten(url):
    with objects(url + "?merge_bytes=4000") as stream:
        stream.append(batch([1]))
        stream.append(batch(range(2, 60)))
        stream.append(batch([60]))
        assert stream._changes.merge()
        assert [each.index_bytes > 0 for each in stream._states.newest().merged] == [True, False, True]
        assert ids_of(stream.read(0)) == list(range(1, 61))
        assert ids_of(stream.read(30, 31)) == [31]
        assert stream.find(EPOCH + timedelta(seconds=40)) == 40
    assert check(url).ok


def test_reader_goes_on_when_what_it_reads_is_merged_and_merged_again(url):
    tail = fill(url, 60)
    reader = open_stream(url)
    batches = reader.read(0)
    seen = [next(batches)]
    with objects(url) as stream:
        for _ in range(5):
            stream._changes.merge()
            seen += itertools.islice(batches, 4)
            stream.append(batch([stream.tail() + 1]))
    seen += batches
    assert_chained(seen, 0)
    assert ids_of(seen) == list(range(1, tail + 1))


def test_trim_under_a_reader_is_said(url):
    fill(url, 30)
    reader = open_stream(url)
    batches = reader.read(0)
    next(batches)
    with open_stream(url, "write") as stream:
        stream.trim(60)
    with pytest.raises(Trimmed, match="60"):
        list(batches)
    assert ids_of(reader.read(60))[0] == 61


def test_zombie_that_creates_a_freed_name_appends_nothing(url):
    """Both slept through everything; the name that they create is free again, and the floor is above it."""
    fill(url, 1, each=2)
    with objects(url) as zombie, objects(url) as other, objects(url) as stream:
        for event_id in range(3, 9):
            stream.append(batch([event_id]))
        stream._changes.merge()
        assert not stream._store.exists(batch_name(2))
        assert zombie.append(batch([3, 4, 5])).outcome is Outcome.DUPLICATE
        assert not stream._store.exists(batch_name(2))
        stream.trim(8)
        # What is trimmed cannot be compared; it followed the tail that the zombie knew.
        answer = other.append(batch([3, 4, 5]))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, 8)
        assert stream.append(batch([3, 4, 5])).outcome is Outcome.LATE
    assert check(url).unacknowledged_bytes == 0


def test_reader_is_not_given_what_a_zombie_put_under_a_freed_name(url):
    """It had looked the name up; then the batch was trimmed, and the name created again with other content."""
    fill(url, 2, each=2)
    with objects(url) as stream, open_stream(url) as reader:
        assert [cut.id for cut in reader.cuts(0, 4)] == [2, 4]
        stream.trim(4)
        stream._store.create(batch_name(2), _bytes_of(batch([3, 4], salt="x"), stream._seed))
        stream._store.create(batch_name(0), _bytes_of(batch([1, 2], salt="x"), stream._seed))
        for after in (0, 2):
            with pytest.raises(Trimmed, match="4"):
                list(reader.read(after, 4))


def test_own_append_whose_answer_got_lost_is_not_taken_for_anothers(url, monkeypatch):
    create = Store.create
    with objects(url) as stream:
        # The client has tried again, and met what its first try had made.
        monkeypatch.setattr(Store, "create", lambda self, name, data: create(self, name, data) and False)
        assert stream.append(batch([1, 2])).outcome is Outcome.APPENDED
        assert stream._changes.merge()
        monkeypatch.undo()
        assert ids_of(stream.read(0)) == [1, 2]


def test_append_that_failed_may_have_arrived_so_the_stream_must_be_opened_again(url, monkeypatch):
    create = Store.create

    def lost(self: Store, name: str, data: bytes) -> bool:
        create(self, name, data)
        raise StreamUnavailable("no answer")

    with objects(url) as stream:
        stream.append(batch([1]))
        monkeypatch.setattr(Store, "create", lost)
        with pytest.raises(StreamUnavailable, match="no answer"):
            stream.append(batch([2]))
        monkeypatch.undo()
        with pytest.raises(StreamUnavailable, match="open it again"):
            stream.append(batch([3]))
    with open_stream(url, "write") as stream:
        assert stream.tail() == 2
        assert stream.append(batch([2])).outcome is Outcome.DUPLICATE


def units(*sizes: int, after: int = 0):
    from stream_store.objects.chain import Unit

    return [Unit(after + at, after + at + 1, size, f"b{after + at}") for at, size in enumerate(sizes)]


def test_plan_merges_up_to_a_size_and_absorbs_what_is_not_much_larger():
    state = State(floor=2, merged=(Merged("m0", 0, 1, 900, 9, 0, 0), Merged("m1", 1, 2, 100, 9, 0, 0)))
    plan = plan_merge(state, units(80, 80, 80, after=2), 1000)
    assert (plan.kept, [[unit.name for unit in group] for group in plan.groups]) == (1, [["m1", "b2", "b3", "b4"]])
    plan = plan_merge(State(), units(200, 200, 200, 200, 200, 200), 1000)
    assert [len(group) for group in plan.groups] == [5, 1]
    plan = plan_merge(State(), units(10, 400, 10), 1000)
    assert [len(group) for group in plan.groups] == [1, 1, 1]


# ---- begin, redact, settle


def test_begin_keeps_ids_of_a_stream_that_was_trimmed(url):
    with objects(url) as stream:
        stream.begin(500)
        info = stream.info()
        assert (info.tail, info.trimmed_through, info.lost, info.compacted) == (500, 500, (), False)
        assert stream.append(batch([501, 502])).outcome is Outcome.APPENDED
        assert stream.append(batch([400])).outcome is Outcome.LATE
        assert stream.settle() == 502
        with pytest.raises(UsageError, match="has never held anything"):
            stream.begin(600)
    with open_stream(url, "write") as stream:
        assert ids_of(stream.read(500)) == [501, 502]
        with pytest.raises(Trimmed):
            stream.read(0)
    found = check(url)
    assert (found.ok, found.events, found.dead_ids, found.lost_ids) == (True, 2, 0, 0)


@pytest.mark.parametrize("merged", [False, True])
def test_redaction_erases_in_every_object_and_counts_once(url, tmp_path, merged):
    fill(url, 6)
    with objects(url) as stream:
        if merged:
            stream._changes.merge()
        assert stream.redact([2, 11, 99]) == 2
        assert stream.redact([2, 11]) == 0
        events = {event["id"]: event for event in rows_of(stream.read(0))}
        assert [
            event_id for event_id, event in events.items() if event["datacontenttype"] == REDACTED_CONTENT_TYPE
        ] == [2, 11]
        assert all(event == row(event_id) for event_id, event in events.items() if event_id not in (2, 11))
        assert (events[2]["type"], events[2]["subject"]) == (row(2)["type"], row(2)["subject"])
        assert stream.append(batch([19])).outcome is Outcome.APPENDED
    for path in (tmp_path / "s").rglob("*"):
        assert path.is_dir() or b'"n":11,' not in path.read_bytes()
    assert check(url).ok


# ---- damage and refusals


def damaged(tmp_path: Path, at: int, change: Callable[[bytes], bytes]) -> Path:
    path = tmp_path / "s" / batch_name(at)
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-1], "bytes"),
        (lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:], "CRC"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "header"),
        (lambda data: b"", "ends at ID 6"),
    ],
)
def test_damage_is_named(url, tmp_path, change, says):
    fill(url, 5)
    damaged(tmp_path, 6, change)
    with open_stream(url) as reader, pytest.raises(StreamCorrupt, match="006"):
        list(reader.read(0))
    found = check(url)
    assert [place.file for place in found.damage] == [batch_name(6)]
    assert says in found.damage[0].what
    assert found.events == 12


def test_damage_in_a_merged_object_is_named(url, tmp_path):
    fill(url, 5)
    with objects(url) as stream:
        stream._changes.merge()
    (path,) = (tmp_path / "s" / "merged").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:400] + bytes([data[400] ^ 1]) + data[401:])
    with open_stream(url) as reader, pytest.raises(StreamCorrupt, match="CRC"):
        list(reader.read(0))
    assert [place.file for place in check(url).damage] == [f"merged/{path.name}"]
    path.unlink()
    with open_stream(url) as reader, pytest.raises(StreamCorrupt, match="missing"):
        list(reader.read(0))


@pytest.mark.parametrize("at", [0, 6, 12])
def test_missing_batch_is_named_or_the_stream_ends_before_it(url, tmp_path, at):
    fill(url, 5)
    (tmp_path / "s" / batch_name(at)).unlink()
    with open_stream(url) as reader:
        if at == 12:
            assert reader.tail() == 12  # the relay compares this with what it has deleted: TAIL_LOST
            return
        with pytest.raises(StreamCorrupt):
            list(reader.read(0))
    assert not check(url).ok


def test_damaged_state_is_named(url, tmp_path):
    fill(url, 5)
    with objects(url) as stream:
        stream._changes.merge()
    path = tmp_path / "s" / state_name(1)
    path.write_bytes(path.read_bytes().replace(b'"floor":15', b'"floor":12'))
    with open_stream(url) as reader, pytest.raises(StreamCorrupt, match="states/000/000/001"):
        reader.tail()
    assert [place.file for place in check(url).damage] == [state_name(1)]


def test_store_that_ignores_conditional_writes_is_refused(url, monkeypatch):
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *given, mode=None, **named: put(*given, **named))
    with pytest.raises(Unsupported, match="conditional writes"):
        open_stream(url, "write")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (obstore.exceptions.PermissionDeniedError("403"), StreamRefused),
        (obstore.exceptions.UnauthenticatedError("401"), StreamRefused),
        (obstore.exceptions.GenericError("<Code>NoSuchBucket</Code>"), StreamRefused),
        (obstore.exceptions.GenericError("<Code>InvalidAccessKeyId</Code>"), StreamRefused),
        (obstore.exceptions.GenericError("503 Slow Down"), StreamUnavailable),
        (obstore.exceptions.GenericError("operation timed out"), StreamUnavailable),
    ],
)
def test_refusals_are_terminal_and_what_passes_is_transient(url, monkeypatch, error, kind):
    with open_stream(url, "write") as stream:

        def fail(*given: object, **named: object) -> None:
            raise error

        monkeypatch.setattr(obstore, "put", fail)
        with pytest.raises(kind, match="batches/0000"):
            stream.append(batch([1]))


def test_credentials_are_refused_in_a_url():
    with pytest.raises(UsageError, match="environment"):
        open_stream("s3://bucket/prefix?secret_access_key=hush", "read")
    with pytest.raises(UsageError, match="known"):
        open_stream("s3://bucket/prefix?bogus=1", "read")


def test_check_says_what_can_be_relied_on(url):
    fill(url, 1)
    found = {finding.name: finding for finding in look_at_stream(url, None, "durable")}
    assert found["stream"].level == "ok"
    assert (found["stream-writable"].level, found["one-copy"].level) == ("ok", "warning")
    assert "refuses to create" in found["stream-writable"].message
