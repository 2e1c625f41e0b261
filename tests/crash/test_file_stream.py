"""The file stream through kills, power failures, full and failing disks, and exchanged folders."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox.errors import OutboxError, StreamCorrupt, StreamMissing, StreamUnavailable, Unsupported, WrongPartner
from stream_store import Outcome, check, open_stream
from stream_store.file import disk
from stream_store.file.mark import MARK_NAME
from stream_store.file.segment import index_path, list_segments, segment_path
from tests.crash.stream_events import assert_chained, batch, ids_of, row, rows_of
from tests.crash.stream_faults import Disk, PowerCut, arm, copy_folder, describe, run_and_kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = "?segment_bytes=2500"


@pytest.fixture
def memory_path(tmp_path) -> Iterator[Path]:
    """A folder in memory where there is such a thing: thousands of syncs, and none of them needs a disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="outbox-stream-", dir="/dev/shm") as folder:
        yield Path(folder)


def append_and_acknowledge(url: str, last: int, acknowledge: Callable[[int], None]) -> None:
    """What a relay does: open, bind, and append from the tail on, in threes."""
    with open_stream(url, "write") as stream:
        stream.bind("outbox-a", "/shop")
        acknowledge(stream.tail())
        while stream.tail() < last:
            tail = stream.tail()
            answer = stream.append(batch(range(tail + 1, tail + 4)))
            assert answer.outcome is Outcome.APPENDED
            acknowledge(answer.tail)


def assert_whole(url: str, acknowledged: int, context: str = "") -> int:
    """Everything acknowledged is there once, the chain holds, and appends go on. Returns the tail."""
    with open_stream(url, "write") as stream:
        tail = stream.tail()
        assert tail >= acknowledged, context
        batches = list(stream.read(0))
        assert_chained(batches, 0)
        assert rows_of(batches) == [row(event_id) for event_id in range(1, tail + 1)], context
        if tail:
            again = max(1, tail - 4)
            assert stream.append(batch(range(again, tail + 1))).outcome is Outcome.DUPLICATE
        assert stream.append(batch([tail + 1])).outcome is Outcome.APPENDED
    found = check(url)
    assert found.ok, found.damage
    assert (found.events, found.dead_ids, found.unacknowledged_bytes) == (tail + 1, 0, 0)
    return tail


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_writer_killed_at_each_operation_loses_nothing(memory_path, halfway):
    """From an empty folder: creation, appends, three rolls with tidying, close."""
    for at in itertools.count(1):
        url = f"file://{memory_path}/{at}{SMALL}"
        killed, acknowledged = run_and_kill(
            lambda ack, url=url: append_and_acknowledge(url, 30, ack), at, halfway=halfway
        )
        assert_whole(url, max(acknowledged, default=0), f"killed at {at}")
        shutil.rmtree(memory_path / str(at))
        if not killed:
            break
    assert at > 60, "the matrix became smaller than it was: are the operations still counted?"


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_writer_killed_while_it_recovers_loses_nothing(memory_path, halfway, torn):
    """The folder that the kill leaves is recovered by a second writer that is killed one operation later."""
    base, folder = memory_path / "base", memory_path / "s"
    url = f"file://{folder}{SMALL}"
    append_and_acknowledge(f"file://{base}{SMALL}", 24, lambda tail: None)
    for name in list_segments(base):
        index_path(base, name).unlink(missing_ok=True)  # as if no segment had been tidied
    if torn:
        with segment_path(base, list_segments(base)[-1]).open("ab") as file:
            file.write(b"OBXF" + bytes(range(90)))
    for at in itertools.count(1):
        copy_folder(base, folder)
        reached = 24
        for later in (0, 1):
            killed, acknowledged = run_and_kill(
                lambda ack, last=reached + 6: append_and_acknowledge(url, last, ack), at + later, halfway=halfway
            )
            assert min(acknowledged, default=reached) >= reached, "a writer reported a lower tail than the one before"
            reached = max([reached, *acknowledged])
        assert_whole(url, reached)
        if not killed:
            break
    assert at > 20


def test_writer_killed_while_it_trims_loses_nothing_else(memory_path):
    base = memory_path / "base"
    append_and_acknowledge(f"file://{base}{SMALL}", 60, lambda tail: None)
    keep = list_segments(base)[3]

    def trim(url: str) -> None:
        with open_stream(url, "write") as stream:
            stream.trim(keep)

    for at in itertools.count(1):
        copy_folder(base, memory_path / "s")
        url = f"file://{memory_path}/s{SMALL}"
        killed, _ = run_and_kill(lambda ack, url=url: trim(url), at, halfway=False)
        reader = open_stream(url)
        trimmed = reader.info().trimmed_through
        assert trimmed in (0, keep)
        assert ids_of(reader.read(trimmed)) == list(range(trimmed + 1, 61))
        with open_stream(url, "write") as stream:
            assert stream.info().trimmed_through == trimmed
            assert list_segments(memory_path / "s")[0] == trimmed
            assert ids_of(stream.read(trimmed)) == list(range(trimmed + 1, 61))
        assert check(url).ok
        if not killed:
            break
    assert trimmed == keep


