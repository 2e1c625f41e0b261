"""The results of runs, kept as JSON: a run of some scenes replaces theirs and leaves the others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.measure import Measure

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SceneResult:
    """What one scene found, and under which circumstances."""

    name: str
    title: str
    about: str
    date: str
    rounds: int
    quick: bool
    seconds: float
    # The share of all cores that others kept busy just before the scene.
    busy_share: float
    measures: tuple[Measure, ...]
    remarks: tuple[str, ...] = ()
    series: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "about": self.about,
            "date": self.date,
            "rounds": self.rounds,
            "quick": self.quick,
            "seconds": round(self.seconds, 1),
            "busy_share": round(self.busy_share, 3),
            "measures": [measure.to_json() for measure in self.measures],
            "remarks": list(self.remarks),
            "series": self.series,
        }

    @classmethod
    def from_json(cls, name: str, saved: dict[str, Any]) -> SceneResult:
        measures = tuple(Measure.from_json(measure) for measure in saved["measures"])
        return cls(name, **{**saved, "measures": measures, "remarks": tuple(saved["remarks"])})


@dataclass(frozen=True, slots=True)
class Results:
    """The machine, and the latest result of each scene."""

    machine: dict[str, str] = field(default_factory=dict)
    scenes: dict[str, SceneResult] = field(default_factory=dict)

    def merged(self, machine: dict[str, str], scene: SceneResult) -> Results:
        """These results with one scene's replaced. Another machine's results do not stand beside it."""
        keep = self.scenes if _hardware(machine) == _hardware(self.machine) else {}
        return Results(machine, {**keep, scene.name: scene})

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "format": FORMAT,
            "machine": self.machine,
            "scenes": {name: scene.to_json() for name, scene in sorted(self.scenes.items())},
        }
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> Results:
    """The saved results; empty when there are none, or when they are of another format."""
    if not path.exists():
        return Results()
    document = json.loads(path.read_text("utf-8"))
    if document.get("format") != FORMAT:
        return Results()
    scenes = {name: SceneResult.from_json(name, saved) for name, saved in document["scenes"].items()}
    return Results(document["machine"], scenes)


def _hardware(machine: dict[str, str]) -> tuple[str | None, ...]:
    return tuple(machine.get(fact) for fact in ("cores", "processor", "memory"))
