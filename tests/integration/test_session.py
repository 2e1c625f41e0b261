"""A Spark session from local jars: Delta works in it, and it is found again."""

from __future__ import annotations

import threading

import pytest
from deltalake import DeltaTable

from outbox.errors import UsageError
from spark_sink.session import open_session

pytestmark = pytest.mark.compat


def test_session_writes_delta_tables_that_others_read(spark, tmp_path):
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]


def test_tables_go_by_catalog_name(spark):
    spark.sql("CREATE TABLE by_name (id BIGINT) USING delta")
    spark.range(3).write.format("delta").mode("append").saveAsTable("by_name")
    assert spark.table("by_name").count() == 3
    assert spark.sql("DESCRIBE HISTORY by_name").count() == 2


def test_times_are_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_running_session_is_used_again_from_any_thread(spark):
    found = [open_session()]
    thread = threading.Thread(target=lambda: found.append(open_session()))
    thread.start()
    thread.join()
    assert [session.sparkContext for session in found] == [spark.sparkContext] * 2


def test_what_a_running_session_can_still_change_is_changed(spark):
    # Which session is the active one depends on what ran before: tables have sessions of their own.
    session = open_session(conf={"spark.sql.shuffle.partitions": "3"})
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    open_session(conf={"spark.sql.shuffle.partitions": "2"})


@pytest.mark.parametrize("wanted", [{"master": "yarn"}, {"conf": {"spark.driver.memory": "64g"}}])
def test_what_a_running_session_cannot_change_is_an_error(spark, wanted):
    with pytest.raises(UsageError, match="cannot be changed any more"):
        open_session(**wanted)
