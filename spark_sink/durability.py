"""Making a local table's commits durable.

Delta leaves its files to the page cache. Before a bookmark may count for deleting rows or
trimming the stream, the commit and every file that it adds must be on the disk; also the
checksums that Hadoop keeps beside each file, because it refuses a file whose own is torn.

A sync that has failed says nothing the next time: the kernel forgets what it could not write.
So the files are noted beside the table, and written anew before any of it counts as durable,
by whichever process comes next.
"""

from __future__ import annotations

import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import UUID

from outbox.errors import TableUnavailable
from stream_store.file import disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

LAST_CHECKPOINT = "_last_checkpoint"
CHUNK_BYTES = 1 << 20
# Many small syncs at once are one write of the file system's journal.
SYNCS_AT_ONCE = 8
# The digits of numbers to the base of 85, as Delta writes them and as Python reads them.
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_UUID_DIGITS = 20


def sync_versions(folder: Path, first: int, last: int) -> None:
    """Make the versions first..last of a table durable: data files, commits, folders."""
    _write_anew(folder)
    log_folder = folder / "_delta_log"
    files: list[Path] = []
    for version in range(first, last + 1):
        path = log_folder / f"{version:020d}.json"
        if not path.exists():  # Delta has cleaned it up behind a checkpoint
            continue
        files += _added(folder, path.read_text("utf-8").splitlines())
        files += [path, path.with_suffix(".crc")]
        checkpoint = log_folder / f"{version:020d}.checkpoint.parquet"
        if checkpoint.exists():
            # Delta reads the table from it: a torn one makes a table that nobody can read.
            files += [checkpoint, log_folder / LAST_CHECKPOINT]
    files += [file.with_name(f".{file.name}.crc") for file in files]
    folders = {folder, log_folder, folder.parent}
    folders.update(parent for file in files for parent in (file.parent, *_between(file.parent, folder)))
    failed = _each(_sync, files)
    failed |= _each(disk.sync_folder, folders)
    if first == 0:
        # Folders above the table's may be as new as the table.
        failed |= _each(_sync_if_allowed, _same_disk(folder.parent))
    if failed:
        # A name that did not get into its folder comes with its file.
        _note_unsynced(folder, [file for file in files if file in failed or file.parent in failed])
        path, error = next(iter(failed.items()))
        raise TableUnavailable(
            f"{folder} cannot be made durable: {path}: {error.strerror or error}; see the kernel log for the disk. The "
            "events stay in the stream, and the files are written anew before the next try counts"
        ) from error


def _added(folder: Path, lines: Iterable[str]) -> Iterator[Path]:
    """The files that a commit brings: rows, the rows that it takes out of files, the changes for its readers."""
    for line in lines:
        if line.startswith(('{"add":', '{"cdc":')):
            (action,) = json.loads(line).values()
            yield folder / unquote(action["path"])
            vector = action.get("deletionVector")
            if vector is not None and vector["storageType"] == "u":
                yield _vector_file(folder, vector["pathOrInlineDv"])


def _vector_file(folder: Path, text: str) -> Path:
    """Where a deletion vector is: a folder, if any, and then its number."""
    prefix, digits = text[:-_UUID_DIGITS], text[-_UUID_DIGITS:]
    number = UUID(bytes=base64.b85decode(digits.translate(str.maketrans(_Z85, _B85))))
    return folder / prefix / f"deletion_vector_{number}.bin"


def _between(inner: Path, outer: Path) -> list[Path]:
    return [parent for parent in inner.parents if outer in parent.parents]


def _same_disk(folder: Path) -> list[Path]:
    """The folders above this one, as far as they are on its disk."""
    device = folder.stat().st_dev
    return [parent for parent in folder.parents if parent.stat().st_dev == device]


def _sync(path: Path) -> None:
    # Not every file has a checksum beside it, and VACUUM may have taken an old one away.
    with suppress(FileNotFoundError), path.open("rb") as file:
        disk.sync(file.fileno())


def _sync_if_allowed(folder: Path) -> None:
    with suppress(PermissionError):
        disk.sync_folder(folder)


def _each(sync: Callable[[Path], None], paths: Iterable[Path]) -> dict[Path, OSError]:
    """Sync all of these at once; those that failed, and why."""

    def attempt(path: Path) -> tuple[Path, OSError | None]:
        try:
            sync(path)
        except OSError as error:
            return path, error
        return path, None

    return {path: error for path, error in _pool().map(attempt, paths) if error is not None}


@cache
def _pool() -> Any:
    return ThreadPoolExecutor(SYNCS_AT_ONCE, "sync")


# ---- after a sync that failed ------------------------------------------------------------


def _note(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.outbox-unsynced"


def _note_unsynced(folder: Path, files: Iterable[Path]) -> None:
    """Remember them. On a disk that takes nothing at all nobody can, and then the table itself is in doubt."""
    note = _note(folder)
    with suppress(OSError):
        before = note.read_text("utf-8").splitlines() if note.exists() else []
        names = dict.fromkeys([*before, *(str(file.relative_to(folder)) for file in files)])
        os.close(disk.replace(note, ["".join(f"{name}\n" for name in names).encode()]))


def _write_anew(folder: Path) -> None:
    """Put a copy in the place of each file that was noted: another file, whose sync says something."""
    note = _note(folder)
    if not note.exists():
        return
    try:
        for name in note.read_text("utf-8").splitlines():
            path = folder / name
            if path.exists():
                mode = path.stat().st_mode
                # Whether what is read back is what was written, Hadoop's checksum says to each reader.
                fd = disk.replace(path, _chunks(path), path.with_name(f".{path.name}.outbox-tmp"))
                os.fchmod(fd, mode & 0o777)
                os.close(fd)
    except OSError as error:
        raise TableUnavailable(f"{folder} cannot be made durable: {error}; see the kernel log for the disk") from error
    disk.remove(note)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
