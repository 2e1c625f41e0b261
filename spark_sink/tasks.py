"""How far Spark is: the tasks of the stages that are under way, told while somebody waits for them."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    # What is being done, how far it is, and how far it goes.
    Progress = Callable[[str, int, int], None]

LOOK_SECONDS = 0.5


class Tell(Protocol):
    """How many IDs are done, and of how many (0: not known); of a step of its own, how many tasks."""

    def __call__(self, done: int, of: int, step: str = "", /) -> None: ...


def tell_nobody(_done: int, _of: int, _step: str = "", /) -> None:
    pass


def progress_of(tell: Tell) -> Progress | None:
    return None if tell is tell_nobody else lambda what, done, of: tell(done, of, what)


@contextmanager
def told(spark: SparkSession, what: str, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` of the tasks that are done and to be done, while the block runs."""
    if progress is None:
        yield
        return
    done = threading.Event()
    seen: dict[int, tuple[int, int]] = {}

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            # Spark Connect has no tracker; a stage may end between the two calls.
            with suppress(Exception):
                tracker = spark.sparkContext.statusTracker()
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        seen[stage] = (info.numCompletedTasks, info.numTasks)
                for stage in seen.keys() - set(tracker.getActiveStageIds()):
                    seen[stage] = (seen[stage][1], seen[stage][1])
                progress(what, sum(done for done, _ in seen.values()), sum(total for _, total in seen.values()))

    watcher = threading.Thread(target=look, daemon=True)
    progress(what, 0, 0)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        total = sum(total for _, total in seen.values())
        progress(what, total, total)
