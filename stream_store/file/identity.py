"""`stream.json`: who the stream is, whose it is, and what it no longer holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from outbox.errors import StreamCorrupt, StreamMissing, Unsupported
from stream_store.file import disk
from stream_store.file.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY_NAME = "stream.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of stream.json. Replaced as a whole, never changed in place."""

    format: int
    stream_id: str
    created: str
    outbox_id: str | None = None
    source: str | None = None
    trimmed_through: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    compacted: bool = False

    @classmethod
    def new(cls) -> Identity:
        return cls(FORMAT_VERSION, str(uuid4()), datetime.now(UTC).isoformat())

    @property
    def uuid(self) -> UUID:
        return UUID(self.stream_id)

    def with_lost(self, found: tuple[tuple[int, int], ...]) -> Identity:
        """With the lost ranges that frames record and this does not know yet."""
        return replace(self, lost=tuple(sorted({*self.lost, *found})))


def has_identity(folder: Path) -> bool:
    return (folder / IDENTITY_NAME).exists()


def read_identity(folder: Path) -> Identity:
    """The identity of the stream in a folder; `StreamMissing` when there is none."""
    path = folder / IDENTITY_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if any(file.stat().st_size > SEGMENT_HEADER_BYTES for file in folder.glob(f"*{SEGMENT_SUFFIX}")):
            raise StreamCorrupt(
                f"{folder} has segments and no {IDENTITY_NAME}: put it back from a copy of the stream"
            ) from None
        raise StreamMissing(f"there is no stream in {folder}: a relay makes it when it first starts") from None
    try:
        fields = json.loads(text)
        version = fields["format"]
        if version != FORMAT_VERSION:
            raise Unsupported(
                f"{path} says format {version}, this program reads format {FORMAT_VERSION}: install the outbox-connector "
                "that wrote the stream, or a newer one"
            )
        fields["lost"] = tuple((after, through) for after, through in fields["lost"])
        identity = Identity(**fields)
        UUID(identity.stream_id)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StreamCorrupt(f"{path} cannot be read ({error}): put it back from a copy of the stream") from error
    return identity


def write_identity(folder: Path, identity: Identity) -> None:
    """Replace stream.json, durably."""
    path = folder / IDENTITY_NAME
    with disk.reporting("writing", path):
        fields = asdict(identity)
        if not identity.compacted:
            del fields["compacted"]  # programs of before know no such field
        os.close(disk.replace(path, [json.dumps(fields, indent=2).encode() + b"\n"]))
