"""What a Spark session is started with, and what is said when it cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outbox.errors import UsageError
from spark_sink import session
from spark_sink.session import is_local, open_session, pack, settings


@pytest.mark.parametrize("master", ["local", "local[1]", "local[*]", "local[4,2]"])
def test_local_masters_get_settings_for_one_machine(master):
    assert is_local(master)
    assert settings(master)["spark.databricks.delta.snapshotPartitions"] == "2"
    assert int(settings(master)["spark.sql.shuffle.partitions"]) >= 2


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_clusters_get_only_what_delta_needs(master):
    assert not is_local(master)
    assert set(settings(master)) == {
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.session.timeZone",
    }


def test_missing_pyspark_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match=r"outbox-connector\[spark\]"):
        open_session()


def test_spark_connect_is_refused_with_what_to_do_instead(monkeypatch):
    monkeypatch.setattr(session, "_running", lambda: None)
    with pytest.raises(UsageError, match="does not work through Spark Connect: run it where the driver is"):
        open_session(master="sc://host")


def test_missing_java_is_named_with_its_version(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "_running", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Java 17 or newer"):
        open_session(master="local[1]")


def test_settings_of_spark_defaults_come_before_ours(monkeypatch, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.driver.memory   8g\nspark.master=spark://host:7077\nspark.hadoop.url  jdbc:derby:;a=b;c=d\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._defaults() == {
        "spark.driver.memory": "8g",
        "spark.master": "spark://host:7077",
        "spark.hadoop.url": "jdbc:derby:;a=b;c=d",
    }


def test_executors_can_import_the_packed_packages(tmp_path):
    archive = pack(tmp_path)
    program = f"""
import sys
sys.path.insert(0, {str(archive)!r})
import outbox.batch, spark_sink, stream_store.file.stream
print(*[module.__file__ for module in (outbox, spark_sink, stream_store)], sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(line.startswith(str(archive)) for line in done.stdout.split()), done.stdout
