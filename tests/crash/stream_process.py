"""A process that writes or follows a stream, for tests that need another one than their own.

python -m tests.crash.stream_process hold URL           open for writing, say so, wait for a line
python -m tests.crash.stream_process follow URL LAST    read from 0 to LAST as it comes, check everything
python -m tests.crash.stream_process append URL         append for ever, write each acknowledged tail
"""

from __future__ import annotations

import sys
import time

from outbox.errors import StreamMissing
from stream_store import Outcome, Stream, open_stream
from tests.crash.stream_events import batch, row


def hold(url: str) -> None:
    with open_stream(url, "write"):
        print("open", flush=True)
        sys.stdin.readline()


def append(url: str) -> None:
    with open_stream(url, "write") as stream:
        tail = stream.tail()
        print(tail, flush=True)
        while True:
            answer = stream.append(batch(range(tail + 1, tail + 2 + tail % 5)))
            assert answer.outcome is Outcome.APPENDED, answer
            tail = answer.tail
            print(tail, flush=True)


def follow(url: str, last: int) -> None:
    """Every event once, in order, whole. Any error ends the process with a traceback."""
    stream = _wait_for(url)
    reached = 0
    while reached < last:
        for part in stream.read(reached):
            assert part.prev_id == reached, (part.prev_id, reached)
            expected = [row(event_id) for event_id in range(reached + 1, part.last_id + 1)]
            assert part.rows.to_pylist() == expected
            reached = part.last_id
        time.sleep(0.0005)
    print(reached, flush=True)


def _wait_for(url: str) -> Stream:
    while True:
        try:
            return open_stream(url)
        except StreamMissing:
            time.sleep(0.005)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "hold":
        hold(arguments[0])
    elif command == "append":
        append(arguments[0])
    else:
        follow(arguments[0], int(arguments[1]))
