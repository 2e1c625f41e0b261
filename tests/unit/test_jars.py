"""Resolving Delta's jars: names, and a folder that is complete or not there. A program stands for Spark's Ivy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outbox.errors import OutboxError
from spark_sink import jars
from spark_sink.jars import Versions

ROOT = Path(__file__).parents[2]
PAIR = Versions("4.2.0", "4.4.1")

# What spark-submit does as far as we see it: jars below spark.jars.ivy, named by their coordinates.
SPARK_SUBMIT = """#!/usr/bin/env bash
for argument in "$@"; do
    case "$argument" in
        spark.jars.ivy=*) ivy="${argument#spark.jars.ivy=}" ;;
        io.delta:*) coordinates="$argument" ;;
    esac
done
echo "$coordinates" >> "$ASKED"
mkdir -p "$ivy/jars"
echo storage > "$ivy/jars/io.delta_delta-storage-4.4.0.jar"
echo api > "$ivy/jars/org.slf4j_slf4j-api-2.0.13.jar"
[ -z "$SLOW" ] || { touch "$SLOW"; sleep 60; }
case "$coordinates" in
    *:"$PUBLISHED") echo delta > "$ivy/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar" ;;
    *) echo "::  unresolved dependency: $coordinates: not found" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark whose Ivy finds version 4.4.0, and no Maven; the file where it notes what it was asked for."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SPARK_SUBMIT)
    program.chmod(0o755)
    (tmp_path / "spark" / "jars").mkdir()
    (tmp_path / "spark" / "jars" / "slf4j-api-2.0.17.jar").touch()
    asked = tmp_path / "asked"
    for name, value in {
        "SPARK_HOME": str(tmp_path / "spark"),
        "OUTBOX_JARS": str(tmp_path / "jars"),
        "ASKED": str(asked),
        "PUBLISHED": "4.4.0",
        "SLOW": "",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jars.shutil, "which", lambda name: None)
    return asked


@pytest.mark.parametrize(
    ("pyspark", "delta", "first"),
    [
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.1.3", "4.2.0", "io.delta:delta-spark_4.1_2.13:4.2.0"),
        ("4.0.2", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
    ],
)
def test_coordinates_name_spark_where_delta_has_a_jar_per_spark(pyspark, delta, first):
    assert Versions(pyspark, delta).coordinates()[0] == first


def test_jar_of_an_earlier_patch_will_do(ivy):
    folder = jars.root() / PAIR.name
    jars.resolve(PAIR, folder)
    # slf4j is not among them: Spark has it.
    assert sorted(path.name for path in folder.iterdir()) == [
        "io.delta_delta-spark_4.2_2.13-4.4.0.jar",
        "io.delta_delta-storage-4.4.0.jar",
    ]
    assert ivy.read_text().split() == ["io.delta:delta-spark_4.2_2.13:4.4.1", "io.delta:delta-spark_4.2_2.13:4.4.0"]
    assert [path.name for path in jars.root().iterdir()] == [PAIR.name]


def test_jars_are_resolved_once(ivy, monkeypatch):
    monkeypatch.setattr(Versions, "installed", classmethod(lambda cls: PAIR))
    told: list[str] = []
    first = jars.local_jars(say=told.append)
    assert len(told) == 1
    assert jars.local_jars(say=told.append) == first
    assert len(told) == 1
    assert all(path.is_absolute() for path in first)
    assert len(ivy.read_text().split()) == 2


def test_failure_names_what_was_tried_and_leaves_nothing(ivy, monkeypatch):
    monkeypatch.setenv("PUBLISHED", "9.9.9")
    with pytest.raises(OutboxError, match=r"could not be resolved(.|\n)*2\.13:4\.4\.1: .*unresolved dependency"):
        jars.resolve(PAIR, jars.root() / PAIR.name)
    assert list(jars.root().iterdir()) == []


def test_killed_resolution_is_not_taken_for_complete(ivy, monkeypatch, tmp_path):
    begun = tmp_path / "begun"
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_sink.jars"],
        cwd=ROOT,
        env={**os.environ, "SLOW": str(begun)},
        start_new_session=True,
    )
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = list(jars.root().iterdir())
    assert [path.name.startswith(jars.PARTIAL) for path in left] == [True]

    jars.resolve(PAIR, jars.root() / PAIR.name)
    os.utime(left[0], (0, 0))
    other = Versions("4.1.0", "4.4.0")
    jars.resolve(other, jars.root() / other.name)
    assert {path.name for path in jars.root().iterdir()} == {PAIR.name, other.name}


def test_folder_that_another_process_made_first_is_kept(ivy):
    folder = jars.root() / PAIR.name
    jars.resolve(PAIR, folder)
    (folder / "theirs.jar").touch()
    jars.resolve(PAIR, folder)
    assert (folder / "theirs.jar").exists()
    assert [path.name for path in jars.root().iterdir()] == [PAIR.name]
