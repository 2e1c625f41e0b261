"""Making a local table's commits durable.

Delta leaves its files to the page cache. Before a bookmark may count for deleting rows or
trimming the stream, the commit and every file that it adds must be on the disk.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote

from stream_store.file import disk

if TYPE_CHECKING:
    from pathlib import Path


LAST_CHECKPOINT = "_last_checkpoint"


def sync_versions(folder: Path, first: int, last: int) -> None:
    """Make the versions first..last of a table durable: data files, commits, folders."""
    log_folder = folder / "_delta_log"
    folders = {folder, log_folder, folder.parent}
    for version in range(first, last + 1):
        path = log_folder / f"{version:020d}.json"
        if not path.exists():  # Delta has cleaned it up behind a checkpoint
            continue
        for line in path.read_text("utf-8").splitlines():
            if line.startswith('{"add":'):
                file = folder / unquote(json.loads(line)["add"]["path"])
                if file.exists():
                    _sync(file)
                    folders.update({file.parent, *_between(file.parent, folder)})
        _sync(path)
        checkpoint = log_folder / f"{version:020d}.checkpoint.parquet"
        if checkpoint.exists():
            # Delta reads the table from it: a torn one makes a table that nobody can read.
            _sync(checkpoint)
            _sync(log_folder / LAST_CHECKPOINT)
    for each in sorted(folders):
        disk.sync_folder(each)


def _between(inner: Path, outer: Path) -> list[Path]:
    return [parent for parent in inner.parents if outer in parent.parents]


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        disk.sync(file.fileno())
