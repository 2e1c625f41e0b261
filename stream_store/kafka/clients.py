"""The clients of one stream: made with the URL's options, consumers kept for the next read."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from outbox.errors import OutboxError, UsageError
from stream_store.kafka.faults import UNKNOWN_USER, error_of, translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stream_store.kafka.address import Address

# The client writes to stderr unless it is given somebody to tell. Whoever wants to read it adds a handler.
LOG = logging.getLogger("stream_store.kafka")
LOG.addHandler(logging.NullHandler())

# How long a broker may take to answer. A new leader is elected within seconds.
ANSWER_SECONDS = 15.0
# What the client complained of longer ago has nothing to do with a failure now.
COMPLAINT_SECONDS = 60.0

Kind = Literal["bulk", "probe"]

_COMMON: dict[str, Any] = {
    "client.id": "outbox-connector",
    "socket.nagle.disable": True,
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER: dict[str, Any] = {
    # Asked for by the client, and used for nothing: partitions are assigned, positions are IDs.
    "group.id": "outbox-connector",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": True,
    # A fetch that waits at the end of the partition holds up the next read by as much.
    "fetch.wait.max.ms": 3,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 2,
}
_KIND: dict[Kind, dict[str, Any]] = {
    "bulk": {"fetch.message.max.bytes": 8 * 2**20, "queued.max.messages.kbytes": 64 * 2**10},
    "probe": {"fetch.message.max.bytes": 64 * 2**10, "queued.min.messages": 1},
}


class Clients:
    """May be used from several threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: dict[Kind, list[Consumer]] = {"bulk": [], "probe": []}
        self._lock = threading.Lock()
        self._closed = False
        self._complaint: tuple[float, KafkaError] | None = None

    @contextmanager
    def consumer(self, kind: Kind) -> Iterator[Consumer]:
        """A consumer for this block alone. It is kept, unless the block fails."""
        with self._lock:
            consumer = self._idle[kind].pop() if self._idle[kind] else None
        if consumer is None:
            consumer = self._make(Consumer, {**_COMMON, **_CONSUMER, **_KIND[kind]})
        failed = True
        try:
            yield consumer
            failed = False
        except GeneratorExit:
            failed = False  # who reads has had enough
            raise
        finally:
            self._put_back(kind, consumer, failed)

    def _put_back(self, kind: Kind, consumer: Consumer, failed: bool) -> None:
        if not failed:
            consumer.unassign()
            with self._lock:
                if not self._closed:
                    self._idle[kind].append(consumer)
                    return
        consumer.close()

    def producer(self, **options: Any) -> Producer:
        producer: Producer = self._make(Producer, {**_COMMON, **options})
        return producer

    def admin(self) -> AdminClient:
        admin: AdminClient = self._make(AdminClient, dict(_COMMON))
        return admin

    def _make(self, maker: Any, options: dict[str, Any]) -> Any:
        configuration = {
            **options,
            **self.address.options,
            "bootstrap.servers": self.address.servers,
            "error_cb": self._note,
        }
        try:
            return maker(configuration, logger=LOG)
        except (KafkaException, ValueError, TypeError) as error:
            said = error_of(error).str() if isinstance(error, KafkaException) else str(error)
            raise UsageError(
                f"the Kafka client does not take the options of {self.address.url}: {self.address.without_secrets(said)}"
            ) from None

    def fault(self, failure: KafkaException | KafkaError, doing: str, client: Any = None) -> OutboxError:
        """The error of ours for one that a client has raised or handed over.

        A client says by itself why it cannot connect, but only to those who poll it.
        """
        if client is not None:
            with suppress(KafkaException, RuntimeError):
                client.poll(0)
        error = error_of(failure) if isinstance(failure, KafkaException) else failure
        return translate(error, doing, self.address, self._complaint_now())

    def is_refused(self) -> bool:
        """Whether the broker has lately said that it does not let us in: waiting on does not help then."""
        complaint = self._complaint_now()
        return complaint is not None and complaint.code() in UNKNOWN_USER

    def no_answer(self, doing: str) -> OutboxError:
        return self.fault(KafkaError(KafkaError._TIMED_OUT, f"no answer within {ANSWER_SECONDS:g} s"), doing)

    def _note(self, error: KafkaError) -> None:
        """What the client tells by itself. That it may not come in says more than that nobody answers then."""
        known = self._complaint_now()
        if known is None or known.code() not in UNKNOWN_USER or error.code() in UNKNOWN_USER:
            self._complaint = (time.monotonic(), error)

    def _complaint_now(self) -> KafkaError | None:
        if self._complaint is None or time.monotonic() - self._complaint[0] > COMPLAINT_SECONDS:
            return None
        return self._complaint[1]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            consumers = [consumer for idle in self._idle.values() for consumer in idle]
            self._idle = {"bulk": [], "probe": []}
        for consumer in consumers:
            with suppress(KafkaException, RuntimeError):
                consumer.close()
