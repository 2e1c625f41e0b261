"""One measured figure: its samples, its budget if it has one, and the verdict."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit that the figure must reach, or must stay within."""

    limit: float
    at_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def shown(self, unit: str) -> str:
        return f"{'≥' if self.at_least else '≤'} {show(self.limit, unit)}"


def at_least(limit: float) -> Budget:
    return Budget(limit, at_least=True)


def at_most(limit: float) -> Budget:
    return Budget(limit, at_least=False)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, one sample per round; its value is their median."""

    name: str
    unit: str
    samples: tuple[float, ...]
    budget: Budget | None = None
    # What the figure includes and what it leaves out, where its name does not say it all.
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        return "met" if self.budget.is_met(self.value) else "**missed**"

    @property
    def spread(self) -> str:
        """The lowest and the highest round, where there was more than one."""
        if len(self.samples) < 2:
            return ""
        return f"{show(min(self.samples), self.unit)} – {show(max(self.samples), self.unit)}"

    def __str__(self) -> str:
        budget = f", budget {self.budget.shown(self.unit)}: {self.verdict.strip('*')}" if self.budget else ""
        spread = f" ({self.spread})" if self.spread else ""
        return f"{self.name}: {show(self.value, self.unit)}{spread}{budget}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"value": self.value}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Measure:
        budget = Budget(**saved["budget"]) if saved["budget"] else None
        return cls(saved["name"], saved["unit"], tuple(saved["samples"]), budget, saved["note"])


def show(value: float, unit: str) -> str:
    """A figure for people: as many digits as it deserves, and its unit."""
    if unit == "×":
        return f"{value:.2f}×" if abs(value) < 10 else f"{value:.0f}×"
    if abs(value) >= 1000:
        rounded = round(value, -(len(str(int(abs(value)))) - 3))
        return f"{rounded:,.0f} {unit}"
    if abs(value) >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if abs(value) >= 10 else f"{value:.2f} {unit}"


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values do not exceed, by the nearest rank."""
    ranked = sorted(values)
    return ranked[max(math.ceil(share * len(ranked)) - 1, 0)]
