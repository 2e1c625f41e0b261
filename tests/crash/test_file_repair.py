"""Mending a damaged file stream from a copy, killed at each operation on the disk."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from outbox.errors import StreamCorrupt, StreamLocked, UsageError, WrongPartner
from stream_store import check, open_stream
from stream_store.copying import copy
from stream_store.file.frame import HEADER_BYTES
from stream_store.file.mark import MARK_NAME
from stream_store.file.repair import CannotMend, survey
from stream_store.file.segment import SEGMENT_HEADER_BYTES, list_segments, segment_path
from stream_store.mending import from_copy, repair
from tests.crash.stream_events import batch, ids_of, rows_of, wait_until_tidy
from tests.crash.stream_faults import copy_folder, run_and_kill

SMALL = "?segment_bytes=3000"
LAST = 60
LOST = (30, 33)


@pytest.fixture
def url(folder: Path) -> str:
    """A stream of several sealed segments of several frames each, with a lost range, and one being written."""
    url = f"file://{folder}/s{SMALL}"
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        for first in range(1, 30, 3):
            stream.append(batch(range(first, first + 3)))
        stream.lose(LOST[1])
        for first in range(34, LAST, 3):
            stream.append(batch([first, first + 2], prev_id=stream.tail()))
        assert stream.tail() == LAST
        wait_until_tidy(stream)
    assert len(list_segments(folder / "s")) >= 3
    with open_stream(url) as stream, open_stream(f"file://{folder}/copy", "write") as target:
        copy(stream, target)
    return url


def spoil(path: Path, offset: int, count: int = 40) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + count] = bytes(255 - byte for byte in content[offset : offset + count])
    path.write_bytes(content)


def middle(folder: Path) -> Path:
    return segment_path(folder / "s", list_segments(folder / "s")[1])


def last(folder: Path) -> Path:
    return segment_path(folder / "s", list_segments(folder / "s")[-1])


def payload(folder: Path) -> None:
    spoil(middle(folder), SEGMENT_HEADER_BYTES + HEADER_BYTES + 70)


def header(folder: Path) -> None:
    spoil(middle(folder), SEGMENT_HEADER_BYTES + 10)


def segment_header(folder: Path) -> None:
    spoil(middle(folder), 8)


def missing_segment(folder: Path) -> None:
    middle(folder).unlink()


def first_segment(folder: Path) -> None:
    segment_path(folder / "s", 0).unlink()


def cut_short(folder: Path) -> None:
    content = middle(folder).read_bytes()
    middle(folder).write_bytes(content[: len(content) // 2])


def emptied(folder: Path) -> None:
    middle(folder).write_bytes(b"")


def being_written(folder: Path) -> None:
    spoil(last(folder), SEGMENT_HEADER_BYTES + 20)


def last_missing(folder: Path) -> None:
    last(folder).unlink()


def end_of_last(folder: Path) -> None:
    content = last(folder).read_bytes()
    last(folder).write_bytes(content[: len(content) - 64])


def all_of_them(folder: Path) -> None:
    for name in list_segments(folder / "s"):
        path = segment_path(folder / "s", name)
        spoil(path, path.stat().st_size // 2, 600)


DAMAGES = [
    payload, header, segment_header, missing_segment, first_segment, cut_short, emptied,
    being_written, last_missing, end_of_last, all_of_them,
]  # fmt: skip


def mend(folder: Path, *, dry_run: bool = False):
    with open_stream(f"file://{folder}/copy") as whole:
        return repair(f"file://{folder}/s{SMALL}", from_copy(whole, "outbox-a"), dry_run=dry_run)


def everything(url: str) -> list[dict[str, object]]:
    with open_stream(url) as stream:
        return rows_of(stream.read(0))


def assert_mended(folder: Path, url: str) -> None:
    found = check(url)
    assert found.ok, found.damage
    assert everything(url) == everything(f"file://{folder}/copy")
    with open_stream(url, "write") as stream:
        assert (stream.tail(), stream.info().lost, stream.info().outbox_id) == (LAST, (LOST,), "outbox-a")
        stream.append(batch([LAST + 1]))
        assert ids_of(stream.read(LAST)) == [LAST + 1]
        wait_until_tidy(stream)
    assert check(url).ok


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_mended_from_a_copy(folder, url, damage):
    damage(folder)
    assert not check(url).ok
    before = {path: path.read_bytes() for path in (folder / "s").iterdir() if path.is_file()}
    planned = mend(folder, dry_run=True)
    assert planned
    assert all(each.problem is None for each in planned)
    assert before == {path: path.read_bytes() for path in (folder / "s").iterdir() if path.is_file()}
    assert mend(folder) == planned
    assert_mended(folder, url)
    for path in {Path(each.file) for each in planned} & set(before):
        [kept] = (folder / "s" / "damaged").glob(f"{path.stem}-*")
        assert kept.read_bytes() == before[path]
    assert mend(folder) == []


def test_whole_stream_has_nothing_to_mend(folder, url):
    assert mend(folder) == mend(folder, dry_run=True) == []
    with last(folder).open("ab") as file:
        file.write(b"OBXF" + bytes(90))  # an append that was never acknowledged is no damage
    assert mend(folder) == []
    assert_mended(folder, url)


def test_copy_that_does_not_have_the_events_leaves_the_stream_as_it_was(folder, url):
    payload(folder)
    [hole] = mend(folder, dry_run=True)
    shutil.rmtree(folder / "copy")
    with open_stream(f"file://{folder}/copy", "write") as copied:
        copied.begin(hole.after + 1)
    content = middle(folder).read_bytes()
    [found] = mend(folder)
    assert "trimmed through" in found.problem
    assert middle(folder).read_bytes() == content
    shutil.rmtree(folder / "copy")
    with open_stream(f"file://{folder}/copy", "write") as copied:
        copied.append(batch(range(1, hole.through)))
    [found] = mend(folder)
    assert f"ends at ID {hole.through - 1}" in found.problem
    assert middle(folder).read_bytes() == content


def test_other_events_than_the_frame_had_are_refused(folder, url):
    payload(folder)
    [hole] = mend(folder, dry_run=True)
    ids = [hole.through] if hole.through > hole.after + 1 else [hole.after + 1]

    def fetch(after: int, through: int):
        return [batch(ids, prev_id=after)]

    [found] = repair(url, fetch)
    assert "it is no copy of this stream" in found.problem


def test_repair_refuses_what_it_cannot_do(folder, url):
    with open_stream(url, "write"), pytest.raises(StreamLocked):
        mend(folder)
    with open_stream(f"file://{folder}/copy") as whole:
        with pytest.raises(WrongPartner, match="outbox-a"):
            from_copy(whole, "outbox-b")
        with pytest.raises(UsageError, match=r"only file://"):
            repair("memory://x", from_copy(whole, "outbox-a"))
    (folder / "s" / "stream.json").write_text("nonsense")
    with pytest.raises(StreamCorrupt, match=r"stream\.json"):
        mend(folder)


def test_damaged_mark_is_not_in_the_way(folder, url):
    payload(folder)
    (folder / "s" / MARK_NAME).write_bytes(b"nonsense")
    assert all(each.problem is None for each in mend(folder))
    open_stream(url, "write").close()  # publishes it anew
    assert_mended(folder, url)


@pytest.mark.parametrize("damage", [payload, being_written, all_of_them], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_kill_while_mending_loses_nothing_more(folder, url, damage, halfway):
    damage(folder)
    (folder / "s").rename(folder / "base")
    for at in itertools.count(1):
        copy_folder(folder / "base", folder / "s")
        killed, _ = run_and_kill(lambda ack: mend(folder), at, halfway=halfway)
        left = mend(folder)
        assert all(each.problem is None for each in left)
        assert_mended(folder, url)
        if not killed:
            break
    assert at > 8


def test_survey_names_every_frame_of_a_whole_stream(folder, url):
    surveyed = survey(folder / "s")
    assert [each.name for each in surveyed] == list_segments(folder / "s")
    assert not any(each.is_damaged for each in surveyed)
    assert surveyed[-1].parts[-1].header.last_id == LAST
    assert issubclass(CannotMend, Exception)
