"""A snapshot and the live stream behind it, read as one.

A snapshot is a compacted stream (compaction.py): the latest event of each subject through an ID,
which is its tail. Whoever is new reads it first and goes on in the live stream behind that ID; by
the chain nothing is missing between the two.

    from stream_store import open_stream
    from stream_store.snapshot import read_from_snapshot

    with open_stream("file:///backup/shop-snapshot") as snapshot, open_stream("file:///streams/shop") as live:
        for batch in read_from_snapshot(snapshot, live):
            ...
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from outbox.errors import Trimmed, UsageError, WrongPartner
from stream_store.readers import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from outbox.batch import EventBatch
    from stream_store.stream import Stream, StreamInfo

# Known to a snapshot while it is being made, with the ID through which it is to go.
COMPACTION = "outbox stream compact"


def read_from_snapshot(
    snapshot: Stream, live: Stream, after: int | None = None, through: int | None = None
) -> Iterator[EventBatch]:
    """The snapshot's events, then those of the live stream, chained, with after < id <= through.

    From the snapshot's beginning when `after` is None; else whoever has everything through `after`
    goes on, wherever that is.
    """
    both = SnapshotAndLive(snapshot, live)
    return both.read(snapshot.info().trimmed_through if after is None else after, through)


class SnapshotAndLive:
    """Two streams as one, for reading. It begins where the snapshot does."""

    def __init__(self, snapshot: Stream, live: Stream) -> None:
        made, held = snapshot.info(), live.info()
        if not made.compacted:
            raise UsageError(f"{snapshot.url} is no snapshot: `outbox stream compact` makes one")
        if made.outbox_id != held.outbox_id:
            raise WrongPartner(
                f"the snapshot {snapshot.url} is of outbox {made.outbox_id}, {live.url} of outbox {held.outbox_id}"
            )
        unfinished = unfinished_through(snapshot)
        if unfinished is not None:
            raise UsageError(
                f"{snapshot.url} is not finished: it goes through ID {made.tail} and is to go through {unfinished}; run "
                "`outbox stream compact` again, it goes on where it was"
            )
        if held.trimmed_through > made.tail:
            raise Trimmed(
                f"{live.url} was trimmed through ID {held.trimmed_through}, the snapshot {snapshot.url} ends at {made.tail}: "
                "what lies between is gone; take a newer snapshot"
            )
        self.snapshot = snapshot
        self.live = live
        self._joint = made.tail

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        """See `Stream.read`."""
        # Looked up now, not when the snapshot has been read: the read ends at the tail of its beginning.
        behind = self.live.read(max(after, self._joint), through)
        if after >= self._joint:
            return behind
        return itertools.chain(
            self.snapshot.read(after, self._joint if through is None else min(through, self._joint)), behind
        )

    def tail(self) -> int:
        return max(self._joint, self.live.tail())

    def find(self, time: datetime) -> int:
        found = self.snapshot.find(time)
        return found if found <= self._joint else self.live.find(time)

    def info(self) -> StreamInfo:
        return replace(self.live.info(), trimmed_through=self.snapshot.info().trimmed_through)

    def close(self) -> None:
        self.snapshot.close()
        self.live.close()


def unfinished_through(snapshot: Stream) -> int | None:
    """The ID through which a snapshot is still being made; None when it is finished."""
    return next(
        (each.through for each in snapshot.readers() if (each.kind, each.name) == (GROUP, COMPACTION)),
        None,
    )
