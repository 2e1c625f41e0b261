"""The examples run, and show what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import program

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=EXAMPLES.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_orders_example_shows_the_committed_order_and_not_the_rolled_back_one() -> None:
    lines = [json.loads(line) for line in run("examples/orders.py").splitlines()]
    assert [(line["subject"], line["data"]) for line in lines] == [("o-17", {"total": 250})]


def test_batches_example_follows_the_chain(sqlite_url: str, stream_url: str) -> None:
    program.run("init", "--database", sqlite_url)
    for number in range(3):
        program.run("emit", "--database", sqlite_url, "--type", "order.placed", "--data", str(number))
    program.run("relay", "--database", sqlite_url, "--stream", stream_url, "--once")
    assert "IDs 1 to 3: order.placed" in run("examples/batches.py", stream_url)


def test_pipeline_example_proves_every_effect_while_its_processes_are_killed() -> None:
    said = run("examples/pipeline.py", "--orders", "20", "--kills", "4")
    assert said.count("kill ") == 4
    assert "20 orders, each matched, settled and booked exactly once; the balance is 210" in said
