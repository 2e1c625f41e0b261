"""What a scene is given, and what it hands back."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.measure import Measure


@dataclass(frozen=True, slots=True)
class Run:
    """How large the scenes are to be, and a folder for what they write."""

    rounds: int
    quick: bool
    folder: Path
    # How long inserts and deletes go on under a held snapshot.
    churn_minutes: float

    def rows(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """A progress line."""
        print(f"  {time.strftime('%H:%M:%S')}  {text}", flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A progress line for something that takes a while, with its time behind it."""
        started = time.monotonic()
        yield
        self.say(f"{text} ({time.monotonic() - started:.1f} s)")


@dataclass(frozen=True, slots=True)
class Findings:
    """What a scene found: figures, remarks for the report, and curves for the plot."""

    measures: list[Measure]
    remarks: list[str] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)


class Scene(Protocol):
    """A module of `bench.scenes`."""

    NAME: str
    TITLE: str
    # What is compared with what, for the report.
    ABOUT: str

    @staticmethod
    def run(run: Run) -> Findings: ...
