"""The committed records of one partition: its bounds, its last record, and any range of it.

Offsets are not dense: control records and aborted transactions take some, and no reader sees them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from outbox.errors import Trimmed
from stream_store.kafka.clients import ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from stream_store.kafka.clients import Clients, Kind

POLL_SECONDS = 0.2
# At most this many records are handed over at once. More are slower: Python's collector walks over all that live.
CHUNK_RECORDS = 1_000
# From so many on they are fetched in large pieces.
BULK_RECORDS = 4_096
# How far back the last record is looked for at first: it, and the marker of its commit.
LAST_RECORDS = 2
STEP = 8
_GONE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
# Positions are not kept in Kafka: that we may not ask for a group's says nothing.
_HARMLESS = frozenset((KafkaError.GROUP_AUTHORIZATION_FAILED,))


class Partition:
    """A partition of one of the stream's topics."""

    def __init__(self, clients: Clients, topic: str, number: int = 0) -> None:
        self._clients = clients
        self.topic = topic
        self.number = number

    def bounds(self) -> tuple[int, int]:
        """The first offset that is kept, and the offset behind the last decided transaction."""
        with self._clients.consumer("probe") as consumer:
            try:
                low, end = consumer.get_watermark_offsets(self._at(0), timeout=ANSWER_SECONDS)
            except KafkaException as failure:
                raise self._clients.fault(failure, "looking where it ends", consumer) from failure
        return low, end

    def offset_at(self, time_ms: int) -> int | None:
        """The first offset with a timestamp at or after this one; None when there is none."""
        with self._clients.consumer("probe") as consumer:
            try:
                (found,) = consumer.offsets_for_times([self._at(time_ms)], timeout=ANSWER_SECONDS)
            except KafkaException as failure:
                raise self._clients.fault(failure, "looking for a time", consumer) from failure
            if found.error is not None:
                raise self._clients.fault(found.error, "looking for a time")
        return found.offset if found.offset >= 0 else None

    def newest_ms(self) -> int:
        """The highest timestamp of the partition, that of a marker or a deleted record included; -1 for none."""
        admin = self._clients.admin()  # kept until it has answered
        newest = {self._at(0): OffsetSpec.max_timestamp()}  # type: ignore[no-untyped-call]
        try:
            (future,) = admin.list_offsets(newest, request_timeout=ANSWER_SECONDS).values()
            return int(future.result(ANSWER_SECONDS).timestamp)
        except KafkaException as failure:
            raise self._clients.fault(failure, "looking for a time") from failure

    def read(self, offset: int, end: int, kind: Kind = "bulk") -> Iterator[list[Message]]:
        """The records from an offset to before another, in chunks as they come; `Trimmed` when they were deleted."""
        if offset >= end:
            return
        with self._clients.consumer(kind) as consumer:
            consumer.assign([self._at(offset)])
            over, answered_at = False, time.monotonic()
            while not over:
                # The first one is waited for; what has come with it is there already.
                first = consumer.poll(POLL_SECONDS)
                if first is None:
                    if time.monotonic() - answered_at > ANSWER_SECONDS:
                        raise self._clients.no_answer("reading")
                    continue
                chunk = [first, *consumer.consume(CHUNK_RECORDS, 0)]
                events = [each for each in chunk if each.error() is None]
                if len(events) < len(chunk):
                    over = self._reached(chunk, end)
                if events and (events[-1].offset() or 0) >= end - 1:
                    over = True
                    events = [each for each in events if (each.offset() or 0) < end]
                if events or over:
                    answered_at = time.monotonic()
                if events:
                    yield events

    def _reached(self, chunk: list[Message], end: int) -> bool:
        """Whether the end was reported in a chunk; what else went wrong is raised."""
        reached = False
        for each in chunk:
            error = each.error()
            if error is None or error.code() in _HARMLESS:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                reached |= (each.offset() or 0) >= end
            elif error.code() in _GONE:
                raise Trimmed(f"{self._clients.address.url}: what was to be read was deleted meanwhile ({error.str()})")
            elif not error.retriable():
                raise self._clients.fault(error, "reading")
        return reached

    def first(self, offset: int, end: int) -> Message | None:
        """The first record at or behind an offset."""
        for chunk in self.read(offset, end, "probe"):
            return chunk[0]
        return None

    def last(self, low: int, end: int) -> Message | None:
        """The last record before `end`: looked for in ever larger steps, since nobody knows how much hides it."""
        step = LAST_RECORDS
        while True:
            start, found = max(low, end - step), None
            for chunk in self.read(start, end, "probe" if step < BULK_RECORDS else "bulk"):
                found = chunk[-1]
            if found is not None or start == low:
                return found
            step *= STEP

    def _at(self, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, self.number, offset)