def test_writer_killed_while_it_records_a_loss_has_recorded_it_or_not(memory_path):
    base = memory_path / "base"
    append_and_acknowledge(f"file://{base}{SMALL}", 12, lambda tail: None)

    def lose(url: str) -> None:
        with open_stream(url, "write") as stream:
            stream.lose(20)

    for at in itertools.count(1):
        copy_folder(base, memory_path / "s")
        url = f"file://{memory_path}/s{SMALL}"
        killed, _ = run_and_kill(lambda ack, url=url: lose(url), at, halfway=True)
        with open_stream(url, "write") as stream:
            assert (stream.tail(), stream.info().lost) in [(12, ()), (20, ((12, 20),))]
        assert check(url).ok
        if not killed:
            break
    assert stream.tail() == 20


POWER_IMAGES = [
    ("synced", "synced"),
    ("current", "synced"),
    ("current", "zeros"),
    ("synced", "zeros"),
    ("current", "current"),
]


@pytest.mark.parametrize(("names", "data"), POWER_IMAGES)
def test_power_cut_at_each_operation_loses_nothing_acknowledged(memory_path, names, data):
    """What was not synced is gone; or its name, its size or its bytes reached the disk by chance."""
    for at in itertools.count(1):
        folder, image = memory_path / f"{at}", memory_path / f"{at}-image"
        url = f"file://{folder}{SMALL}"
        folder.mkdir(mode=0o700)
        acknowledged = [0]
        seen: list[str] = []
        power = Disk(folder, memory_path / f"{at}-shadow")

        def cut(power: Disk = power, image: Path = image) -> None:
            if not image.exists():
                power.image(image, names=names, data=data)
            raise PowerCut

        try:
            with power.recording(), arm(cut, at, halfway=False, seen=seen):
                append_and_acknowledge(url, 24, acknowledged.append)
        except PowerCut:
            # The image is what counts; the objects of the dead process give their lock back.
            pass
        else:
            break
        assert_whole(f"file://{image}{SMALL}", max(acknowledged), f"cut at {at}, {seen[-1]}: {describe(image)}")
        for path in (folder, image, memory_path / f"{at}-shadow"):
            shutil.rmtree(path)
    assert at > 60


def test_power_cut_behind_a_recovery_loses_nothing_it_reported(tmp_path, monkeypatch):
    """A frame that was never synced is found whole in the page cache: it counts only once it is durable."""
    folder = tmp_path / "s"
    url = f"file://{folder}"
    append_and_acknowledge(url, 6, lambda tail: None)

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with open_stream(url, "write") as stream:
        power = Disk(folder, tmp_path / "shadow")
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync", failing)
            with pytest.raises(StreamUnavailable):
                stream.append(batch([7]))
    power.image(tmp_path / "image before", names="synced", data="synced")
    assert_whole(f"file://{tmp_path}/image before", 6)
    with power.recording(), open_stream(url, "write") as stream:
        assert stream.tail() == 7
        power.image(tmp_path / "image behind", names="synced", data="synced")
    assert assert_whole(f"file://{tmp_path}/image behind", 7) == 7


