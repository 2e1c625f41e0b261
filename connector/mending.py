"""Filling the holes of a damaged stream with rows that the out table still has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.batch import EventBatch
from outbox.errors import WrongPartner
from stream_store.file.repair import CannotMend

if TYPE_CHECKING:
    from connector.source import Source
    from stream_store.file.repair import Fetch, Piece

READ_ROWS = 50_000


def from_out_table(source: Source, outbox_id: str | None) -> Fetch:
    """Take the events from the out table.

    Every ID of a hole lies at or below the stream's tail, so it is settled: a row that is not there
    was rolled back, unless the relay has deleted it. So only a hole above `deleted_through` is filled.
    """
    info = source.info()
    if outbox_id not in (None, info.outbox_id):
        raise WrongPartner(f"the stream belongs to outbox {outbox_id}, this out table is outbox {info.outbox_id}")
    deleted_through = source.standing().deleted_through

    def fetch(after: int, through: int) -> list[Piece]:
        if after < deleted_through:
            raise CannotMend(
                f"the rows {after + 1} to {min(through, deleted_through)} were deleted from the out table, which has every row "
                f"only above {deleted_through}: name a copy of the stream by --from"
            )
        pieces: list[Piece] = []
        at, before = after, -1
        while before < at < through:
            before = at
            for rows in source.read(at, READ_ROWS, through=through):
                batch = EventBatch(at, rows.events)
                pieces.append(batch)
                at = batch.last_id
        return pieces

    return fetch
