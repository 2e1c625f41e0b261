"""The file stream in a folder that was damaged, restored, emptied, exchanged or copied."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from outbox.errors import OutboxError, StreamCorrupt, StreamMissing, StreamUnavailable, Unsupported, WrongPartner
from stream_store import Outcome, check, open_stream
from stream_store.file.frame import encode_events, seed_of
from stream_store.file.index import SparseIndex
from stream_store.file.mark import MARK_NAME, encode_mark, read_mark
from stream_store.file.segment import encode_segment_header, index_path, list_segments, segment_path
from stream_store.readers import TABLE
from tests.crash.stream_events import batch, ids_of, row, rows_of, wait_until_tidy
from tests.crash.stream_faults import copy_folder
from tests.crash.stream_relay import SMALL, append_and_acknowledge, assert_whole


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


@pytest.mark.parametrize("indexed", [False, True])
def test_break_in_the_chain_is_damage_however_valid_the_frames(folder, indexed):
    stream_id = UUID(open_stream(f"file://{folder}").stream_id)
    name, end = list_segments(folder)[1:3]
    content, index = encode_segment_header(name, stream_id), SparseIndex(name)
    for events in (batch([name + 1]), batch([end], prev_id=name + 2)):
        frame = encode_events(events, len(content), seed_of(stream_id))
        index.add(len(content), frame.header)
        content += b"".join(bytes(memoryview(part)) for part in frame.parts)
    segment_path(folder, name).write_bytes(content)
    index_path(folder, name).unlink(missing_ok=True)
    if indexed:
        index_path(folder, name).write_bytes(index.encode(len(content), stream_id))
    with pytest.raises(StreamCorrupt, match=f"follows ID {name + 2}, the one before ends at {name + 1}"):
        list(open_stream(f"file://{folder}").read(0))
    assert any("follows ID" in damage.what for damage in check(folder).damage)


def test_tail_that_the_frames_do_not_reach_is_damage(folder):
    stream_id = UUID(open_stream(f"file://{folder}").stream_id)
    mark = read_mark(folder, stream_id)
    (folder / MARK_NAME).write_bytes(encode_mark(mark._replace(tail=70), stream_id))
    with pytest.raises(StreamCorrupt, match="durable through ID 70, its frames end at 60"):
        list(open_stream(f"file://{folder}").read(0))
    assert not check(folder).ok


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


def test_readers_that_cannot_be_read_are_not_taken_for_none(folder):
    """A relay that waits for its tables tries again and says why."""
    with open_stream(f"file://{folder}") as stream:
        stream.report(TABLE, "orders", 7)
        (report,) = (folder / "readers").iterdir()
        report.rename(folder / "away")
        report.mkdir()
        with pytest.raises(StreamUnavailable, match=r"reading .*readers: Is a directory"):
            stream.readers()
        report.rmdir()
        assert stream.readers() == []
        (folder / "readers").rmdir()
        (folder / "readers").symlink_to(folder / "readers")  # a loop; the root of a container may read any folder
        with pytest.raises(StreamUnavailable, match=r"reading .*readers: Too many levels"):
            stream.readers()


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
        wait_until_tidy(stream)
    found = check(url)
    assert found.ok
    assert (found.events, found.lost_ids, found.dead_ids) == (698, 1, 0)
    with open_stream(url) as reader:
        batches = list(reader.read(0))
        assert rows_of(batches) == [row(event_id) for event_id in range(1, 700) if event_id != 50]
        assert [part.prev_id for part in batches][:2] == [0, 50]
        sealed = list_segments(tmp_path / "s")[-1]
        assert len([part for part in batches if part.last_id <= sealed]) < 10


def test_sealed_segment_of_an_older_backup_may_be_put_back(tmp_path, monkeypatch):
    """It was copied before its frames were put together: the same events in smaller frames."""
    folder = tmp_path / "s"
    url = f"file://{folder}?segment_bytes=20000"
    with monkeypatch.context() as patch:
        patch.setattr("stream_store.file.tidy.tidy", lambda *_: None)
        with open_stream(url, "write") as stream:
            for event_id in range(1, 60):
                stream.append(batch([event_id]))
    first, later, *_ = list_segments(folder)
    path = segment_path(folder, first)
    backup = path.read_bytes()
    with open_stream(url, "write") as stream:
        wait_until_tidy(stream)
        assert path.stat().st_size < len(backup)
        stream.append(batch([60]))
    path.write_bytes(bytes(100))
    assert not check(url).ok
    path.write_bytes(backup)
    assert check(url).ok
    for after in (0, 1, later - 1, later, 59):
        assert ids_of(open_stream(url).read(after)) == list(range(after + 1, 61))
    assert_whole(url, 60)


def test_forked_child_does_not_keep_the_writer_lock(tmp_path):
    url = f"file://{tmp_path}/s"
    stream = open_stream(url, "write")
    started_read, started_write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_write)
        os.write(started_write, b".")
        os.read(done_read, 1)  # until the parent is done
        os._exit(0)
    os.read(started_read, 1)
    stream.close()
    try:
        open_stream(url, "write").close()
    finally:
        os.close(done_write)
        os.waitpid(child, 0)
