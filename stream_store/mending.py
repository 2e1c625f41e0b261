"""Filling the holes of a damaged stream from a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.errors import OutboxError, UsageError, WrongPartner
from stream_store.copying import lost_from
from stream_store.url import StreamUrl

if TYPE_CHECKING:
    from pathlib import Path

    from stream_store.file.repair import Fetch, Mended, Piece
    from stream_store.stream import Stream


def repair(url: str, fetch: Fetch, *, dry_run: bool = False) -> list[Mended]:
    """Mend the stream at a URL; what became of each hole, or would."""
    from stream_store.file import repair as file_repair

    return file_repair.repair(folder_of(url), fetch, dry_run=dry_run)


def folder_of(url: str) -> Path:
    parsed = StreamUrl.parse(url)
    if parsed.scheme != "file":
        raise UsageError(
            f"only file:// streams are mended in place, and {url} is none: copy a whole one in its stead with "
            "`outbox stream copy`"
        )
    return parsed.folder


def from_copy(copy: Stream, outbox_id: str | None) -> Fetch:
    """Take the events from a copy of the stream."""
    from stream_store.file.repair import CannotMend

    info = copy.info()
    if None not in (outbox_id, info.outbox_id) and outbox_id != info.outbox_id:
        raise WrongPartner(
            f"{copy.url} is of outbox {info.outbox_id}, not of {outbox_id}: it is no copy of this stream"
        )
    if info.compacted:
        raise UsageError(f"{copy.url} is a compacted stream: it does not have every event")
    lost = lost_from(info)

    def fetch(after: int, through: int) -> list[Piece]:
        pieces: list[Piece] = []
        at = after
        try:
            for batch in copy.read(after, through):
                while batch.prev_id != at and at in lost:
                    pieces.append((at, lost[at]))
                    at = lost[at]
                pieces.append(batch)
                at = batch.last_id
        except OutboxError as error:
            raise CannotMend(f"{copy.url} does not have the IDs {after + 1} to {through}: {error}") from error
        while at in lost and lost[at] <= through:
            pieces.append((at, lost[at]))
            at = lost[at]
        return pieces

    return fetch
