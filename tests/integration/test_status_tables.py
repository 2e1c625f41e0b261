"""`status` of Delta tables: where each stands, without starting Spark where it can be helped."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import cli.main
from spark_sink.materializer import Materializer
from spark_sink.names import TableName
from spark_sink.spec import TableSpec
from spark_sink.table_status import TableStatus, table_status
from stream_store import open_stream
from tests.integration.lake import MODES, OPTIONS, Lake, Vandal, make_lake, order
from tests.integration.relays import emit, installed, relay_once
from tests.streams import write_stream


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory) -> Lake:
    return make_lake(spark, tmp_path_factory.mktemp("lake"))


@pytest.fixture
def lake(made, tmp_path) -> Lake:
    return made.copy(tmp_path / "lake")


def no_spark():
    raise AssertionError("Spark is not needed for a table of this machine")


def look(lake: Lake, table: str) -> TableStatus:
    with open_stream(lake.url) as stream:
        return table_status(lake.table(table), stream, no_spark)


def test_every_number_of_tables_that_are_all_right(lake):
    for mode, rows in {"append": 9, "upsert": 4, "scd2": 8}.items():
        seen = look(lake, mode)
        assert (seen.table, seen.mode, seen.bookmark, seen.version) == (str(lake.table(mode)), mode, 11, 1)
        assert (seen.behind, seen.behind_seconds, seen.oldest_waiting_seconds) == (0, 0.0, None)
        assert (seen.rows, seen.dead_letters, seen.problems) == (rows, 0, [])
        files = list((lake.folder / mode).glob("*.parquet"))
        assert (seen.files, seen.size_bytes) == (len(files), sum(file.stat().st_size for file in files))
        assert timedelta(0) < datetime.now(UTC) - seen.last_commit_at < timedelta(hours=1)


def test_behind_is_counted_in_ids_and_in_the_events_own_time(lake):
    write_stream(lake.url + OPTIONS, [order("f", 12, id=15), order("f", 13)], frame_rows=1)
    seen = look(lake, "append")
    # A second per ID, from 11 to 16.
    assert (seen.behind, seen.behind_seconds) == (5, 5.0)
    assert seen.oldest_waiting_seconds > 1e6
    assert table_status(lake.table("append"), None, no_spark).behind is None


def test_dead_letters_that_wait_are_counted(lake):
    table = lake.table("append")
    # The name that it was made with: the folder may have been moved since.
    name = DeltaTable(str(table)).metadata().configuration["outbox.name"]
    letters = pa.table(
        {
            "id": [1, 2, 3, 4],
            "table": [name, name, name, "another"],
            "dropped_at": pa.array([None, None, datetime.now(UTC), None], pa.timestamp("us", tz="UTC")),
        }
    )
    write_deltalake(str(table.beside("dead_letters")), letters)
    assert look(lake, "append").dead_letters == 2


def test_what_the_sink_would_stop_at_is_a_problem(lake):
    Vandal(lake.table("append")).restore(0)
    assert "version 2 is a RESTORE that is not ours" in look(lake, "append").problems[0]
    Vandal(lake.table("upsert")).remove("_event_id = 5")
    assert "version 2 is a DELETE that is not ours" in look(lake, "upsert").problems[0]
    assert "there is no Delta table" in look(lake, "nothing").problems[0]
    write_deltalake(str(lake.folder / "foreign"), pa.table({"x": [1]}))
    assert "did not make" in look(lake, "foreign").problems[0]
    with open_stream(lake.url + OPTIONS, "write") as stream:
        stream.trim(11)
    write_stream(lake.url + OPTIONS, [order("f", 12), order("f", 13)], frame_rows=1)
    with open_stream(lake.url + OPTIONS, "write") as stream:
        stream.trim(12)
    assert "trimmed past what the table holds" in look(lake, "scd2").problems[0]


def test_a_table_of_a_catalog_is_seen_by_spark(spark, lake):
    name = TableName.parse("outbox_status_test")
    with Materializer(spark, lake.url, [TableSpec(name, mode="append")]) as materializer:
        materializer.run_once()
    try:
        with open_stream(lake.url) as stream:
            seen = table_status(name, stream, lambda: spark)
    finally:
        spark.sql("DROP TABLE outbox_status_test")
    assert (seen.mode, seen.bookmark, seen.behind, seen.rows, seen.dead_letters) == ("append", 11, 0, 9, 0)
    assert seen.problems == []
    assert seen.files >= 1
    assert timedelta(0) < datetime.now(UTC) - seen.last_commit_at < timedelta(hours=1)


def test_the_program_shows_tables(lake, sqlite_url, stream_url, tmp_path, capsys):
    flags = [word for mode in MODES for word in ("--table", str(lake.table(mode)))]
    assert cli.main.run(["status", "--stream", lake.url, *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [table["mode"] for table in document["tables"]] == list(MODES)
    assert document["tables"][0]["bookmark"] == 11

    outbox = installed(sqlite_url, stream_url)
    emit(outbox, 2)
    relay_once(outbox)
    capsys.readouterr()
    assert cli.main.run(["status", "--database", sqlite_url, "--stream", stream_url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["stream_tail"], document["tables"]) == (2, [])

    config = tmp_path / "outbox.toml"
    tables = "\n".join(f'[[outbox.table]]\ntable = "{lake.table(mode)}"' for mode in MODES)
    config.write_text(f'[[outbox]]\nstream = "{lake.url}"\n{tables}\n')
    assert cli.main.run(["status", "--config", str(config)]) == 0
    text = capsys.readouterr().out
    assert all(str(lake.table(mode)) in text for mode in MODES)
