"""The sparse index leads to the right frame, and is never trusted when it is not sound."""

from __future__ import annotations

import itertools
from uuid import UUID, uuid4

import pytest

from stream_store import open_stream
from stream_store.file.index import read_index
from stream_store.file.segment import index_path, list_segments, segment_path
from tests.crash.stream_events import batch, ids_of, wait_until_tidy


@pytest.fixture
def folder(tmp_path):
    """Three sealed segments, and one that is being written."""
    with open_stream(f"file://{tmp_path}/s?segment_bytes=200000", "write") as stream:
        tail = 0
        while len(list_segments(tmp_path / "s")) < 4:
            stream.append(batch(range(tail + 1, tail + 501), salt="x" * 100))
            tail += 500
        wait_until_tidy(stream)
    return tmp_path / "s"


def test_sealed_segments_have_an_index_of_themselves(folder):
    stream_id = UUID(open_stream(f"file://{folder}").stream_id)
    names = list_segments(folder)
    for name, end in itertools.pairwise(names):
        size = segment_path(folder, name).stat().st_size
        index = read_index(index_path(folder, name), name, size, stream_id)
        assert (index.prev_id, index.last_id) == (name, end)
        assert len(index.offsets) > 1
        assert read_index(index_path(folder, name), name, size + 64, stream_id) is None
        assert read_index(index_path(folder, name), name, size, uuid4()) is None
    assert not index_path(folder, names[-1]).exists()


def every_id(folder) -> list[int]:
    stream = open_stream(f"file://{folder}")
    tail = stream.tail()
    for after in range(0, tail, 333):
        assert ids_of(stream.read(after)) == list(range(after + 1, tail + 1))
    return ids_of(stream.read(0))


def test_reading_does_not_need_the_index(folder):
    expected = every_id(folder)
    for name in list_segments(folder)[:-1]:
        index_path(folder, name).unlink()
    assert every_id(folder) == expected


@pytest.mark.parametrize("at", [3, 10, 30, 60, 100, 130, -1])
def test_damaged_index_is_made_again(folder, at):
    expected = every_id(folder)
    path = index_path(folder, list_segments(folder)[1])
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    content[at] ^= 0x40
    path.write_bytes(content)
    assert every_id(folder) == expected
    with open_stream(f"file://{folder}", "write") as stream:
        wait_until_tidy(stream)
    assert path.read_bytes() == whole


def test_index_of_other_offsets_is_noticed(folder):
    """A sound index whose offsets are not those of the file, as after a partial restore."""
    expected = every_id(folder)
    name = list_segments(folder)[0]
    stream_id = UUID(open_stream(f"file://{folder}").stream_id)
    size = segment_path(folder, name).stat().st_size
    index = read_index(index_path(folder, name), name, size, stream_id)
    for entry in range(1, len(index.offsets)):
        index.offsets[entry] += 64
    index_path(folder, name).write_bytes(index.encode(size, stream_id))
    assert every_id(folder) == expected
