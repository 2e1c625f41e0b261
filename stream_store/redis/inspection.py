"""Reading a Redis stream as a whole: counts, and what is not as this program wrote it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from outbox.errors import StreamCorrupt
from stream_store.redaction import is_redacted
from stream_store.redis.decoding import decode
from stream_store.redis.reader import chained
from stream_store.redis.stream import RedisStream
from stream_store.stream import Damage, StreamCheck

if TYPE_CHECKING:
    from stream_store.redis.address import Address
    from stream_store.redis.facts import Facts

PAGE_ENTRIES = 1_000


def inspect(address: Address) -> StreamCheck:
    """Read every entry; damage is named by key and event ID."""
    with closing(RedisStream(address)) as stream:
        facts, info = stream.facts(), stream.info()
        keys = address.keys
        damage: list[Damage] = []
        if facts.tail < facts.recorded_tail:
            damage.append(Damage(keys.events, 0, f"the key is gone, it held events through ID {facts.recorded_tail}"))
        events = redacted = 0
        reached = facts.trimmed_through
        start = "-"
        while start:
            entries = stream.entries(start, f"{facts.recorded_tail}-0", PAGE_ENTRIES)
            try:
                batches = list(chained(decode(entries, stream.url))) if entries else []
            except StreamCorrupt as error:
                damage.append(Damage(keys.events, reached, str(error)))
                break
            for batch in batches:
                if not _follows(facts, reached, batch.prev_id, first=not events):
                    what = f"events behind ID {reached} through ID {batch.prev_id} are missing"
                    damage.append(Damage(keys.events, batch.first_id, what))
                events += len(batch)
                redacted += pc.sum(is_redacted(batch.rows)).as_py() or 0
                reached = batch.last_id
            start = f"({entries[-1][0].decode()}" if len(entries) == PAGE_ENTRIES else ""
        if not damage and reached < facts.tail and not facts.is_lost(reached, facts.tail):
            damage.append(
                Damage(keys.events, reached, f"events behind ID {reached} through ID {facts.tail} are missing")
            )
        lost_ids = sum(max(0, through - max(after, facts.trimmed_through)) for after, through in facts.lost)
        return StreamCheck(
            url=stream.url,
            stream_id=facts.stream_id,
            tail=facts.tail,
            trimmed_through=facts.trimmed_through,
            segments=info.segments,
            frames=info.segments,
            events=events,
            dead_ids=max(0, facts.tail - facts.trimmed_through - events - lost_ids),
            lost_ids=lost_ids,
            size_bytes=info.size_bytes,
            unacknowledged_bytes=0,
            damage=tuple(damage),
            redacted=redacted,
            compacted=facts.compacted,
        )


def _follows(facts: Facts, reached: int, prev_id: int, *, first: bool) -> bool:
    """The first event behind a trim may follow one that was trimmed."""
    return prev_id == reached or (first and prev_id <= reached) or facts.is_lost(reached, prev_id)
