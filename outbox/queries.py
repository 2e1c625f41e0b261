"""The SQL of the product: named blocks in `sql/<dialect>/*.sql`.

A block starts at a line `-- name: its_name` and goes on to the next one. Names in braces
(`{table}`) are the outbox's quoted identifiers, `:name` is a parameter. In a block that is
a script, statements are parted by a line of `;;`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.names import OutTable

# Quoted text and comments come first, so that a colon inside them is never a parameter:
# an out table may be called "orders :new".
_PARAMETER = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | --[^\n]* | /\*.*?\*/ | (?<![:\w]):([a-z][a-z_0-9]*)""",
    re.VERBOSE | re.DOTALL,
)


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


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step: after it the schema has version `number`."""

    number: int
    name: str
    script: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """`sql/<dialect>/migrations/NNNN_what_it_does.sql`, by number."""
    paths = sorted((sql_folder() / dialect / "migrations").glob("[0-9]*.sql"))
    found = tuple(Migration(int(path.stem.split("_")[0]), path.stem, path.read_text("utf-8").strip()) for path in paths)
    assert [migration.number for migration in found] == list(range(1, len(found) + 1)), found
    return found


def block(dialect: str, name: str, table: OutTable, **more: str) -> str:
    """A block with the outbox's identifiers filled in, parameters still as `:name`.

    `more` are further names for its braces, already quoted by the caller.
    """
    return fill(blocks(dialect)[name], dialect, table, **more)


def fill(sql: str, dialect: str, table: OutTable, **more: str) -> str:
    """SQL with the names in braces replaced. What is filled in is not looked at again."""
    identifiers = table.identifiers(dialect) | more
    return re.sub(r"\{(\w+)\}", lambda match: identifiers[match[1]], sql)


def statements(script: str) -> list[str]:
    """The statements of a script block."""
    return [part.strip() for part in re.split(r"^;;\s*$", script, flags=re.MULTILINE) if part.strip()]


def with_parameters(sql: str, paramstyle: str) -> tuple[str, list[str]]:
    """The SQL in a driver's own parameter style, and the names in order of appearance.

    pyformat: `%(name)s` and doubled percent signs; named: `:name`; numeric_dollar: `$1`;
    format: `%s`, qmark: `?`, both to be filled in the order of the names.
    """
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        if paramstyle == "numeric_dollar":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return {"pyformat": f"%({name})s", "format": "%s", "qmark": "?"}.get(paramstyle, f":{name}")

    if paramstyle in ("pyformat", "format"):
        sql = sql.replace("%", "%%")
    return _PARAMETER.sub(place, sql), names


def with_integers(sql: str, **integers: int) -> str:
    """The SQL with whole numbers in place of its parameters."""
    return _PARAMETER.sub(lambda match: str(int(integers[match[1]])) if match[1] else match[0], sql)
