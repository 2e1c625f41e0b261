"""`readers/`: how far each known table and consumer group has come, one small file each."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable
from stream_store.file import disk
from stream_store.readers import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from stream_store.readers import Kind

READERS_NAME = "readers"


def report(folder: Path, kind: Kind, name: str, through: int) -> None:
    """Write, durably, that a reader has every event through an ID."""
    path = _report_of(folder, kind, name)
    # Readers need no writer lock, so the name of the temporary file must be this thread's own.
    temporary = path.with_name(f"{path.stem}.{os.getpid()}-{threading.get_ident()}{disk.TEMPORARY}")
    said = {"kind": kind, "name": name, "through": through, "reported_at": datetime.now(UTC).isoformat()}
    with disk.reporting("writing", path):
        disk.make_folder(path.parent)
        os.close(disk.replace(path, [json.dumps(said).encode()], temporary))


def forget(folder: Path, kind: Kind, name: str) -> None:
    """A reader that is no more."""
    path = _report_of(folder, kind, name)
    with disk.reporting("removing", path):
        path.unlink(missing_ok=True)


def readers(folder: Path) -> list[Reader]:
    """Every reader that has reported."""
    with disk.reporting("reading", folder / READERS_NAME):
        found = [_reader(path) for path in _reports(folder / READERS_NAME)]
    return [each for each in found if each is not None]


def _report_of(folder: Path, kind: Kind, name: str) -> Path:
    return folder / READERS_NAME / f"{hashlib.sha256(f'{kind}:{name}'.encode()).hexdigest()[:32]}.json"


def _reader(path: Path) -> Reader | None:
    """What a report says; None when an operator has just removed a reader that is no more."""
    try:
        said = json.loads(path.read_bytes())
        return Reader(said["kind"], said["name"], int(said["through"]), datetime.fromisoformat(said["reported_at"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StreamUnavailable(
            f"{path} cannot be read ({error}): its reader writes it again when it gets on; remove the file if that table or "
            "group is no more"
        ) from error


def _reports(folder: Path) -> list[Path]:
    # Not by glob: it takes a folder that it may not read for an empty one, and no reader would be known.
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except FileNotFoundError:
        return []
