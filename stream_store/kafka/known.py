"""Readers that have reported: one compacted record each, in a partition of the companion that anybody may write."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from outbox.errors import StreamUnavailable
from stream_store.kafka.clients import ANSWER_SECONDS
from stream_store.kafka.topics import READERS
from stream_store.readers import Reader

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from stream_store.kafka.clients import Clients
    from stream_store.kafka.partition import Partition
    from stream_store.readers import Kind


class KnownReaders:
    """How far each table and group has come. Only what was added since the last look is read."""

    def __init__(self, clients: Clients, reports: Partition) -> None:
        self._clients = clients
        self._reports = reports
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._read_to = 0
        self._known: dict[bytes, Reader] = {}

    def report(self, kind: Kind, name: str, through: int) -> None:
        said = {"kind": kind, "name": name, "through": through, "reported_at": datetime.now(UTC).isoformat()}
        self._write(kind, name, json.dumps(said).encode())

    def forget(self, kind: Kind, name: str) -> None:
        self._write(kind, name, None)

    def all(self) -> list[Reader]:
        with self._lock:
            low, end = self._reports.bounds()
            if end < self._read_to:  # made anew
                self._read_to, self._known = 0, {}
            for messages in self._reports.read(max(low, self._read_to), end, "probe"):
                for message in messages:
                    self._take(message)
            self._read_to = end
            return list(self._known.values())

    def _take(self, message: Message) -> None:
        key, value = message.key(), message.value()
        if not isinstance(key, bytes):
            return
        if value is None:
            self._known.pop(key, None)
            return
        try:
            said = json.loads(value)
            self._known[key] = Reader(
                said["kind"], said["name"], int(said["through"]), datetime.fromisoformat(said["reported_at"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StreamUnavailable(
                f"{self._clients.address.companion} holds a report at offset {message.offset()} that cannot be read ({error}): its "
                "reader writes it again when it gets on; forget it if that table or group is no more"
            ) from error

    def _write(self, kind: Kind, name: str, value: bytes | None) -> None:
        failures: list[KafkaError] = []
        with self._lock:
            if self._producer is None:
                self._producer = self._clients.producer(
                    **{"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": int(ANSWER_SECONDS * 1000)}
                )
            try:
                self._producer.produce(
                    self._clients.address.companion,
                    value,
                    f"{kind}:{name}".encode(),
                    READERS,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                left = self._producer.flush(ANSWER_SECONDS + 1)
            except KafkaException as failure:
                raise self._clients.fault(failure, "reporting") from failure
        if failures:
            raise self._clients.fault(failures[0], "reporting")
        if left:
            raise self._clients.no_answer("reporting")

    def close(self) -> None:
        with self._lock:
            self._producer = None
