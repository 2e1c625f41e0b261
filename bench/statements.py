"""What PostgreSQL's statements took, from pg_stat_statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

EXTENSION = "shared_preload_libraries=pg_stat_statements"

READ = """
SELECT query, calls, total_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of one database: how often, and how long on average and in all."""

    calls: int = 0
    total_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.calls if self.calls else 0.0


def create_extension(admin: psycopg.Connection) -> None:
    admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")


def reset(admin: psycopg.Connection) -> None:
    admin.execute("SELECT pg_stat_statements_reset()")


def count(admin: psycopg.Connection, url: str) -> int:
    """How many statements the database of this URL has run. `admin` must be in another database."""
    return sum(statement.calls for statement in read(admin, url).values())


def read(admin: psycopg.Connection, url: str) -> dict[str, Statement]:
    """The statements of the database of this URL, by their text on one line."""
    found: dict[str, Statement] = {}
    for query, calls, total_ms in admin.execute(READ, (url.rsplit("/", 1)[1],)).fetchall():
        text = _on_one_line(query)
        known = found.get(text, Statement())
        found[text] = Statement(known.calls + int(calls), known.total_ms + float(total_ms))
    return found


def compare(ours: dict[str, Statement], theirs: dict[str, Statement], names: tuple[str, str], most: int = 8) -> str:
    """A table of the statements that took the most time in `ours`, with the same of `theirs` beside them."""
    lines = [
        f"| statement | calls, {names[0]} | mean ms, {names[0]} | mean ms, {names[1]} | total ms, {names[0]} | total ms, {names[1]} |",
        "|---|---|---|---|---|---|",
    ]
    for query in sorted(ours, key=lambda query: -ours[query].total_ms)[:most]:
        mine, other = ours[query], theirs.get(query, Statement())
        shown = query if len(query) <= 90 else query[:89] + "…"
        lines.append(
            f"| `{shown}` | {mine.calls:,} | {mine.mean_ms:.3f} | {other.mean_ms:.3f} | {mine.total_ms:,.0f} | {other.total_ms:,.0f} |"
        )
    return "\n".join(lines)


def _on_one_line(query: str) -> str:
    text = re.sub(r"\s+", " ", re.sub(r"--[^\n]*", " ", query)).strip()
    if text.startswith("COPY"):
        # The server gives numbers the same name in every statement but this one.
        text = re.sub(r"\b\d+\b", "$n", text)
    return text.replace("|", "\\|")
