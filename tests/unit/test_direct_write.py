"""Large writes past the page cache leave the same bytes as small ones through it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream_store.file import direct, disk


@pytest.mark.parametrize("before_bytes", [0, 64, 4096, 4160, 100_032])
@pytest.mark.parametrize("length", [2**20, 2**20 + 64, 3 * 2**20 + 4032, 17 * 2**20, 25 * 2**20])
def test_a_large_write_between_small_ones_is_byte_exact(tmp_path: Path, before_bytes: int, length: int) -> None:
    before, large, after = os.urandom(before_bytes), os.urandom(length), os.urandom(192)
    fd = disk.create(tmp_path / "file")
    try:
        disk.write(fd, [before], 0)
        disk.write(fd, [large[:1000], large[1000:]], before_bytes)
        disk.write(fd, [after], before_bytes + length)
        disk.sync(fd)
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == before + large + after


def test_a_file_system_without_direct_writes_gets_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_write_blocks", lambda *_: False)
    monkeypatch.setattr(direct, "_refused_devices", set())
    content = os.urandom(2**21)
    fd = disk.create(tmp_path / "file")
    try:
        disk.write(fd, [content], 0)
        assert os.fstat(fd).st_dev in direct._refused_devices
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == content


def test_the_file_is_left_without_the_direct_flag(tmp_path: Path) -> None:
    import fcntl

    fd = disk.create(tmp_path / "file")
    try:
        disk.write(fd, [os.urandom(2**21)], 64)
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & direct.O_DIRECT
    finally:
        os.close(fd)
