"""Which files and folders of a table are synced before its bookmark counts, and what follows when one is not."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from outbox.errors import TableUnavailable
from spark_sink import durability
from spark_sink.durability import sync_versions
from stream_store.file import disk

VECTOR = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


class Table:
    """A folder with the files of two versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        added = {"path": "day=2026-03-01/a%20b.parquet"}
        # As the protocol's own example has it.
        taken = {
            "path": "c.parquet",
            "deletionVector": {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"},
        }
        self.commit(0, {"metaData": {}}, {"add": added})
        self.commit(1, {"add": taken}, {"cdc": {"path": "_change_data/d.parquet"}}, {"remove": {"path": "e.parquet"}})
        for name in ("day=2026-03-01/a b.parquet", "c.parquet", "_change_data/d.parquet", "e.parquet", f"ab/{VECTOR}"):
            self.write(folder / name)
        self.write(self.log / "00000000000000000001.checkpoint.parquet")
        self.write(self.log / "_last_checkpoint")

    def commit(self, version: int, *actions: dict[str, Any]) -> None:
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        self.write(self.log / f"{version:020d}.json", text)
        self.write(self.log / f"{version:020d}.crc")

    def write(self, path: Path, text: str = "x") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_text("checksum")


@pytest.fixture
def table(tmp_path) -> Table:
    return Table(tmp_path / "new" / "lake" / "t")


@pytest.fixture
def synced(monkeypatch) -> set[Path]:
    """What reaches the disk."""
    found: set[Path] = set()
    lock = threading.Lock()

    def sync(fd: int) -> None:
        with lock:
            found.add(Path(os.readlink(f"/proc/self/fd/{fd}")))

    monkeypatch.setattr(disk, "sync", sync)
    monkeypatch.setattr(disk, "sync_folder", found.add)
    return found


def test_every_file_of_a_version_its_checksums_and_its_folders_are_synced(table, synced):
    sync_versions(table.folder, 0, 1)
    files = {path for path in synced if path.is_file()}
    there = {path for path in table.folder.rglob("*") if path.is_file() and "e.parquet" not in path.name}
    assert files == there
    assert {path for path in table.folder.rglob("*") if path.is_dir()} | {table.folder} <= synced


def test_new_folders_above_a_new_table_are_synced(table, synced, tmp_path):
    sync_versions(table.folder, 1, 1)
    assert tmp_path / "new" not in synced
    sync_versions(table.folder, 0, 1)
    assert {tmp_path / "new" / "lake", tmp_path / "new", tmp_path} <= synced


def failing(monkeypatch, name: str) -> None:
    """A disk that does not take this file, or the names in this folder."""
    sync, sync_folder = disk.sync, disk.sync_folder

    def fail(path: str) -> None:
        if path.endswith(name):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "sync", lambda fd: (fail(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1])
    monkeypatch.setattr(disk, "sync_folder", lambda path: (fail(str(path)), sync_folder(path))[1])


@pytest.mark.parametrize(
    ("name", "anew"),
    [
        ("a b.parquet", "day=2026-03-01/a b.parquet"),
        (".a b.parquet.crc", "day=2026-03-01/.a b.parquet.crc"),
        ("1.json", "_delta_log/00000000000000000001.json"),
        ("/day=2026-03-01", "day=2026-03-01/a b.parquet"),
    ],
)
def test_a_file_whose_sync_failed_is_written_anew_and_not_synced_again(table, monkeypatch, name, anew):
    file = table.folder / anew
    file.chmod(0o640)
    before, text = file.stat(), file.read_text()
    with monkeypatch.context() as patch:
        failing(patch, name)
        for _ in range(2):  # also when the next try fails
            with pytest.raises(TableUnavailable, match=r"Input/output error; see the kernel log"):
                sync_versions(table.folder, 0, 1)
            patch.setattr(durability, "_write_anew", lambda _: None)
    other = (table.folder / "c.parquet").stat().st_ino
    sync_versions(table.folder, 0, 1)
    after = file.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, file.read_text()) == (before.st_mode, text)
    assert (table.folder / "c.parquet").stat().st_ino == other
    # And that was it.
    sync_versions(table.folder, 0, 1)
    assert file.stat().st_ino == after.st_ino
    assert not [path.name for path in table.folder.parent.rglob("*") if "outbox" in path.name]


def test_as_long_as_a_file_cannot_be_written_anew_the_table_is_not_durable(table, monkeypatch):
    failing(monkeypatch, "c.parquet")
    with pytest.raises(TableUnavailable):
        sync_versions(table.folder, 0, 1)
    monkeypatch.undo()
    failing(monkeypatch, ".c.parquet.outbox-tmp")
    with pytest.raises(TableUnavailable):
        sync_versions(table.folder, 0, 1)
    assert (table.folder / "c.parquet").read_text() == "x"
