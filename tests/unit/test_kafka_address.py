"""The URL of a stream on Kafka, and what is never printed of it."""

from __future__ import annotations

import pytest

from outbox.errors import UsageError
from stream_store import StreamUrl
from stream_store.kafka.address import Address


def parse(url: str, **environ: str) -> Address:
    return Address.parse(StreamUrl.parse(url), environ)


def test_brokers_topic_and_client_options_are_told_apart():
    address = parse("kafka://one:9093,two/shop.orders?compression.type=zstd&replication_factor=2&acks=all")
    assert (address.servers, address.topic) == ("one:9093,two:9092", "shop.orders")
    assert (address.options, address.replication_factor) == ({"compression.type": "zstd"}, 2)
    assert address.url == "kafka://one:9093,two:9092/shop.orders"
    assert (address.companion, address.transactional_id) == ("shop.orders.outbox", "outbox.shop.orders")


def test_user_and_password_are_encrypted_unless_somebody_says_otherwise():
    address = parse("kafka://relay:s%40:cret@broker/t")
    assert address.servers == "broker:9092"
    assert address.options == {
        "sasl.username": "relay",
        "sasl.password": "s@:cret",
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_SSL",
    }
    assert "cret" not in address.url
    plain = parse("kafka://relay:x@broker/t?security.protocol=SASL_PLAINTEXT")
    assert plain.options["security.protocol"] == "SASL_PLAINTEXT"


def test_options_come_from_the_environment_and_the_url_comes_first():
    address = parse(
        "kafka://broker/t?sasl.mechanism=SCRAM-SHA-256",
        OUTBOX_KAFKA_SASL_PASSWORD="secret",
        OUTBOX_KAFKA_SASL_MECHANISM="PLAIN",
        OUTBOX_STREAM="kafka://other/t",
    )
    assert address.options == {"sasl.password": "secret", "sasl.mechanism": "SCRAM-SHA-256"}
    assert address.without_secrets("refused: secret") == "refused: ***"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://broker", "kafka://host:port/topic"),
        ("kafka://broker/", "kafka://host:port/topic"),
        ("kafka:///topic", "kafka://host:port/topic"),
        ("kafka://broker/a topic", "kafka://host:port/topic"),
        ("kafka://broker/t?acks=write", "acks=all"),
        ("kafka://broker/t?segment_bytes=3", "segment_bytes"),
        ("kafka://broker/t?isolation.level=read_uncommitted", "isolation.level"),
        ("kafka://broker/t?replication_factor=many", "replication_factor"),
    ],
)
def test_what_cannot_be_meant_is_refused(url, said):
    with pytest.raises(UsageError, match=said):
        parse(url)
