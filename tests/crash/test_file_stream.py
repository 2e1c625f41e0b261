"""The file stream through kills, power failures, full and failing disks."""

from __future__ import annotations

import errno
import itertools
import resource
import shutil
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox.errors import StreamMissing, StreamUnavailable
from stream_store import Outcome, check, open_stream
from stream_store.file import disk
from stream_store.file.segment import index_path, list_segments, segment_path
from tests.crash.stream_events import batch, ids_of
from tests.crash.stream_faults import Disk, PowerCut, arm, copy_folder, describe, run_and_kill
from tests.crash.stream_relay import SMALL, append_and_acknowledge, assert_whole

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def memory_path(tmp_path) -> Iterator[Path]:
    """A folder in memory where there is such a thing: thousands of syncs, and none of them needs a disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="outbox-stream-", dir="/dev/shm") as folder:
        yield Path(folder)


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
    ("current", "between"),
    ("synced", "between"),
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
        with suppress(StreamMissing):  # a reader may come before the next writer
            ids = ids_of(open_stream(f"file://{image}").read(0))
            assert ids == list(range(1, len(ids) + 1))
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


@contextmanager
def files_that_may_not_grow() -> Iterator[None]:
    """Every write into a file fails in this process, as on a file system that became read-only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lock_that_cannot_take_its_holders_name_is_given_back(tmp_path):
    url = f"file://{tmp_path}/s"
    with files_that_may_not_grow():
        for _ in range(2):
            with pytest.raises(StreamUnavailable, match="may not grow"):
                open_stream(url, "write")
    with open_stream(url, "write") as stream:
        assert stream.append(batch([1])).outcome is Outcome.APPENDED


def test_writer_that_cannot_wipe_its_name_gives_the_lock_back_and_says_what_failed(tmp_path):
    url = f"file://{tmp_path}/s"
    stream = open_stream(url, "write")
    stream.append(batch([1]))
    with files_that_may_not_grow(), pytest.raises(StreamUnavailable, match="may not grow"), stream:
        stream.append(batch([2]))
    with open_stream(url, "write") as stream:
        assert stream.append(batch([2])).outcome in (Outcome.APPENDED, Outcome.DUPLICATE)
        assert ids_of(stream.read(0)) == [1, 2]