def test_failed_sync_ends_the_writer_and_is_not_tried_again(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/s"
    stream = open_stream(url, "write")
    stream.append(batch([1, 2]))
    inode = segment_path(tmp_path / "s", 0).stat().st_ino
    calls = []

    def failing(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", failing)
        with pytest.raises(StreamUnavailable, match=r"00\.log: Input/output error"):
            stream.append(batch([3]))
    with pytest.raises(StreamUnavailable, match="until it is opened again"):
        stream.append(batch([3]))
    with pytest.raises(StreamUnavailable, match="until it is opened again"):
        stream.lose(9)
    assert len(calls) == 1
    assert stream.tail() == 2
    assert open_stream(url).tail() == 2
    assert ids_of(stream.read(0)) == [1, 2]
    stream.close()
    with open_stream(url, "write") as stream:
        assert segment_path(tmp_path / "s", 0).stat().st_ino != inode
        assert stream.tail() == 3  # it was whole in the page cache, and is durable now
        assert stream.append(batch([3])).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_folder", "publish"])
def test_disk_error_anywhere_is_transient_and_loses_nothing(memory_path, monkeypatch, operation):
    """Every call of the operation fails once, in turn; the stream is opened again as the relay does."""
    original = getattr(disk, operation)
    for failing_call in itertools.count(1):
        url = f"file://{memory_path}/{failing_call}{SMALL}"
        calls = itertools.count(1)
        acknowledged = [0]

        def flaky(*arguments: object, calls=calls, failing_call=failing_call) -> object:
            if next(calls) == failing_call:
                raise OSError(errno.EIO, "Input/output error")
            return original(*arguments)

        # Not every failure is one of the append: a segment that cannot be tidied stays as it is.
        with monkeypatch.context() as patch, suppress(StreamUnavailable):
            patch.setattr(disk, operation, flaky)
            append_and_acknowledge(url, 15, acknowledged.append)
        assert_whole(url, max(acknowledged))
        if next(calls) <= failing_call:
            break
    assert failing_call > 3


def test_full_disk_is_transient_and_appends_go_on_when_there_is_room(tmp_path):
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount_point)], capture_output=True, check=False
    )
    if mounted.returncode:
        # No right to mount: the limit on a file's size stops the writer at the same place.
        killed, _ = run_and_kill(lambda ack: fill_up_to_the_size_limit(f"file://{mount_point}/s"), 10**9, halfway=False)
        assert not killed
        assert_whole(f"file://{mount_point}/s", 1)
        return
    try:
        url = f"file://{mount_point}/s"
        ballast = mount_point / "ballast"
        ballast.write_bytes(bytes(150_000))
        acknowledged = [0]
        with pytest.raises(StreamUnavailable, match="disk is full"):
            append_and_acknowledge(url, 10**6, acknowledged.append)
        assert acknowledged[-1] > 3
        assert open_stream(url).tail() == acknowledged[-1]
        assert check(url).ok
        ballast.unlink()
        assert_whole(url, acknowledged[-1])
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def fill_up_to_the_size_limit(url: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    acknowledged = [0]
    with pytest.raises(StreamUnavailable, match="may not grow"):
        append_and_acknowledge(url, 10**6, acknowledged.append)
    assert acknowledged[-1] > 3
    assert open_stream(url).tail() == acknowledged[-1]


def test_file_size_limit_is_transient_and_leaves_a_tail_that_can_be_cut(tmp_path):
    url = f"file://{tmp_path}/s"
    killed, _ = run_and_kill(lambda ack: fill_up_to_the_size_limit(url), 10**9, halfway=False)
    assert not killed
    assert_whole(url, 1)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A stream of 60 events in several sealed segments and one that is being written."""
    append_and_acknowledge(f"file://{tmp_path}/s{SMALL}", 60, lambda tail: None)
    assert len(list_segments(tmp_path / "s")) > 4
    return tmp_path / "s"


def test_older_copy_opens_with_its_older_tail(folder, tmp_path):
    copy_folder(folder, tmp_path / "old")
    append_and_acknowledge(f"file://{folder}{SMALL}", 90, lambda tail: None)
    copy_folder(tmp_path / "old", folder)
    with open_stream(f"file://{folder}", "write") as stream:
        assert stream.tail() == 60
        assert stream.append(batch([91])).outcome is Outcome.TAIL_LOST


def test_emptied_folder_is_another_stream(folder):
    stream_id = open_stream(f"file://{folder}").stream_id
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(StreamMissing):
        open_stream(f"file://{folder}", "write", create=False)
    with open_stream(f"file://{folder}", "write") as stream:
        assert stream.stream_id != stream_id
        assert stream.tail() == 0
        assert stream.info().outbox_id is None


def test_swapped_folder_refuses_the_outbox(folder, tmp_path):
    with open_stream(f"file://{tmp_path}/other", "write") as stream:
        stream.bind("outbox-b", "/warehouse")
        stream.append(batch([1]))
    copy_folder(tmp_path / "other", folder)
    with open_stream(f"file://{folder}", "write") as stream, pytest.raises(WrongPartner, match="outbox-b"):
        stream.bind("outbox-a", "/shop")


def test_folder_swapped_under_a_reader_is_noticed(folder, tmp_path):
    reader = open_stream(f"file://{folder}")
    assert reader.tail() == 60
    append_and_acknowledge(f"file://{tmp_path}/other", 90, lambda tail: None)
    copy_folder(tmp_path / "other", folder)
    with pytest.raises(OutboxError, match="belongs to stream"):
        list(reader.read(0))


@pytest.mark.parametrize("refill", [False, True], ids=["removed", "replaced"])
def test_folder_exchanged_under_a_writer_is_not_written_to_and_acknowledged(folder, tmp_path, refill):
    copy_folder(folder, tmp_path / "old")
    stream = open_stream(f"file://{folder}", "write")
    assert stream.append(batch([61])).outcome is Outcome.APPENDED
    folder.rename(tmp_path / "away")
    if refill:
        copy_folder(tmp_path / "old", folder)
    with pytest.raises(StreamUnavailable, match="removed or replaced"):
        stream.append(batch([62]))
    stream.close()


def test_segment_of_another_stream_is_damage(folder, tmp_path):
    append_and_acknowledge(f"file://{tmp_path}/other{SMALL}", 60, lambda tail: None)
    name = list_segments(folder)[1]
    assert list_segments(tmp_path / "other")[1] == name
    shutil.copy(segment_path(tmp_path / "other", name), segment_path(folder, name))
    for mode in ("read", "write"):
        with pytest.raises(StreamCorrupt, match="belongs to stream"):
            list(open_stream(f"file://{folder}", mode).read(0))
    assert next(damage.file for damage in check(f"file://{folder}").damage) == str(segment_path(folder, name))


@pytest.mark.parametrize("which", [0, 2, -2, -1])
def test_missing_segment_is_damage(folder, which):
    name = list_segments(folder)[which]
    segment_path(folder, name).unlink()
    with pytest.raises(StreamCorrupt):
        open_stream(f"file://{folder}", "write")
    with pytest.raises(StreamCorrupt):
        list(open_stream(f"file://{folder}").read(0))
    assert not check(f"file://{folder}").ok


def test_all_segments_missing_is_damage(folder):
    for name in list_segments(folder):
        segment_path(folder, name).unlink()
    (folder / MARK_NAME).unlink()
    with pytest.raises(StreamCorrupt, match="there is none"):
        open_stream(f"file://{folder}", "write")
    with pytest.raises(StreamCorrupt, match="no segments"):
        list(open_stream(f"file://{folder}").read(0))


def test_missing_stream_json_is_damage_and_not_a_new_stream(folder):
    (folder / "stream.json").unlink()
    with pytest.raises(StreamCorrupt, match=r"no stream\.json"):
        open_stream(f"file://{folder}", "write")
    found = check(folder)
    assert found.events == 60
    assert found.damage[0].file.endswith("stream.json")


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", '{"format": 1}', '{"format": 1, "lost": 3}'])
def test_damaged_stream_json_is_named(folder, content):
    (folder / "stream.json").write_text(content)
    for mode in ("read", "write"):
        with pytest.raises(StreamCorrupt, match=r"stream\.json"):
            open_stream(f"file://{folder}", mode)


def test_unknown_format_says_what_to_install(folder):
    text = (folder / "stream.json").read_text()
    (folder / "stream.json").write_text(text.replace('"format": 1', '"format": 7'))
    for mode in ("read", "write"):
        with pytest.raises(Unsupported, match=r"format 7.*newer"):
            open_stream(f"file://{folder}", mode)


def test_copy_made_while_a_writer_ran_says_how_to_go_on(folder, tmp_path):
    """The mark is copied last, and is ahead of the segment that was copied before it."""
    copy_folder(folder, tmp_path / "copy")
    append_and_acknowledge(f"file://{folder}", 63, lambda tail: None)
    shutil.copy(folder / MARK_NAME, tmp_path / "copy" / MARK_NAME)
    url = f"file://{tmp_path}/copy"
    with pytest.raises(StreamCorrupt, match="copy made while a writer ran"):
        open_stream(url, "write")
    with pytest.raises(StreamCorrupt):
        list(open_stream(url).read(0))
    (tmp_path / "copy" / MARK_NAME).unlink()
    assert_whole(url, 60)


def test_reader_without_a_mark_reads_what_is_sealed(folder):
    sealed_through = list_segments(folder)[-1]
    for content in (None, b"", b"OBXMARK1 but torn"):
        (folder / MARK_NAME).unlink(missing_ok=True)
        if content is not None:
            (folder / MARK_NAME).write_bytes(content)
        reader = open_stream(f"file://{folder}")
        assert ids_of(reader.read(0)) == list(range(1, sealed_through + 1))
    assert_whole(f"file://{folder}", 60)


def test_check_goes_on_behind_damage_and_names_each_place(folder):
    names = list_segments(folder)
    for name in names[:-1]:
        index_path(folder, name).unlink()
    first = bytearray(segment_path(folder, names[0]).read_bytes())
    first[64 + 70] ^= 1  # a payload
    segment_path(folder, names[0]).write_bytes(first)
    third = bytearray(segment_path(folder, names[2]).read_bytes())
    third[64] ^= 1  # a frame header
    segment_path(folder, names[2]).write_bytes(third)
    fourth = bytearray(segment_path(folder, names[3]).read_bytes())
    fourth[5] ^= 1  # the header of the segment
    segment_path(folder, names[3]).write_bytes(fourth)
    found = check(f"file://{folder}")
    places = [(Path(damage.file).name, damage.offset) for damage in found.damage]
    for place in ((segment_path(folder, names[0]).name, 64), (segment_path(folder, names[2]).name, 64)):
        assert place in places
    assert (segment_path(folder, names[3]).name, 0) in places
    assert found.tail == 60
    assert 0 < found.events < 60


def test_unacknowledged_tail_is_not_damage_to_check(folder):
    with segment_path(folder, list_segments(folder)[-1]).open("ab") as file:
        file.write(b"OBXF" + bytes(300))
    found = check(folder)
    assert found.ok
    assert found.unacknowledged_bytes == 304
    assert ids_of(open_stream(f"file://{folder}").read(0)) == list(range(1, 61))


def test_damage_below_the_mark_is_never_cut(folder):
    path = segment_path(folder, list_segments(folder)[-1])
    content = path.read_bytes()
    for keep in (len(content) - 1, len(content) - 64, 200, 64):
        path.write_bytes(content[:keep])
        with pytest.raises(StreamCorrupt, match=path.name):
            open_stream(f"file://{folder}", "write")
    path.write_bytes(content)
    assert_whole(f"file://{folder}", 60)


def test_damage_with_a_valid_frame_behind_it_is_never_cut(folder):
    """Also when the mark is gone and cannot tell."""
    append_and_acknowledge(f"file://{folder}?segment_bytes=1000000", 90, lambda tail: None)
    (folder / MARK_NAME).unlink()
    path = segment_path(folder, list_segments(folder)[-1])
    content = bytearray(path.read_bytes())
    content[64 + 10] ^= 4
    path.write_bytes(content)
    with pytest.raises(StreamCorrupt, match="offset 64"):
        open_stream(f"file://{folder}", "write")
    assert path.read_bytes() == content


def test_frame_inside_an_event_is_not_taken_for_one_of_the_stream(tmp_path):
    """An event that carries a stream's own bytes, torn: still only a torn tail."""
    url = f"file://{tmp_path}/s"
    append_and_acknowledge(url, 3, lambda tail: None)
    path = segment_path(tmp_path / "s", 0)
    frame = path.read_bytes()[64:]
    with path.open("ab") as file:
        file.write(bytes(64) + frame + bytes(30))
    assert_whole(url, 3)


def test_leftovers_of_a_crash_are_removed(folder):
    for name in (f"{61:020d}.log.tmp", "stream.json.tmp", f"{7:020d}.idx.tmp", f"{99999:020d}.idx"):
        (folder / name).write_bytes(b"half")
    assert_whole(f"file://{folder}", 60)
    assert not list(folder.glob("*.tmp"))
    assert not (folder / f"{99999:020d}.idx").exists()


def test_folder_is_its_owners_alone(folder):
    assert folder.stat().st_mode & 0o777 == 0o700


def test_small_frames_are_put_together_when_a_segment_is_sealed(tmp_path):
    url = f"file://{tmp_path}/s?segment_bytes=200000"
    with open_stream(url, "write") as stream:
        for event_id in range(1, 700):
            if event_id == 50:
                stream.lose(50)
            else:
                stream.append(batch([event_id]))
        assert len(list_segments(tmp_path / "s")) > 2
    found = check(url)
    assert found.ok
    assert (found.events, found.lost_ids, found.dead_ids) == (698, 1, 0)
    with open_stream(url) as reader:
        batches = list(reader.read(0))
        assert rows_of(batches) == [row(event_id) for event_id in range(1, 700) if event_id != 50]
        assert [part.prev_id for part in batches][:2] == [0, 50]
        sealed = list_segments(tmp_path / "s")[-1]
        assert len([part for part in batches if part.last_id <= sealed]) < 10


def test_forked_child_does_not_keep_the_writer_lock(tmp_path):
    url = f"file://{tmp_path}/s"
    stream = open_stream(url, "write")
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready_write)
        os.read(ready_read, 1)  # until the parent is done
        os._exit(0)
    stream.close()
    try:
        open_stream(url, "write").close()
    finally:
        os.close(ready_write)
        os.waitpid(child, 0)
