"""The program inside the test's own process, where Spark runs already."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def outbox_here(spark, capsys, monkeypatch, tmp_path) -> Iterator[Callable[..., Any]]:
    """Call it with a command line and the exit code to expect; the document of --json, or else all that was said."""
    from cli.main import run

    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        found = run(words)
        said = capsys.readouterr()
        assert found == code, (words, found, said)
        return json.loads(said.out) if "--json" in words and not code else said.out + said.err

    # The sink takes them for its own.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)
