"""The benchmark's report says what was measured, against which budget, and how it came out."""

from pathlib import Path

import pytest

from bench.__main__ import SCENES, parse_arguments, write
from bench.measure import Measure, at_least, at_most, percentile, show
from bench.report import write_report
from bench.results import Results, SceneResult, load
from bench.rivals import debezium

MACHINE = {"cores": "2", "processor": "some", "memory": "8 GiB", "Python": "3.11"}


def scene(name: str, *measures: Measure, **more: object) -> SceneResult:
    facts = {
        "title": name.title(),
        "about": f"What {name} is.",
        "date": "2026-01-01",
        "rounds": 3,
        "quick": False,
        "seconds": 12.0,
        "busy_share": 0.0,
    }
    return SceneResult(name, measures=measures, **{**facts, **more})


def test_value_is_the_median_of_the_rounds():
    measure = Measure("rate", "rows/s", (1.0, 9.0, 2.0))
    assert measure.value == 2.0
    assert measure.spread == "1.00 rows/s – 9.00 rows/s"


@pytest.mark.parametrize(
    ("budget", "value", "verdict"),
    [
        (at_least(0.75), 0.75, "met"),
        (at_least(0.75), 0.74, "**missed**"),
        (at_most(300), 300, "met"),
        (at_most(300), 301, "**missed**"),
        (None, 1, ""),
    ],
)
def test_verdict_follows_the_budget(budget, value, verdict):
    assert Measure("x", "MB", (value,), budget).verdict == verdict


def test_figures_keep_three_digits_and_their_unit():
    assert [show(value, "rows/s") for value in (0.5, 12.34, 123.4, 1_234_567)] == [
        "0.50 rows/s",
        "12.3 rows/s",
        "123 rows/s",
        "1,230,000 rows/s",
    ]
    assert (show(0.756, "×"), show(32.1, "×")) == ("0.76×", "32×")


def test_percentile_is_a_value_that_was_measured():
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0


def test_report_lists_each_budget_once_with_its_verdict():
    results = Results(MACHINE).merged(
        MACHINE,
        scene(
            "drain",
            Measure("against ADBC", "×", (0.8, 0.7, 0.9), at_least(0.75)),
            Measure("rate", "rows/s", (500_000.0,), note="for information"),
        ),
    )
    text = write_report(results, list(SCENES), {})
    assert "| Drain: against ADBC | ≥ 0.75× | 0.80× | 0.70× – 0.90× | met |" in text
    assert "| rate | 500,000 rows/s |  |  | for information |" in text
    assert "| cores | 2 |" in text
    assert "quick" not in text
    assert "not quiet" not in text


def test_report_says_when_figures_are_quick_or_the_machine_was_busy():
    result = scene("tap", Measure("rate", "events/s", (1.0,)), quick=True, busy_share=0.5)
    text = write_report(Results(MACHINE, {"tap": result}), list(SCENES), {})
    assert "`--quick`" in text
    assert "**The machine was not quiet**" in text
    assert "tap 50%" in text


def test_partial_run_replaces_its_scenes_and_keeps_the_others(tmp_path: Path):
    path = tmp_path / "benchmarks.json"
    old = Results(MACHINE).merged(MACHINE, scene("drain", Measure("rate", "rows/s", (1.0,))))
    old = old.merged(MACHINE, scene("tap", Measure("rate", "events/s", (1.0,)), remarks=("slow",)))
    old.save(path)
    new = load(path).merged(MACHINE, scene("tap", Measure("rate", "events/s", (2.0,), at_least(1))))
    new.save(path)
    found = load(path)
    assert found == new
    assert found.scenes["drain"].measures[0].value == 1.0
    assert found.scenes["tap"].measures[0].value == 2.0
    assert found.scenes["tap"].measures[0].budget == at_least(1)


def test_results_of_another_machine_do_not_stand_beside_ours():
    old = Results(MACHINE).merged(MACHINE, scene("drain", Measure("rate", "rows/s", (1.0,))))
    other = {**MACHINE, "cores": "64"}
    assert set(old.merged(other, scene("tap", Measure("rate", "events/s", (1.0,)))).scenes) == {"tap"}


def test_same_results_make_the_same_files(tmp_path: Path):
    measures = [Measure("peak at 10 rows", "MB", (100.0,), at_most(300))]
    results = Results(MACHINE).merged(MACHINE, scene("memory", *measures, series={"peak": [[10, 100.0]]}))
    for folder in ("one", "two"):
        results.save(tmp_path / folder / "benchmarks.json")
        write(load(tmp_path / folder / "benchmarks.json"), tmp_path / folder)
    for name in ("benchmarks.md", "benchmarks/relay.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "![" in (tmp_path / "one" / "benchmarks.md").read_text()


def test_only_known_scenes_are_taken():
    assert parse_arguments(["--only", "tap", "drain"]).only == ["tap", "drain"]
    with pytest.raises(SystemExit):
        parse_arguments(["--only", "debezium"])


def test_missing_maven_is_said_and_not_a_failure_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(debezium, "BUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debezium.Missing, match="not installed"):
        debezium.build()
