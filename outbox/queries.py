"""The SQL of the product: named blocks in `sql/<dialect>/*.sql`.

A block starts at a line `-- name: its_name` and goes on to the next one. Names in braces
(`{table}`) are the outbox's quoted identifiers, `:name` is a parameter. In a block that is
a script, statements are parted by a line of `;;`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.names import OutTable

_PARAMETER = re.compile(r"(?<![:\w]):([a-z][a-z_0-9]*)")


def sql_folder() -> Path:
    """`outbox/sql` in an installed wheel, `sql` at the top of a source checkout."""
    installed = Path(__file__).parent / "sql"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "sql"


@cache
def blocks(dialect: str) -> dict[str, str]:
    """Every named block of a dialect. A name stands once in all its files."""
    found: dict[str, str] = {}
    for path in sorted((sql_folder() / dialect).glob("*.sql")):
        parts = re.split(r"^-- name: (\w+)\s*$", path.read_text("utf-8"), flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            assert name not in found, f"{path}: block {name} stands twice"
            found[name] = body.strip()
    return found


def block(dialect: str, name: str, table: OutTable) -> str:
    """A block with the outbox's identifiers filled in, parameters still as `:name`."""
    identifiers = table.identifiers(dialect)
    return re.sub(r"\{(\w+)\}", lambda match: identifiers[match[1]], blocks(dialect)[name])


def statements(script: str) -> list[str]:
    """The statements of a script block."""
    return [part.strip() for part in re.split(r"^;;\s*$", script, flags=re.MULTILINE) if part.strip()]


def with_parameters(sql: str, paramstyle: str) -> tuple[str, list[str]]:
    """The SQL in a driver's own parameter style, and the names in order of appearance.

    pyformat: `%(name)s` and doubled percent signs; named: `:name`; numeric_dollar: `$1`.
    """
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if paramstyle == "numeric_dollar":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return f"%({name})s" if paramstyle == "pyformat" else f":{name}"

    if paramstyle == "pyformat":
        sql = sql.replace("%", "%%")
    return _PARAMETER.sub(place, sql), names
