"""Reading a stream as Arrow, without the program: batches, the chain, and following.

python examples/batches.py file:///var/lib/outbox/shop [FROM_ID]
"""

from __future__ import annotations

import sys
import time

from stream_store import open_stream


def main(url: str, position: int, polls: int = 20) -> None:
    with open_stream(url) as stream:
        for _ in range(polls):
            for batch in stream.read(after=position):
                # The chain: what comes next must follow what we have. Otherwise we missed something.
                assert batch.prev_id == position, f"missed events between {position} and {batch.first_id}"
                types = batch.rows.column("type").unique().to_pylist()
                print(f"{len(batch)} events, IDs {batch.first_id} to {batch.last_id}: {', '.join(types)}")
                position = batch.last_id
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
