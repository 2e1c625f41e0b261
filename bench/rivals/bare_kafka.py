"""The Kafka client by itself: the same records in transactions of the same size, and a consumer that reads them.

What a program that only knows Kafka would do: no chain, no tail, no state beside the records, nothing made of what
is read. The records are made before the clock starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from stream_store.kafka.records import Record

SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
CHUNK_RECORDS = 50_000


def create(servers: str, topic: str) -> None:
    administrator = AdminClient({"bootstrap.servers": servers})
    for future in administrator.create_topics([NewTopic(topic, 1, 1, config=SETTINGS)]).values():
        future.result(30)


def append_seconds(servers: str, topic: str, batches: list[list[Record]]) -> list[float]:
    """How long each transaction took."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": topic,
            "queue.buffering.max.messages": 1_000_000,
            "socket.nagle.disable": True,
        }
    )
    producer.init_transactions(30)
    spent = []
    for batch in batches:
        started = time.perf_counter()
        producer.begin_transaction()
        for value, key, timestamp_ms, headers in batch:
            producer.produce(topic, value, key, 0, timestamp=timestamp_ms, headers=headers)
        producer.commit_transaction(30)
        spent.append(time.perf_counter() - started)
    return spent


def read_seconds(servers: str, topic: str, records: int) -> float:
    """Every record's key, value and headers, and nothing made of them."""
    options: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "bare",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 8 * 2**20,
    }
    consumer = Consumer(options)
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < records:
        first = consumer.poll(1.0)
        if first is None:
            continue
        for message in [first, *consumer.consume(CHUNK_RECORDS, 0)]:
            assert message.error() is None, message.error()
            message.key(), message.value(), message.headers()
            found += 1
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds
