"""The lock beside a local table: whose it is, and who may take it."""

from __future__ import annotations

import stat
import threading

import pytest

from spark_sink.lock import commits_collide, table_lock


def test_one_at_a_time(tmp_path):
    inside, order = threading.Event(), []

    def second() -> None:
        inside.wait()
        with table_lock(tmp_path / "t"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with table_lock(tmp_path / "t"):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o777])
def test_whoever_may_write_beside_the_table_may_take_its_lock(tmp_path, mode):
    lake = tmp_path / "lake"
    lake.mkdir()
    lake.chmod(mode)
    with table_lock(lake / "t"):
        found = (lake / ".t.outbox-lock").stat().st_mode
    assert stat.S_IMODE(found) == mode & 0o666


DYNAMO = "io.delta.storage.S3DynamoDBLogStore"


@pytest.mark.parametrize(
    ("location", "settings", "collide"),
    [
        ("s3a://lake/orders", {}, True),
        ("s3://lake/orders", {}, True),
        ("s3://lake/orders", {"spark.delta.logStore.s3a.impl": DYNAMO}, True),
        ("s3a://lake/orders", {"spark.delta.logStore.s3a.impl": DYNAMO}, False),
        ("s3a://lake/orders", {"spark.delta.logStore.class": DYNAMO}, False),
        ("s3a://lake/orders", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}, True),
        ("abfss://lake@account/orders", {}, False),
        ("gs://lake/orders", {}, False),
        ("hdfs://host/orders", {}, False),
        ("/lake/s3/orders", {}, False),
    ],
)
def test_on_s3_commits_collide_unless_delta_was_given_a_log_store(location, settings, collide):
    assert commits_collide(location, settings.get) is collide
