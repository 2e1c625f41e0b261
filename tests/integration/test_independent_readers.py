"""The tables as others read them: `deltalake` (Rust), DuckDB and Polars, against a plain Python model of each mode."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from spark_sink.materializer import Materializer
from spark_sink.table_sink import SinkOptions
from tests.integration.lake import spec_of
from tests.streams import EPOCH, write_stream

SCHEMA = "order string, total decimal(10,2), lines array<struct<sku:string,n:int>>, paid_at timestamp, note string"
PAID_AT = datetime(2024, 5, 1, 12, 30, 15, 123456, UTC)


def order(key: str, total: str, lines: int = 1, **more: Any) -> dict[str, Any]:
    data = {
        "order": key,
        "total": float(total),
        "lines": [{"sku": f"{key}-{number}", "n": number} for number in range(lines)],
        "paid_at": PAID_AT.isoformat(),
        "note": None if lines else "größer als „nichts“ 🙂",
    }
    return {"subject": key, "data": data, **more}


EVENTS = [
    order("a", "1.25"),
    order("b", "2.50", lines=3),
    order("a", "3.10", lines=0),
    {"subject": "b"},
    order("c", "0.01"),
    # Its time lies before that of the version that it replaces.
    order("a", "99999999.99", id=8, time=EPOCH + timedelta(seconds=2)),
    order("b", "7.00", lines=2),
]
IDS = [1, 2, 3, 4, 5, 8, 9]


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory) -> Path:
    """A table for each mode, in commits of at most three IDs: files are rewritten and left behind."""
    folder = tmp_path_factory.mktemp("lake")
    url = f"file://{folder / 'stream'}"
    write_stream(url, EVENTS)
    specs = [spec_of(folder / mode, mode=mode, schema=SCHEMA) for mode in ("append", "upsert", "scd2")]
    with Materializer(spark, url, specs, SinkOptions(rows_max=3)) as materializer:
        materializer.run_once()
    return folder


def row_of(event_id: int, event: dict[str, Any]) -> dict[str, Any]:
    """The row that an event makes, in plain Python."""
    data = dict(event.get("data") or {})
    if data:
        data |= {"total": Decimal(str(data["total"])).quantize(Decimal("0.01")), "paid_at": PAID_AT}
    fields = {name: data.get(name) for name in ("order", "total", "lines", "paid_at", "note")}
    time = event.get("time", EPOCH + timedelta(seconds=event_id))
    return {"_event_id": event_id, "type": "order.paid", "subject": event["subject"], "time": time, **fields}


ROWS = [row_of(event_id, event) for event_id, event in zip(IDS, EVENTS, strict=True)]


def latest() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        found.pop(row["subject"], None)
        if row["order"] is not None:
            found[row["subject"]] = row
    return list(found.values())


def versions() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in ROWS:
        before = [each for each in found if each["subject"] == row["subject"]]
        start = max([row["time"], *(each["_valid_to"] or each["_valid_from"] for each in before)])
        for each in before:
            if each["_is_current"]:
                each |= {"_valid_to": start, "_is_current": False, "_closed_by": row["_event_id"]}
        if row["order"] is not None:
            found.append({**row, "_valid_from": start, "_valid_to": None, "_is_current": True, "_closed_by": None})
    return found


def by_rust(path: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def by_duckdb(path: Path) -> list[dict[str, Any]]:
    """DuckDB's own reader of Parquet, on the files that the table's last version has."""
    files = DeltaTable(str(path)).file_uris()
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet($files, union_by_name = true)", {"files": files})
        names = [column[0] for column in found.description]
        return [dict(zip(names, map(_in_utc, row), strict=True)) for row in found.fetchall()]


def _in_utc(value: Any) -> Any:
    # Spark writes times without a zone into Parquet; that they have one, Delta's own schema says.
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def by_polars(path: Path) -> list[dict[str, Any]]:
    return polars.read_delta(str(path)).to_dicts()


@pytest.mark.parametrize("read", [by_rust, by_duckdb, by_polars])
@pytest.mark.parametrize(("mode", "expected"), [("append", list(ROWS)), ("upsert", latest()), ("scd2", versions())])
def test_another_reader_finds_what_plain_python_makes_of_the_events(lake, mode, expected, read):
    found = sorted(read(lake / mode), key=lambda row: row["_event_id"])
    assert found == sorted(expected, key=lambda row: row["_event_id"])


@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
def test_the_bookmark_is_there_for_another_reader(lake, mode):
    table = DeltaTable(str(lake / mode))
    metadata = table.metadata()
    outbox_id = metadata.configuration["outbox.outbox_id"]
    assert table.transaction_version(f"outbox/{outbox_id}/{metadata.id}/main") == IDS[-1]
