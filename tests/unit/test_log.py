"""The relay's log: what it shows, and what it never shows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cli import printing
from cli.log import FORMATS, configure

PASSWORD = 'hunter"2\\secret'
URL = f"postgresql://relay:{PASSWORD}@db/shop"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(printing, "_kept_secret", {PASSWORD})
    before = structlog.get_config()
    library = logging.getLogger("stream_store")
    handlers, propagate = library.handlers, library.propagate
    yield
    structlog.configure(**before)
    library.handlers, library.propagate = handlers, propagate


def connect(url: str, password: str) -> None:
    raise RuntimeError(f"cannot use {url} with password={password}")


def failure(url: str, password: str) -> Exception:
    try:
        connect(url, password)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("log_format", FORMATS)
def test_passwords_are_not_in_the_log(
    log_format: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTBOX_DEBUG", debug)
    configure(log_format)
    error = failure(URL, PASSWORD)
    structlog.get_logger().error(str(error), exc_info=error, path=Path(URL), error=error, urls=[URL], n=3)
    said = capsys.readouterr().err
    assert "hunter" not in said
    assert "secret" not in said
    assert "cannot use postgresql://relay:***@db/shop" in said
    assert ("in connect" in said) == (debug == "1")
    if log_format == "json":
        (line,) = said.splitlines()
        assert json.loads(line)["n"] == 3


def test_what_the_stream_store_says_is_in_the_format_of_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    logging.getLogger("stream_store.file.recovery").warning("cut %d bytes", 5)
    entry = json.loads(capsys.readouterr().err)
    assert (entry["event"], entry["level"]) == ("cut 5 bytes", "warning")
