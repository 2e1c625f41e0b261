"""Processes that write an object-store stream: killed at a request, or racing each other.

They are children of a fork server that has made no request yet: a client that has cannot be forked.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox.errors import StreamMissing, Trimmed
from stream_store import Outcome, open_stream
from stream_store.objects.state import States
from stream_store.objects.store import Store
from stream_store.objects.stream import ObjectStream
from tests.crash.stream_events import EPOCH, batch

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__, "obstore.store"])
# Arrow loads a good deal at the first batch that is made of Python's objects: once, in the fork server.
batch([1]).rows.to_pylist()

# The requests that change something.
WRITES = ("create", "replace", "copy", "delete")
DEADLINE_SECONDS = 60.0


def objects(url: str) -> ObjectStream:
    stream = open_stream(url, "write")
    assert isinstance(stream, ObjectStream)
    return stream


def run(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


# ---- killed at a request


def kill_at(nth: int, when: str) -> None:
    """Kill this process before or after the nth request that changes something."""
    lock = threading.Lock()
    seen = 0

    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        def wrapped(self: Store, *arguments: object) -> object:
            nonlocal seen
            with lock:
                seen += 1
                here = seen == nth
                if here and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                answer = original(self, *arguments)
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)
                return answer

        return wrapped

    for name in WRITES:
        setattr(Store, name, wrap(getattr(Store, name)))


def live(url: str, acknowledged: str) -> None:
    """A relay's life, with merges: appends in threes, merges of batches, merges of merged objects."""
    note = Path(acknowledged).open("a", encoding="ascii", buffering=1)  # noqa: SIM115 - closed by the kill
    with objects(url) as stream:
        stream.bind("outbox-a", "/shop")
        tail = stream.tail()
        note.write(f"{tail}\n")
        while tail < 21:
            answer = stream.append(batch(range(tail + 1, tail + 4)))
            assert answer.outcome is Outcome.APPENDED, answer
            tail = answer.tail
            note.write(f"{tail}\n")
            if tail % 6 == 0:
                stream._changes.merge()


def trim_and_redact(url: str, acknowledged: str) -> None:
    with objects(url) as stream:
        Path(acknowledged).write_text("trim\n", "ascii")
        stream.trim(7)
        Path(acknowledged).write_text("redact\n", "ascii")
        stream.redact([11, 20])
        Path(acknowledged).write_text("done\n", "ascii")


def begin(url: str, acknowledged: str) -> None:
    with objects(url) as stream:
        if stream.tail() == 0:
            stream.begin(1000, compacted=True)
        Path(acknowledged).write_text("begun\n", "ascii")


def killed(scenario: Callable[[str, str], None], url: str, acknowledged: str, nth: int, when: str) -> None:
    kill_at(nth, when)
    scenario(url, acknowledged)


def run_killed(scenario: Callable[[str, str], None], url: str, acknowledged: Path, nth: int, when: str) -> bool:
    """Whether the process was killed; it may end before request `nth`."""
    process = run(killed, scenario, url, str(acknowledged), nth, when)
    process.join(DEADLINE_SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL), (process.exitcode, nth, when)
    return process.exitcode != 0


# ---- racing


def dawdle(chance: random.Random) -> None:
    """Make this process slow at the dangerous places: before a create, and before the look at the floor."""
    create, newest = Store.create, States.newest

    def slow_create(self: Store, name: str, data: bytes) -> bool:
        time.sleep(chance.choice((0, 0, 0, 0.002, 0.03)))
        return create(self, name, data)

    def slow_newest(self: States) -> Any:
        time.sleep(chance.choice((0, 0, 0.001, 0.01)))
        return newest(self)

    Store.create, States.newest = slow_create, slow_newest  # type: ignore[method-assign]


def race(url: str, number: int, last: int, log: str) -> None:
    """Append in a way of our own from whatever tail we see; write down what was acknowledged."""
    chance = random.Random(number)
    dawdle(chance)
    with Path(log).open("a", encoding="ascii", buffering=1) as note, objects(url) as stream:
        while (tail := stream.tail()) < last:
            for _ in range(5):  # from the tail that we believe in, until somebody else was faster
                ids = range(tail + 1 + number % 2, tail + 2 + number)
                # No event of one relay is like that of another: the time is its own.
                mine = batch(ids, prev_id=tail, salt=f"w{number}", at=EPOCH + timedelta(hours=number))
                answer = stream.append(mine)
                # DUPLICATE: the stream has our very content, for it was merged before we looked at the floor.
                if answer.outcome not in (Outcome.APPENDED, Outcome.DUPLICATE):
                    assert answer.outcome is not Outcome.TAIL_LOST, (answer, tail)
                    break
                note.write(f"{tail} {ids[-1]} {number}\n")
                tail = ids[-1]


def merge_on(url: str, last: int) -> None:
    dawdle(random.Random(77))
    with objects(url) as stream:
        while stream.tail() < last:
            stream._changes.merge(2)
            stream._changes.sweep()


def trim_on(url: str, last: int) -> None:
    dawdle(random.Random(78))
    with objects(url) as stream:
        while (tail := stream.tail()) < last:
            stream.trim(tail - 200)
            time.sleep(0.02)


def follow(url: str, last: int, log: str) -> None:
    """Read as it comes; each batch follows the one before. Trimmed under us: go on behind it."""
    reached = 0
    while True:
        try:
            stream = open_stream(url)
            break
        except StreamMissing:
            time.sleep(0.005)
    with Path(log).open("a", encoding="ascii", buffering=1) as note:
        while reached < last:
            try:
                for part in stream.read(reached):
                    assert part.prev_id == reached, (part.prev_id, reached)
                    salts = {_salt(event) for event in part.rows.to_pylist()} - {None}
                    note.write(f"{part.prev_id} {part.last_id} {len(salts)}\n")
                    reached = part.last_id
            except Trimmed:
                reached = stream.info().trimmed_through
                note.write(f"trimmed {reached} 0\n")


def _salt(event: dict[str, Any]) -> str | None:
    return event["data"] and event["data"].split('"é":"')[1][:2]
