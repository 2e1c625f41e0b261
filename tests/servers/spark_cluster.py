"""A real Spark cluster: a standalone master and a worker from the pip package, executors in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

from tests.servers.process import free_port, kill_group, wait_until

HOST = "127.0.0.1"


# What an application is started with, beside the master: two small executors, and both of them
# before the first task.
SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


class SparkCluster:
    """One master, one worker with two cores."""

    def __init__(self) -> None:
        from pyspark.find_spark_home import _find_spark_home

        self.home = Path(_find_spark_home())
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-spark-"))
        self.port, self.page = free_port(), free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def start(self) -> SparkCluster:
        page = ["--webui-port", str(self.page)]
        self._start("master", "org.apache.spark.deploy.master.Master", "--port", str(self.port), *page)
        self._wait("master", lambda: self.alive_workers())
        resources = ["--cores", "2", "--memory", "2g", "--work-dir", str(self.folder / "work")]
        self._start("worker", "org.apache.spark.deploy.worker.Worker", "--webui-port", "0", *resources, self.master)
        self._wait("worker", self._require_worker)
        return self

    def alive_workers(self) -> int:
        with urlopen(f"http://{HOST}:{self.page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])

    def destroy(self) -> None:
        # Executors are children of the worker, in its process group.
        for process in reversed(self.processes):
            kill_group(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> str:
        """What everyone complains of: for a failed test."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("work/*/*/stderr")]
        lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
        return "\n".join([line for line in lines if " INFO " not in line][-40:])

    def _start(self, name: str, program: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(self.home / "bin" / "spark-class"), program, "--host", HOST, *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _wait(self, name: str, ready: object) -> None:
        assert callable(ready)
        wait_until(ready, f"Spark's {name}", self.processes[-1], self.folder / f"{name}.log")

    def _require_worker(self) -> None:
        if self.alive_workers() != 1:
            raise RuntimeError("the worker has not registered")
