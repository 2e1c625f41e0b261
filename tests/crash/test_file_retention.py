"""Erasing, copying, compacting, trimming and beginning a file stream, killed at each operation on the disk."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from outbox.errors import StreamUnavailable, UsageError
from stream_store import check, open_stream, open_to_maintain
from stream_store.compaction import compact
from stream_store.copying import copy
from stream_store.file.requests import ask
from stream_store.file.segment import index_path, list_segments
from stream_store.redaction import REDACTED_CONTENT_TYPE
from stream_store.snapshot import unfinished_through
from tests.crash.stream_events import assert_chained, batch, ids_of, row, rows_of, wait_until_tidy
from tests.crash.stream_faults import Disk, PowerCut, arm, copy_folder, run_and_kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = "?segment_bytes=2500"
SECRET = "a secret of somebody"
LAST = 40
# In sealed segments, and in the one that is being written.
CHOSEN = [3, 4, 17, 26, LAST]


def make(folder: Path, last: int = LAST, *, salt: str = SECRET) -> str:
    url = f"file://{folder}{SMALL}"
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        for first in range(1, last, 4):
            stream.append(batch(range(first, first + 4), salt=salt))
        wait_until_tidy(stream)
    assert len(list_segments(folder)) > 2
    return url


def erased(event_id: int) -> dict[str, object]:
    gone = {"data": None, "data_bytes": None, "headers": None, "datacontenttype": REDACTED_CONTENT_TYPE}
    return {**row(event_id, SECRET), **gone}


def expected(chosen: list[int]) -> list[dict[str, object]]:
    return [erased(number) if number in chosen else row(number, SECRET) for number in range(1, LAST + 1)]


def every_kill(base: Path, folder: Path, work: Callable[[], object], *, halfway: bool = False):
    """The folder after a kill at each operation of `work`, and at last after none."""
    for at in itertools.count(1):
        copy_folder(base, folder)
        killed, _ = run_and_kill(lambda ack: work(), at, halfway=halfway)
        yield at
        if not killed:
            return


def in_files(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_erased_bytes_are_in_no_file_of_the_folder(folder):
    url = make(folder / "s")
    everything = list(range(1, LAST + 1))
    assert in_files(folder / "s", SECRET)
    with open_stream(url, "write") as stream:
        stream.redact(everything)
        assert in_files(folder / "s", SECRET) == []
        stream.append(batch([LAST + 1]))
    assert in_files(folder / "s", SECRET) == []
    assert check(url).redacted == LAST


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_kill_while_erasing_leaves_each_event_whole_or_erased(folder, halfway):
    make(folder / "base")
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(url, "write") as stream:
            stream.redact(CHOSEN)

    for at in every_kill(folder / "base", folder / "s", work, halfway=halfway):
        # A reader may come before the next writer.
        with open_stream(url) as reader:
            batches = list(reader.read(0))
            assert_chained(batches, 0)
            for found, old, new in zip(rows_of(batches), expected([]), expected(CHOSEN), strict=True):
                assert found in (old, new), at
        with open_stream(url, "write") as stream:
            stream.redact(CHOSEN)
            assert rows_of(stream.read(0)) == expected(CHOSEN), at
            assert stream.redact(CHOSEN) == 0
            stream.append(batch([LAST + 1]))
            wait_until_tidy(stream)
            assert all(index_path(folder / "s", name).exists() for name in list_segments(folder / "s")[:-1])
        found = check(url)
        assert found.ok, found.damage
        assert found.redacted == len(CHOSEN)
        assert not list((folder / "s").glob("*.tmp"))
    assert at > 12


@pytest.mark.parametrize(("names", "data"), [("synced", "synced"), ("current", "synced"), ("current", "zeros")])
def test_power_cut_while_erasing_loses_no_event(folder, names, data):
    make(folder / "base")
    for at in itertools.count(1):
        place, image = folder / f"{at}", folder / f"{at}-image"
        copy_folder(folder / "base", place)
        power = Disk(place, folder / f"{at}-shadow")

        def cut(power: Disk = power, image: Path = image) -> None:
            if not image.exists():
                power.image(image, names=names, data=data)
            raise PowerCut

        try:
            with (
                power.recording(),
                arm(cut, at, halfway=False, seen=[]),
                open_stream(f"file://{place}{SMALL}", "write") as stream,
            ):
                assert stream.redact(CHOSEN) == len(CHOSEN)
        except PowerCut:
            pass
        else:
            break
        with open_stream(f"file://{image}{SMALL}", "write") as stream:
            for found, old, new in zip(rows_of(stream.read(0)), expected([]), expected(CHOSEN), strict=True):
                assert found in (old, new), at
        assert check(f"file://{image}").ok
    assert at > 12


def test_what_was_erased_stays_erased_through_a_power_cut(folder):
    url = make(folder / "s")
    power = Disk(folder / "s", folder / "shadow")
    with power.recording(), open_stream(url, "write") as stream:
        stream.redact(CHOSEN)
        power.image(folder / "image", names="synced", data="synced")
    with open_stream(f"file://{folder}/image", "write") as stream:
        assert rows_of(stream.read(0)) == expected(CHOSEN)


def test_reader_that_holds_the_old_file_finishes_on_it(folder):
    url = make(folder / "s", 400)
    with open_stream(url) as reader, open_stream(url, "write") as stream:
        before = reader.read(0)
        first = next(before)
        in_another_process = os.fork()
        if in_another_process == 0:
            # The batches of a mapped file must not be torn, nor kill their reader, whatever is put in its place.
            status = 1
            try:
                for _ in range(30):
                    with open_stream(url) as other:
                        assert ids_of(other.read(0)) == list(range(1, 401))
                status = 0
            finally:
                os._exit(status)
        for chosen in range(1, 401, 40):
            stream.redact(range(chosen, chosen + 40))
        rest = list(before)
        assert_chained([first, *rest], 0)
        assert ids_of([first, *rest]) == list(range(1, 401))
        _, status = os.waitpid(in_another_process, 0)
        assert status == 0
        assert all(each["data"] is None for each in rows_of(reader.read(0)))


def test_kill_while_a_stream_begins_behind_an_id(folder):
    with open_stream(f"file://{folder}/base{SMALL}", "write"):
        pass
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(url, "write") as stream:
            stream.begin(500, compacted=True)

    for at in every_kill(folder / "base", folder / "s", work):
        assert check(url).ok, (at, check(url).damage)
        with open_stream(url) as reader:
            assert list(reader.read(500)) == []
        with open_stream(url, "write") as stream:
            info = stream.info()
            assert (info.tail, info.trimmed_through, info.compacted) in [(0, 0, False), (500, 500, True)], at
            if not info.tail:
                stream.begin(500, compacted=True)
            stream.append(batch([501, 502]))
            assert ids_of(stream.read(500)) == [501, 502]
        assert check(url).ok
    assert info.tail == 500
    assert at > 8


def test_kill_while_the_last_segment_is_sealed_to_be_trimmed(folder):
    make(folder / "base")
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(url, "write") as stream:
            stream.trim(LAST)

    for _ in every_kill(folder / "base", folder / "s", work):
        with open_stream(url, "write") as stream:
            trimmed = stream.info().trimmed_through
            assert trimmed in (0, LAST)
            assert ids_of(stream.read(trimmed)) == list(range(trimmed + 1, LAST + 1))
            stream.append(batch([LAST + 1]))
        assert check(url).ok
    assert trimmed == LAST


def test_kill_while_copying(folder, monkeypatch):
    """Few events are copied at a time, so that the kill comes between appends, too."""
    source_url = make(folder / "source")
    with open_stream(source_url, "write") as source:
        source.trim(10)
        source.lose(LAST + 7)
        source.append(batch([LAST + 8, LAST + 9]))
        begin = source.info().trimmed_through
        whole = rows_of(source.read(begin))
        lost = source.info().lost
    monkeypatch.setattr("stream_store.gathering.GATHER_ROWS", 10)
    (folder / "base").mkdir()
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(source_url) as source, open_stream(url, "write") as target:
            copy(source, target)

    tails = set()
    for at in every_kill(folder / "base", folder / "s", work):
        with open_stream(source_url) as source, open_stream(url, "write") as target:
            tails.add(target.tail())
            copy(source, target)
            info = target.info()
            assert (info.trimmed_through, info.lost, info.outbox_id) == (begin, lost, "outbox-a"), at
            assert rows_of(target.read(begin)) == whole
        assert check(url).ok
    assert len(tails) > 4, "kills came at different places"


def test_kill_while_compacting(folder, monkeypatch):
    source_url = f"file://{folder}/source{SMALL}"
    with open_stream(source_url, "write") as source:
        source.bind("outbox-a", "/shop")
        for first in range(1, LAST, 4):
            source.append(batch(range(first, first + 4)))
    monkeypatch.setattr("stream_store.compaction.GATHER_ROWS", 6)
    (folder / "base").mkdir()
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(source_url) as source, open_stream(url, "write") as target:
            compact(source, target, through=38)

    kept: set[tuple[int, ...]] = set()
    tails = set()
    for _ in every_kill(folder / "base", folder / "s", work):
        with open_stream(source_url) as source, open_stream(url, "write") as target:
            tails.add(target.tail())
            if not (target.info().compacted and unfinished_through(target) is None):
                compact(source, target, through=38)
            kept.add(tuple(ids_of(target.read(0))))
            assert target.info().outbox_id == "outbox-a"
            assert unfinished_through(target) is None
        assert check(url).ok
    # Every subject has one event here: what goes is tombstones with a subject.
    [ids] = kept
    assert list(ids) == [number for number in range(1, 39) if number % 5 or number % 4 == 0]
    assert len(tails) > 4


def test_request_survives_the_writer_that_took_it_up(folder):
    """A writer is killed at each operation while it does what another process has asked for."""
    make(folder / "base")
    requests = folder / "base" / "requests"
    requests.mkdir()
    (requests / "1.json").write_text('{"do": "redact", "ids": [3, 40]}')
    (requests / "2.json").write_text(json.dumps({"do": "trim", "through": 12, "until": time.time() + 3600}))
    url = f"file://{folder}/s{SMALL}"

    def work() -> None:
        with open_stream(url, "write"):
            attend(folder / "s")

    for _ in every_kill(folder / "base", folder / "s", work):
        work()
        with open_stream(url) as stream:
            begin = stream.info().trimmed_through
            assert 0 < begin <= 12
            assert rows_of(stream.read(begin)) == expected([3, 40])[begin:]
        assert check(url).ok


@pytest.mark.parametrize("until", [{}, {"until": 1.7e9}], ids=["of an older program", "long ago"])
def test_trim_that_nobody_waits_for_any_more_is_not_done(folder, until):
    """Another reader may have come since."""
    url = make(folder / "s")
    requests = folder / "s" / "requests"
    requests.mkdir()
    (requests / "1.json").write_text(json.dumps({"do": "trim", "through": 12, **until}))
    with open_stream(url, "write") as stream:
        attend(folder / "s")
        assert stream.info().trimmed_through == 0
    assert "nobody waits" in (requests / "1.done").read_text()


def test_asking_ends_when_the_writer_has_died_in_the_middle(folder, monkeypatch):
    make(folder / "s")
    monkeypatch.setattr("stream_store.file.requests.time.sleep", lambda _: take_up(folder / "s"))
    with pytest.raises(StreamUnavailable, match="run the command again"):
        ask(folder / "s", {"do": "redact", "ids": [3]}, patience_seconds=0.01)


def take_up(folder: Path) -> None:
    for path in (folder / "requests").glob("*.json"):
        path.rename(path.with_suffix(".doing"))


def test_interrupted_asking_takes_the_request_back(folder, monkeypatch):
    make(folder / "s")

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("stream_store.file.requests.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(folder / "s", {"do": "redact", "ids": [3]})
    assert list((folder / "s" / "requests").iterdir()) == []


def test_error_of_the_writer_keeps_its_class(folder):
    url = make(folder / "s")
    with open_stream(url, "write"), pytest.raises(UsageError, match="cannot be asked to dance"):
        ask(folder / "s", {"do": "dance"})


def attend(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while any(path.suffix in (".json", ".doing") for path in (folder / "requests").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick_clerk(monkeypatch):
    monkeypatch.setattr("stream_store.file.requests.LOOK_SECONDS", 0.01)


def test_maintenance_beside_a_writer_that_appends(folder):
    url = make(folder / "s")
    read_end, write_end = os.pipe()
    writer = os.fork()
    if writer == 0:
        status = 1
        try:
            with open_stream(url, "write") as stream:
                os.write(write_end, b"x")
                for number in range(LAST + 1, LAST + 300):
                    stream.append(batch([number]))
                while not (folder / "end").exists():
                    time.sleep(0.01)
            status = 0
        finally:
            os._exit(status)
    try:
        os.read(read_end, 1)
        with open_to_maintain(url) as stream:
            assert stream.redact(CHOSEN) == len(CHOSEN)
            stream.trim(12)
            trimmed = stream.info().trimmed_through
            assert 0 < trimmed <= 12
    finally:
        (folder / "end").touch()
        _, status = os.waitpid(writer, 0)
    assert status == 0
    with open_stream(url) as stream:
        assert ids_of(stream.read(trimmed)) == list(range(trimmed + 1, LAST + 300))
        assert rows_of(stream.read(trimmed, LAST)) == expected(CHOSEN)[trimmed:]
    assert check(url).ok
