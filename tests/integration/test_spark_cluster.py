"""The sink on a real standalone cluster: the driver in one process, executors in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.servers.spark_cluster import SETTINGS, SparkCluster

pytestmark = pytest.mark.compat

ROOT = Path(__file__).parents[2]

# A user's job: executors open the stream themselves, and say who and where they are.
READ_ON_EXECUTORS = """
import json, os, sys
from spark_sink.session import open_session

master, settings, url, table = sys.argv[1:]
spark = open_session(master=master or None, conf=json.loads(settings), app="a job")

def read(span):
    import stream_store
    with stream_store.open_stream(url) as stream:
        for part in stream.read(*span):
            for event_id in part.ids.to_pylist():
                yield event_id, os.getcwd(), stream_store.__file__

spans = spark.sparkContext.parallelize([(0, 20), (20, 40)], 2)
rows = spans.flatMap(read).toDF("id long, folder string, code string")
rows.write.format("delta").save(table)
print(json.dumps({"master": spark.sparkContext.master}))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    server = SparkCluster()
    try:
        yield server.start()
    finally:
        server.destroy()


def run_job(cluster: SparkCluster, command: list[str], job: Path, master: str, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [*command, str(job), master, json.dumps(SETTINGS), *arguments],
        cwd=job.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, cluster.logs() + done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_read_by_executors(cluster: SparkCluster, table: str) -> None:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(1, 41))
    folders = {row["folder"] for row in rows}
    assert len(folders) == 2
    assert all(folder.startswith(str(cluster.folder / "work")) for folder in folders), folders
    # Not whatever version the worker's machine may have installed: the driver's own code.
    assert all("outbox_packages.zip" in row["code"] for row in rows), rows[0]


def test_executors_read_the_stream_with_the_drivers_code(cluster, make_stream, tmp_path):
    url = make_stream(*[{"data": {"n": number}} for number in range(40)], frame_rows=10)
    job, table = tmp_path / "job.py", str(tmp_path / "table")
    job.write_text(READ_ON_EXECUTORS)
    answer = run_job(cluster, [sys.executable], job, cluster.master, url, table)
    assert answer["master"] == cluster.master
    assert_read_by_executors(cluster, table)


def test_spark_submit_gives_the_master_and_the_jars(cluster, make_stream, tmp_path):
    url = make_stream(*[{"data": {"n": number}} for number in range(40)], frame_rows=10)
    job, table = tmp_path / "job.py", str(tmp_path / "table")
    job.write_text(READ_ON_EXECUTORS)
    listed = subprocess.run(
        [sys.executable, "-m", "spark_sink.jars", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    submit = [str(cluster.home / "bin" / "spark-submit"), "--master", cluster.master, "--jars", listed.stdout.strip()]
    answer = run_job(cluster, submit, job, "", url, table)
    assert answer["master"] == cluster.master
    assert_read_by_executors(cluster, table)
