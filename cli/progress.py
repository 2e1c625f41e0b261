"""A bar with rate and time left, on stderr, when a person looks at it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Task, TaskID
    from rich.text import Text

    from spark_sink.tasks import Tell


@contextmanager
def bar(what: str, noun: str = "events") -> Iterator[Tell]:
    """Call it with how much is done, and of how much (0: nobody knows); a step that is named has a bar of its own."""
    if not sys.stderr.isatty():
        from spark_sink.tasks import tell_nobody

        yield tell_nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:,.0f} {task.fields['noun']}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(done: int, of: int, step: str = "", /) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step or what, total=None, noun="tasks" if step else noun)
            bars.update(tasks[step], completed=done, total=of or None)

        yield tell
