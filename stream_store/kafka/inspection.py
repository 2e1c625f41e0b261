"""Reading every record of a topic: `outbox stream check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from outbox.errors import StreamCorrupt
from stream_store.kafka.stream import KafkaStream
from stream_store.redaction import is_redacted
from stream_store.stream import Damage, StreamCheck

if TYPE_CHECKING:
    from stream_store.kafka.address import Address


def inspect(address: Address) -> StreamCheck:
    """What the topic holds. The client checks each batch's checksum; the chain is checked here.

    Damage ends the read: what lies behind a broken chain could not be told from what belongs there.
    """
    events = size_bytes = redacted = 0
    damage: list[Damage] = []
    with KafkaStream(address) as stream:
        info = stream.info()
        reached = info.trimmed_through
        try:
            for batch in stream.read(info.trimmed_through, info.tail):
                events += len(batch)
                size_bytes += batch.rows.nbytes
                redacted += int(pc.sum(is_redacted(batch.rows)).as_py())
                reached = batch.last_id
        except StreamCorrupt as error:
            damage.append(Damage(address.topic, 0, str(error)))
        promised = stream.promised_tail()
    if promised > info.tail:
        what = (
            f"the companion was written with ID {promised}, and the events end at {info.tail}: the topic lost its end"
        )
        damage.append(Damage(address.topic, 0, what))
    lost_ids = sum(
        through - max(after, info.trimmed_through) for after, through in info.lost if through > info.trimmed_through
    )
    dead_ids = info.tail - info.trimmed_through - events - lost_ids if not damage else 0
    return StreamCheck(
        url=address.url,
        stream_id=info.stream_id,
        tail=reached if damage else info.tail,
        trimmed_through=info.trimmed_through,
        segments=1,
        frames=events,
        events=events,
        dead_ids=dead_ids,
        lost_ids=lost_ids,
        size_bytes=size_bytes,
        unacknowledged_bytes=0,
        redacted=redacted,
        compacted=info.compacted,
        damage=tuple(damage),
    )
