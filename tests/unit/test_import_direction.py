"""Who may import whom (DESIGN.md, section 1), read off the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "outbox": set(),
    "stream_store": {"outbox"},
    "connector": {"outbox", "stream_store"},
    "spark_sink": {"outbox", "stream_store"},
    "pyspark_outbox": {"spark_sink"},
    "cli": {"outbox", "stream_store", "connector", "spark_sink"},
}
SOURCES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


def imported_packages(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it, for typing only or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(path.relative_to(ROOT).parts[0] if node.level else str(node.module).split(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found |= {
                argument.value.split(".")[0]
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            }
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_package_imports_only_what_it_may(path):
    package = path.relative_to(ROOT).parts[0]
    forbidden = imported_packages(path) & (set(ALLOWED) | {"tests", "bench", "examples"}) - ALLOWED[package] - {package}
    assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_every_package_has_sources():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(ALLOWED)
