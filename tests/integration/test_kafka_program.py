"""The program on a stream in Kafka, as a user runs it: relay, tap, status, check, verify."""

from __future__ import annotations

import json

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from stream_store import open_stream
from stream_store.readers import TABLE
from tests.program import report, succeed
from tests.servers import kafka


def test_outbox_goes_into_a_topic_and_out_of_it_again(sqlite_url, kafka_url, kafka_servers):
    database, stream = ("--database", sqlite_url), ("--stream", kafka_url)
    succeed("init", *database)
    for number in range(1, 4):
        succeed("emit", *database, "--type", "order.paid", "--subject", f"o-{number}", "--data", f'{{"n": {number}}}')
    findings = {each["name"]: each["level"] for each in report("check", *database, *stream)["findings"]}
    assert findings["stream"] == "ok", "the first relay makes it"
    succeed("relay", *database, *stream, "--once")
    lines = [json.loads(line) for line in succeed("tap", *stream, "--from", "2").splitlines()]
    assert [(line["id"], line["previd"], line["subject"], line["data"]) for line in lines] == [
        ("2", "1", "o-2", {"n": 2}),
        ("3", "2", "o-3", {"n": 3}),
    ]
    assert report("verify", *database, *stream)["ok"]
    assert report("status", *database, *stream)["stream_tail"] == 3
    assert report("stream", "info", *stream)["tail"] == 3
    assert report("stream", "check", *stream)["events"] == 3

    topic = kafka_url.rpartition("/")[2]
    administrator = kafka.admin(kafka_servers)
    shorter = ConfigEntry("retention.ms", "604800000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[shorter])
    for future in administrator.incremental_alter_configs([resource]).values():
        future.result(10)
    found = {each["name"]: each for each in report("check", *database, *stream)["findings"]}
    assert found["kafka-replicas"]["level"] == "warning"
    assert "7 days" in found["kafka-retention"]["message"]
    assert "--add-config retention.ms=-1" in found["kafka-retention"]["fix"]


def test_rows_are_deleted_once_a_table_has_read_them_from_kafka(sqlite_url, kafka_url):
    database, stream = ("--database", sqlite_url), ("--stream", kafka_url)
    succeed("init", *database)
    succeed("emit", *database, "--type", "order.paid")
    open_stream(kafka_url, "write").close()
    with open_stream(kafka_url) as reader:
        reader.report(TABLE, "/lake/orders", 1)
    succeed("relay", *database, *stream, "--once", "--delete-after", "materialized")
    assert report("status", *database, *stream)["deleted_through"] == 1
