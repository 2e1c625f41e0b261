"""The report, `docs/benchmarks.md`, written from the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import show

if TYPE_CHECKING:
    from bench.results import Results, SceneResult

HEAD = """\
# Benchmarks

Written by `make bench` (`python -m bench`) from the latest run of each scene; do not edit by hand. The numbers behind
it are in `benchmarks.json`. Figures are medians over the rounds, with the lowest and the highest round beside them; ratios are
taken within a round, between processes that ran one after the other on the same machine."""

QUICK = "> Some scenes were run with `--quick`: small sizes, for trying the benchmark out. Their figures say little."
BUSY_SHARE = 0.2


def write_report(results: Results, order: list[str], pictures: dict[str, str]) -> str:
    """The whole report in Markdown; `pictures` are captions by path, as seen from the report."""
    scenes = [results.scenes[name] for name in order if name in results.scenes]
    parts = [HEAD]
    if any(scene.quick for scene in scenes):
        parts.append(QUICK)
    parts.append(_budgets(scenes))
    parts += [f"![{caption}]({path})" for path, caption in pictures.items()]
    parts.append(_machine(results, scenes))
    parts += [_scene(scene) for scene in scenes]
    return "\n\n".join(parts) + "\n"


def _budgets(scenes: list[SceneResult]) -> str:
    lines = ["## Budgets", "", "| what | budget | measured | rounds from – to | verdict |", "|---|---|---|---|---|"]
    for scene in scenes:
        for measure in scene.measures:
            if measure.budget:
                lines.append(
                    f"| {scene.title}: {measure.name} | {measure.budget.shown(measure.unit)} "
                    f"| {show(measure.value, measure.unit)} | {measure.spread} | {measure.verdict} |"
                )
    return "\n".join(lines)


def _machine(results: Results, scenes: list[SceneResult]) -> str:
    lines = ["## The machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in results.machine.items()]
    busy = [scene for scene in scenes if scene.busy_share > BUSY_SHARE]
    if busy:
        shares = ", ".join(f"{scene.name} {scene.busy_share:.0%}" for scene in busy)
        lines += [
            "",
            f"**The machine was not quiet**: others kept a share of the cores busy before these scenes: {shares}.",
        ]
    return "\n".join(lines)


def _scene(scene: SceneResult) -> str:
    lines = [
        f"## {scene.title}",
        "",
        scene.about,
        "",
        "| what | measured | rounds from – to | budget | |",
        "|---|---|---|---|---|",
    ]
    for measure in scene.measures:
        budget = f"{measure.budget.shown(measure.unit)}: {measure.verdict}" if measure.budget else ""
        lines.append(
            f"| {measure.name} | {show(measure.value, measure.unit)} | {measure.spread} | {budget} | {measure.note} |"
        )
    for remark in scene.remarks:
        lines += ["", remark]
    size = ", quick" if scene.quick else ""
    rounds = f"{scene.rounds} round{'s' if scene.rounds != 1 else ''}"
    lines += ["", f"*{scene.date}, {rounds}{size}, {scene.seconds:,.0f} s.*"]
    return "\n".join(lines)
