"""One transaction per batch: the events, and with them what the companion says of the stream.

Compare-and-set without asking: from `init_transactions` on, every other writer of the topic is fenced out, and
whoever opens it after us fences us out. So the tail that was found behind it stays the tail, but for what we
append ourselves.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from outbox.errors import OutboxError, StreamUnavailable, TailLost
from stream_store.kafka.clients import ANSWER_SECONDS
from stream_store.kafka.faults import error_of
from stream_store.kafka.topics import STATE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Producer

    from stream_store.kafka.clients import Clients
    from stream_store.kafka.partition import Partition
    from stream_store.kafka.records import Record
    from stream_store.kafka.state import State

STATE_KEY = b"stream"
ABORT_SECONDS = 3.0
VISIBLE_POLL_SECONDS = 0.001
# What waits in the client's memory; more is not taken before some of it was sent.
QUEUE_BYTES = 64 * 2**20
QUEUE_RECORDS = 500_000


class Writer:
    """The only one that may write to the topic, until another is made."""

    def __init__(self, clients: Clients, events: Partition, message_bytes_max: int) -> None:
        self._clients = clients
        self._events = events
        self._failure: OutboxError | None = None
        self._producer: Producer | None = clients.producer(
            **{
                "transactional.id": clients.address.transactional_id,
                "message.max.bytes": message_bytes_max,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "queue.buffering.max.kbytes": QUEUE_BYTES // 1024,
            }
        )
        try:
            # Connected first: a client that is not looks for its coordinator again after half a second only. Twice,
            # because the first answer makes it connect to the brokers under their own names.
            for topic in (clients.address.topic, clients.address.companion):
                self._producer.list_topics(topic, ANSWER_SECONDS)
            # Ends what a predecessor has left open: committed or aborted, it is decided from here on.
            self._producer.init_transactions(ANSWER_SECONDS)
        except KafkaException as failure:
            fault = clients.fault(failure, "fencing out other writers", self._producer)
            self.close()
            raise fault from failure

    def commit(self, state: State, records: Iterable[Record] = ()) -> None:
        """Write the records and the state, whole or not at all; durable when it returns.

        When it fails, whether they are written is unknown until the topic is opened again.
        """
        producer = self._usable()
        try:
            producer.begin_transaction()
            produce, topic = producer.produce, self._events.topic
            for value, key, timestamp_ms, headers in records:
                try:
                    produce(topic, value, key, 0, timestamp=timestamp_ms, headers=headers)
                except BufferError:
                    self._produce(producer, topic, value, key, 0, timestamp=timestamp_ms, headers=headers)
            self._produce(producer, self._clients.address.companion, state.encode(), STATE_KEY, STATE)
            producer.commit_transaction(ANSWER_SECONDS)
        except KafkaException as failure:
            fault = self._clients.fault(failure, "appending", producer)
            if isinstance(fault, OutboxError) and not isinstance(fault, StreamUnavailable):
                self._failure = fault
            else:
                self._failure = StreamUnavailable(
                    f"{fault}; it is unknown whether the batch is in the stream: open it again"
                )
            if error_of(failure).txn_requires_abort():
                self._abort(producer)
            raise fault from failure
        except BaseException as failure:
            self._failure = StreamUnavailable(f"{self._clients.address.url}: an append was interrupted: open it again")
            self._abort(producer)
            raise failure from None

    def wait_until_visible(self, before: int, end: int) -> int:
        """Wait until readers see the topic through the offset `end`, and answer where it ends.

        The commit is decided before its marker is in the partition, and readers see it only then. What an append
        has acknowledged is there for every reader, as on any other backend.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            while True:
                _, reached = self._events.bounds()
                if reached >= end:
                    return reached
                if reached < before:
                    raise TailLost(
                        f"topic {self._events.topic} ended at offset {before}, and now at {reached}: it was made anew or truncated "
                        "under this writer, and what it held is gone. Run `outbox verify`, then `outbox rebase`"
                    )
                if time.monotonic() > deadline:
                    raise self._clients.no_answer("waiting for its commit to become visible")
                time.sleep(VISIBLE_POLL_SECONDS)
        except OutboxError as error:
            # The batch is in, and nobody here knows where the topic ends now.
            self._failure = error
            raise

    def _produce(self, producer: Producer, *record: Any, **more: Any) -> None:
        """Hand over a record, when there is room for it: a large one may need that of many."""
        while True:
            try:
                producer.produce(*record, **more)
            except BufferError:
                self._make_room(producer)
            else:
                return

    def _make_room(self, producer: Producer) -> None:
        """Wait until something was sent."""
        deadline = time.monotonic() + ANSWER_SECONDS
        before = len(producer)
        while len(producer) >= before:
            if time.monotonic() > deadline:
                raise self._clients.no_answer("appending")
            producer.poll(0.01)

    def _usable(self) -> Producer:
        if self._producer is None:
            raise StreamUnavailable(f"{self._clients.address.url} is closed")
        if self._failure is not None:
            raise self._failure
        return self._producer

    @staticmethod
    def _abort(producer: Producer) -> None:
        # For readers' sake only: whoever opens the topic next aborts it anyway, and so does the broker in time.
        with suppress(KafkaException):
            producer.abort_transaction(ABORT_SECONDS)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # Without flushing: what is under way is ended by whoever comes next, and nobody may be there to answer.
            with suppress(KafkaException, RuntimeError):
                producer.purge()
