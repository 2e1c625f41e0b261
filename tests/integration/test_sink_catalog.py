"""Tables by catalog name, in a catalog that outlives the session: Hive's embedded metastore."""

from __future__ import annotations

import subprocess
import sys

import pytest
from deltalake import DeltaTable

from tests.program import command, environment
from tests.spark import flags

pytestmark = [pytest.mark.compat, pytest.mark.slow]

DEFAULTS = """
spark.sql.catalogImplementation                  hive
spark.sql.warehouse.dir                          {folder}/lake
spark.hadoop.javax.jdo.option.ConnectionURL      jdbc:derby:;databaseName={folder}/metastore;create=true
"""

# A job with a session of its own: the program finds it, and uses it.
JOB = """
import sys
from cli.main import run
from spark_sink.session import open_session
from tests.spark import MASTER, SETTINGS

spark = open_session(master=MASTER, conf=SETTINGS)
spark.sql("CREATE SCHEMA sales")
code = run(sys.argv[1:])
assert spark.table("sales.orders").count() == 2
sys.exit(code)
"""


def test_next_sink_finds_the_table_by_its_name(make_stream, tmp_path):
    def process(*arguments: str) -> None:
        variables = environment(SPARK_CONF_DIR=str(tmp_path))
        done = subprocess.run(arguments, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-5000:]

    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.format(folder=tmp_path))
    (tmp_path / "job.py").write_text(JOB)
    url = make_stream({"subject": "a", "data": {"n": 1}}, {"subject": "b", "data": {"n": 2}})
    sink = ["sink", "--stream", url, "--table", "sales.orders", "--mode", "upsert", "--once"]
    process(sys.executable, "job.py", *sink)
    make_stream({"subject": "a", "data": {"n": 3}})
    process(*command(*sink, *flags()))
    rows = DeltaTable(str(tmp_path / "lake" / "sales.db" / "orders")).to_pyarrow_table().to_pylist()
    assert {row["subject"]: row["_event_id"] for row in rows} == {"a": 3, "b": 2}
