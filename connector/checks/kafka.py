"""The topics of a stream on Kafka: what their settings mean for the guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.checks.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stream_store import StreamUrl


def look(url: StreamUrl) -> Iterator[Finding]:
    """Nothing when the topics are not there yet: the first relay makes them, with settings that fit."""
    from stream_store.kafka.address import Address
    from stream_store.kafka.clients import Clients
    from stream_store.kafka.topics import describe, exist, judge

    clients = Clients(Address.parse(url))
    try:
        if all(exist(clients)):
            for remark in judge(*describe(clients)):
                yield Finding(remark.level, remark.name, remark.message, remark.fix)
    finally:
        clients.close()
