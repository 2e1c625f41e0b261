"""The program inside the test's own process, where Spark runs already."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def outbox_here(spark, capsys, monkeypatch, tmp_path) -> Callable[..., Any]:
    """Call it with a command line and the exit code to expect; the document of --json, or else all that was said."""
    from cli.main import run

    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        found = run(words)
        said = capsys.readouterr()
        assert found == code, (words, found, said)
        return json.loads(said.out) if "--json" in words and not code else said.out + said.err

    return call
