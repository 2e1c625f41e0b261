"""A writer whose client has no room, without a broker."""

from __future__ import annotations

from stream_store import StreamUrl
from stream_store.kafka.address import Address
from stream_store.kafka.clients import Clients
from stream_store.kafka.partition import Partition
from stream_store.kafka.state import State
from stream_store.kafka.writer import Writer


class Full:
    """A client that has room for a large record only when several small ones were sent."""

    def __init__(self) -> None:
        self.waiting, self.taken = 5, []

    def produce(self, topic, value, *_, **__):
        if self.waiting > 2:
            raise BufferError("Local: Queue full")
        self.waiting += 1
        self.taken.append((topic, value))

    def poll(self, _):
        self.waiting -= 1

    def __len__(self):
        return self.waiting

    def list_topics(self, *_): ...

    init_transactions = begin_transaction = commit_transaction = purge = lambda *_: None


def test_record_is_handed_over_once_there_is_room_for_it(monkeypatch):
    full = Full()
    clients = Clients(Address.parse(StreamUrl.parse("kafka://broker/t"), {}))
    monkeypatch.setattr(clients, "producer", lambda **_: full)
    writer = Writer(clients, Partition(clients, "t"), 1_000_000)
    writer.commit(State("s"), [(b"large", None, 0, [])])
    assert [topic for topic, _ in full.taken] == ["t", "t.outbox"]
