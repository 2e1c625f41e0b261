"""dlt writing the same rows into a Delta table, run by the Python of an environment of its own.

Imports nothing of ours. Two ways of using it: Arrow tables straight from parquet, its fastest,
and dicts parsed from the JSON text, which is how it makes typed columns of it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(parquet: str, lake: str, way: str, rows_max: str) -> None:
    import dlt
    import pyarrow.parquet as pq

    left = int(rows_max)

    @dlt.resource(name="events", write_disposition="append", table_format="delta")
    def events() -> Iterator[Any]:
        nonlocal left
        for path in sorted(Path(parquet).glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(100_000):
                if not left:
                    return
                part = batch.slice(0, left)
                left -= part.num_rows
                yield part if way == "arrow" else _typed(part)

    pipeline = dlt.pipeline(
        f"bench_{way}",
        pipelines_dir=f"{lake}/pipelines",
        destination=dlt.destinations.filesystem(bucket_url=f"file://{lake}"),
        dataset_name="lake",
    )
    started = time.perf_counter()
    pipeline.run(events())
    seconds = time.perf_counter() - started
    from deltalake import DeltaTable

    rows = DeltaTable(f"{lake}/lake/events").count()
    print(json.dumps({"seconds": seconds, "rows": rows}))


def _typed(batch: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": row["id"],
            "type": row["type"],
            "subject": row["subject"],
            "time": row["time"],
            **json.loads(row["data"]),
        }
        for row in batch.select(["id", "type", "subject", "time", "data"]).to_pylist()
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
