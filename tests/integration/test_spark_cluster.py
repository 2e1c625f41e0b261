"""The sink on a real standalone cluster: the driver in one process, executors in others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.program import command, environment
from tests.servers.spark_cluster import SETTINGS, SparkCluster

pytestmark = pytest.mark.compat

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
events = spark.read.format("outbox").option("stream", url).load()
print(json.dumps({"master": spark.sparkContext.master, "events": events.count()}))
"""

# The program inside a job, for spark-submit.
SINK_JOB = """
import sys
from cli.main import main

main(sys.argv[1:])
"""

CONFIG = """
[[outbox]]
stream = "{stream}"

[[outbox.table]]
table = "{folder}/events"

[[outbox.table]]
table = "{folder}/orders"
mode = "upsert"
schema = "total long"

[[outbox.table]]
table = "{folder}/history"
mode = "scd2"
schema = "total long"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    server = SparkCluster()
    try:
        yield server.start()
    finally:
        server.destroy()


def run(cluster: SparkCluster, *command: str) -> str:
    done = subprocess.run(
        command,
        env={**environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, cluster.logs() + done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout


def submit(cluster: SparkCluster) -> list[str]:
    jars = run(cluster, sys.executable, "-m", "spark_sink.jars", "--list").strip()
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    return [str(cluster.home / "bin" / "spark-submit"), "--master", cluster.master, "--jars", jars, *settings]


def assert_executors_read(cluster: SparkCluster, table: str, output: str) -> None:
    assert json.loads(output.splitlines()[-1]) == {"master": cluster.master, "events": 40}
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(1, 41))
    folders = {row["folder"] for row in rows}
    assert len(folders) == 2
    assert all(folder.startswith(str(cluster.folder / "work")) for folder in folders), folders
    # Not whatever version the worker's machine may have installed: the driver's own code.
    assert all("outbox_packages.zip" in row["code"] for row in rows), rows[0]


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(READ_ON_EXECUTORS)
    return str(tmp_path / "job.py")


def test_executors_read_the_stream_with_the_drivers_code(cluster, make_stream, job, tmp_path):
    url = make_stream(*[{"data": {"n": number}} for number in range(40)], frame_rows=10)
    table = str(tmp_path / "table")
    output = run(cluster, sys.executable, job, cluster.master, json.dumps(SETTINGS), url, table)
    assert_executors_read(cluster, table, output)


@pytest.mark.slow
def test_spark_submit_gives_the_master_and_the_jars(cluster, make_stream, job, tmp_path):
    url = make_stream(*[{"data": {"n": number}} for number in range(40)], frame_rows=10)
    table = str(tmp_path / "table")
    assert_executors_read(cluster, table, run(cluster, *submit(cluster), job, "", "{}", url, table))


@pytest.mark.slow
def test_sink_on_the_cluster_writes_each_table_exactly_once(cluster, make_stream, tmp_path):
    def order(key: str, total: int) -> dict[str, object]:
        return {"subject": key, "data": {"total": total}}

    url = make_stream(*[order(f"o-{number % 5}", number) for number in range(1, 21)], frame_rows=4)
    config = tmp_path / "outbox.toml"
    config.write_text(CONFIG.format(stream=url, folder=tmp_path))
    flags = ["--master", cluster.master]
    flags += [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    sink = ["sink", "--config", str(config), "--batch-rows", "12", "--once"]
    run(cluster, *command(*sink, *flags))

    make_stream(order("o-1", 100), {"subject": "o-2"}, order("o-9", 9))
    job = tmp_path / "sink_job.py"
    job.write_text(SINK_JOB)
    run(cluster, *submit(cluster), str(job), *sink)

    rows = {name: DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in ("events", "orders", "history")}
    assert sorted(rows["events"]["id"].to_pylist()) == list(range(1, 24))
    orders = {row["subject"]: (row["total"], row["_event_id"]) for row in rows["orders"].to_pylist()}
    assert orders == {"o-0": (20, 20), "o-1": (100, 21), "o-3": (18, 18), "o-4": (19, 19), "o-9": (9, 23)}
    assert sorted(rows["history"]["_event_id"].to_pylist()) == [number for number in range(1, 24) if number != 22]
