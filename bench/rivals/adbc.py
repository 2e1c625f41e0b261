"""The bare read that the relay is measured by: every row through ADBC, and nothing done with it.

    python -m bench.rivals.adbc postgresql://…

In no order: PostgreSQL may read the table as it lies, which is the fastest there is. Prints
{"rows": …, "seconds": …}, from the statement to the last row; connecting is not counted.
"""

from __future__ import annotations

import json
import sys
import time

from adbc_driver_postgresql import dbapi

READ = "SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time FROM outbox"


def read_all(url: str) -> dict[str, float]:
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchall()
        started = time.perf_counter()
        cursor.execute(READ)
        rows = sum(batch.num_rows for batch in cursor.fetch_record_batch())
        return {"rows": rows, "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    print(json.dumps(read_all(sys.argv[1])))
