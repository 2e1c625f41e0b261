"""The pictures in the report: one of the relay, one of the sink."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.measure import Measure
    from bench.results import Results

OURS, THEIRS, LIMIT = "#1f6feb", "#9aa4b2", "#d1242f"

DRAIN_BARS = {
    "bare ADBC read": "bare ADBC read",
    "relay: PostgreSQL to file://": "relay, PostgreSQL",
    "relay: the same with clean-up": "… with clean-up",
    "relay: MariaDB to file://": "relay, MariaDB",
    "relay: SQLite to file://": "relay, SQLite",
    "naive relay": "naive relay",
    "Debezium's embedded engine": "Debezium embedded",
}


SINK_BARS = {
    "parquet": "parquet → Delta",
    "sink": "sink",
    "dlt arrow": "dlt, Arrow",
    "from_json": "from_json job, typed",
    "typed": "sink, typed",
    "dlt dicts": "dlt, typed",
}
SMALL_BARS = {"bare": "bare append", "sink": "sink", "options": "append with\ntxnAppId"}


def draw(results: Results, name: str, path: Path) -> bool:
    """Draw what the results have of a picture; False when they have nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text, and the same results make the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "outbox", "font.size": 9})
    from matplotlib import pyplot

    panels = [(scene, panel) for scene, panel in PICTURES[name].panels if scene in results.scenes]
    if not panels:
        return False
    rows = (len(panels) + 1) // 2
    figure, axes = pyplot.subplots(rows, 2, figsize=(11, 3.6 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (scene, panel) in zip(axes.flat, panels, strict=False):
        panel(axis, results.scenes[scene])
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _by_name(scene: Any) -> dict[str, Measure]:
    return {measure.name: measure for measure in scene.measures}


def _drain(axis: Any, scene: Any) -> None:
    found = _by_name(scene)
    bars = [(label, found[name]) for name, label in DRAIN_BARS.items() if name in found][::-1]
    values = [measure.value / 1000 for _, measure in bars]
    drawn = axis.barh(
        [label for label, _ in bars],
        values,
        color=[OURS if "relay:" in measure.name else THEIRS for _, measure in bars],
    )
    axis.bar_label(drawn, fmt="{:,.0f}", padding=3)
    axis.set_xlabel("thousand rows/s")
    axis.set_title(scene.title)
    axis.margins(x=0.12)


def _latency(axis: Any, scene: Any) -> None:
    for name, curve in scene.series.items():
        shares = [100 * share for share, _ in curve]
        axis.plot(
            shares,
            [latency for _, latency in curve],
            marker="o",
            markersize=3,
            label=name,
            color=OURS if name == "relay" else THEIRS,
        )
    for measure in scene.measures:
        if measure.budget:
            share = 50 if "p50" in measure.name else 99
            axis.plot([share], [measure.budget.limit], marker="v", color=LIMIT, linestyle="none")
    axis.plot([], [], marker="v", color=LIMIT, linestyle="none", label="budgets (p50, p99)")
    axis.set_yscale("log")
    axis.set_xlabel("percentile of rows")
    axis.set_ylabel("ms")
    axis.set_title(scene.title)
    axis.legend(frameon=False)


def _memory(axis: Any, scene: Any) -> None:
    peaks = scene.series["peak"]
    drawn = axis.bar([f"{rows:,}" for rows, _ in peaks], [peak for _, peak in peaks], color=OURS, width=0.5)
    axis.bar_label(drawn, fmt="{:.0f}", padding=2)
    limits = [measure.budget.limit for measure in scene.measures if measure.budget]
    axis.axhline(limits[0], color=LIMIT, linestyle="--")
    axis.text(1, limits[0], "budget", transform=axis.get_yaxis_transform(), ha="right", va="bottom", color=LIMIT)
    axis.set_xlabel("rows in the backlog")
    axis.set_ylabel("peak, MB")
    axis.set_title("The relay's memory")


def _held(axis: Any, scene: Any) -> None:
    sides = scene.series["drain"]
    labels = {"free": "without", "held": "beside a held\nsnapshot"}
    for position, name in enumerate(("free", "held")):
        rates = sorted(rate / 1000 for rate in sides[name])
        drawn = axis.bar(labels[name], rates[len(rates) // 2], color=OURS if name == "held" else THEIRS, width=0.5)
        axis.bar_label(drawn, fmt="{:,.0f}", padding=2)
        axis.plot([position] * len(rates), rates, marker=".", linestyle="none", color="black", markersize=4)
    axis.set_ylabel("thousand rows/s")
    axis.set_title(scene.title)


def _sink(axis: Any, scene: Any) -> None:
    bars = [(name, label) for name, label in SINK_BARS.items() if name in scene.series["rates"]][::-1]
    drawn = axis.barh(
        [label for _, label in bars],
        [median(scene.series["rates"][name]) / 1000 for name, _ in bars],
        color=[OURS if name in ("sink", "typed") else THEIRS for name, _ in bars],
    )
    axis.bar_label(drawn, fmt="{:,.0f}", padding=3)
    axis.set_xlabel("thousand rows/s")
    axis.set_title(scene.title)
    axis.margins(x=0.12)


def _small(axis: Any, scene: Any) -> None:
    times = scene.series["small_ms"]
    colors = [OURS if name == "sink" else THEIRS for name in SMALL_BARS]
    drawn = axis.bar(list(SMALL_BARS.values()), [median(times[name]) for name in SMALL_BARS], color=colors, width=0.5)
    axis.bar_label(drawn, fmt="{:.0f}", padding=2)
    axis.set_ylabel("ms")
    axis.set_title("The sink: a batch of 1,000 rows")


def _tables(axis: Any, scene: Any) -> None:
    shades = {"append": THEIRS, "upsert": OURS, "scd2": "#0a3069"}
    for name, points in scene.series["rates"].items():
        mode, _, overlap = name.partition(", ")
        style = "-" if overlap == "100%" else "--"
        rates = [rate / 1000 for _, rate in points]
        axis.plot([f"{rows:,}" for rows, _ in points], rates, style, marker="o", color=shades[mode], label=name)
    axis.set_yscale("log")
    axis.set_xlabel("rows in the table")
    axis.set_ylabel("thousand events/s of a batch")
    axis.set_title(scene.title)
    axis.legend(frameon=False, fontsize=7)


def _verify(axis: Any, scene: Any) -> None:
    for name, points in scene.series["rates"].items():
        axis.plot([f"{events:,}" for events, _ in points], [rate / 1000 for _, rate in points], marker="o", label=name)
    axis.set_xlabel("events in the stream")
    axis.set_ylabel("thousand events/s")
    axis.set_ylim(bottom=0)
    axis.set_title(scene.title)
    axis.legend(frameon=False, fontsize=7)


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture is called, and its panels: of which scene, drawn how."""

    caption: str
    panels: tuple[tuple[str, Callable[[Any, Any], None]], ...]


PICTURES = {
    "relay": Picture(
        "Drain rates, latency, memory and the held snapshot",
        (("drain", _drain), ("latency", _latency), ("memory", _memory), ("held-xmin", _held)),
    ),
    "sink": Picture(
        "The sink's rates, small batches, tables that change, and verify",
        (("sink", _sink), ("sink", _small), ("tables", _tables), ("verify", _verify)),
    ),
}
