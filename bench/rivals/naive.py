"""The relay that one writes in an afternoon: row by row through psycopg into a file of JSON lines.

    python -m bench.rivals.naive postgresql://… FILE

Reads 1,000 rows, writes a line for each, syncs the file, deletes the rows, commits. It has no
fence: it loses events whose transactions commit out of order. Prints {"rows": …, "seconds": …},
from the first read to the last commit; connecting is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time

import psycopg

BATCH_ROWS = 1_000
READ = "SELECT id, type, subject, data::text, headers::text, time FROM outbox ORDER BY id LIMIT %s"


def relay_all(url: str, path: str) -> dict[str, float]:
    rows = 0
    with psycopg.connect(url) as connection, open(path, "w", encoding="utf-8") as file:
        connection.execute("SELECT 1")
        connection.commit()
        started = time.perf_counter()
        while batch := connection.execute(READ, (BATCH_ROWS,)).fetchall():
            for event_id, kind, subject, data, headers, moment in batch:
                line = {
                    "specversion": "1.0", "id": str(event_id), "source": "/outbox", "type": kind, "subject": subject,
                    "time": moment.isoformat(), "datacontenttype": "application/json", "data": json.loads(data),
                    **(json.loads(headers) if headers else {}),
                }  # fmt: skip
                file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
            connection.execute("DELETE FROM outbox WHERE id = ANY (%s)", ([row[0] for row in batch],))
            connection.commit()
            rows += len(batch)
        return {"rows": rows, "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    print(json.dumps(relay_all(sys.argv[1], sys.argv[2])))
