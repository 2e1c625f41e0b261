"""`sinks/`: how far each known sink's table has come, one small file per table."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable
from stream_store.file import disk

if TYPE_CHECKING:
    from pathlib import Path

SINKS_NAME = "sinks"


def report_sink(folder: Path, table: str, through: int) -> None:
    """Write, durably, that a table holds every event through an ID."""
    path = _report_of(folder, table)
    # Sinks need no writer lock, so the name of the temporary file must be this thread's own.
    temporary = path.with_name(f"{path.stem}.{os.getpid()}-{threading.get_ident()}{disk.TEMPORARY}")
    with disk.reporting("writing", path):
        disk.make_folder(path.parent)
        os.close(disk.replace(path, [json.dumps({"table": table, "through": through}).encode()], temporary))


def reported(folder: Path, table: str) -> int | None:
    """What was reported of a table; None when it is not known."""
    with disk.reporting("reading", folder / SINKS_NAME):
        return _through(_report_of(folder, table))


def materialized_through(folder: Path) -> int | None:
    """The lowest ID that any known sink has reached; None when no sink is known."""
    with disk.reporting("reading", folder / SINKS_NAME):
        reached = [_through(path) for path in _reports(folder / SINKS_NAME)]
    return min((through for through in reached if through is not None), default=None)


def _report_of(folder: Path, table: str) -> Path:
    return folder / SINKS_NAME / f"{hashlib.sha256(table.encode()).hexdigest()[:32]}.json"


def _through(path: Path) -> int | None:
    """What a report says; None when there is none, or an operator has just removed a sink that is no more."""
    try:
        return int(json.loads(path.read_bytes())["through"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StreamUnavailable(
            f"{path} cannot be read ({error}): its sink writes it again with its next commit; remove the file if that sink "
            "is no more"
        ) from error


def _reports(folder: Path) -> list[Path]:
    # Not by glob: it takes a folder that it may not read for an empty one, and no sink would be known.
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except FileNotFoundError:
        return []
