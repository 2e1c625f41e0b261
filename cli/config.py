"""outbox.toml: defaults for every command, and a table `[[outbox]]` for each outbox.

    delete_after = "24h"                  # a default for all of them

    [[outbox]]
    name = "shop.outbox"                  # the out table; "outbox" when left out
    database = "${SHOP_DATABASE_URL}"     # from the environment, so that no password is here
    stream = "file:///var/lib/outbox/shop"

    [[outbox]]
    name = "billing_outbox"
    database = "mysql://relay@db/billing"
    stream = "file:///var/lib/outbox/billing"
    on_blocker = "terminate after 5m"

    [[outbox.table]]                      # a Delta table of the outbox above: see `outbox sink`
    table = "/lake/invoices"
    mode = "upsert"
    key = ["invoice"]
    types = ["invoice.*"]
    schema = "invoice string, total decimal(10,2)"
    expect = {"positive total" = "total > 0"}

A mistake is an error that names the file, the line and the key; a key that is not known is
a mistake.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# What an outbox can be told, here or by a flag or the environment, and the type of it.
KEYS: dict[str, type] = {
    "name": str,
    "database": str,
    "stream": str,
    "source": str,
    "delete_after": str,
    "on_blocker": str,
    "fence": str,
    "batch_rows": int,
    "idle_poll": str,
    "lease": str,
    "retain": str,
}
# What a table of an outbox can be told.
TABLE_KEYS: dict[str, type] = {
    "table": str,
    "mode": str,
    "types": list,
    "key": list,
    "schema": str,
    "evolve": bool,
    "select": list,
    "deletes": str,
    "partition_by": list,
    "cluster_by": list,
    "expect": dict,
    "on_expect": str,
    "dead_letters": str,
    "properties": dict,
}
# Makes sense for the whole program only.
PROGRAM_KEYS: dict[str, type] = {"log_format": str}

_TYPE_NAMES = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    list: 'a list of texts, as in ["a", "b"]',
    dict: 'names and texts, as in {"a" = "b"}',
}


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who gave it, for the error that names both."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says: defaults, and one mapping for each `[[outbox]]`, defaults included."""

    path: Path | None
    defaults: Mapping[str, Given]
    outboxes: tuple[Mapping[str, Given], ...]
    # For each outbox, its `[[outbox.table]]`s.
    tables: tuple[tuple[Mapping[str, Given], ...], ...] = ()


EMPTY = Config(None, {}, ())


def read_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check a whole file."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}: --config and OUTBOX_CONFIG name an outbox.toml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # tomllib's message ends with the line and the column.
        raise UsageError(f"{path}: this is not TOML: {error}") from None
    return _Reader(path, text.splitlines(), environ).config(document)


class _Reader:
    """One file on its way from TOML to values that know their line."""

    def __init__(self, path: Path, lines: list[str], environ: Mapping[str, str]) -> None:
        self._path = path
        self._lines = lines
        self._environ = environ

    def config(self, document: dict[str, Any]) -> Config:
        tables = document.pop("outbox", [])
        known = {key: kind for key, kind in (KEYS | PROGRAM_KEYS).items() if key != "name"}
        defaults = self._values(document, known, None)
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise UsageError(f"{self._at(None, 'outbox')}: write [[outbox]], in double brackets, once for each outbox")
        below = tuple(self._tables(table.pop("table", []), position) for position, table in enumerate(tables))
        outboxes = tuple({**defaults, **self._values(table, KEYS, position)} for position, table in enumerate(tables))
        self._refuse_doubles(outboxes)
        return Config(self._path, defaults, outboxes, below)

    def _tables(self, tables: Any, position: int) -> tuple[Mapping[str, Given], ...]:
        """The Delta tables of one outbox."""
        at = self._at(position, "table")
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise UsageError(
                f"{at}: write [[outbox.table]], in double brackets, once for each Delta table of the outbox"
            )
        found = tuple(self._values(table, TABLE_KEYS, position) for table in tables)
        for each in found:
            if "table" not in each:
                raise UsageError(f'{at}: an [[outbox.table]] needs table = "…", a path or a catalog name')
        return found

    def _values(self, table: dict[str, Any], known: Mapping[str, type], position: int | None) -> dict[str, Given]:
        given = {}
        for key, value in table.items():
            at = self._at(position, key)
            if key not in known:
                raise UsageError(f"{at}: there is no key {key!r}{did_you_mean(key, known)}")
            # A bool is an int in Python, not in TOML.
            fits = isinstance(value, known[key]) and isinstance(value, bool) == (known[key] is bool)
            inside = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
            if not fits or not all(isinstance(each, str) for each in inside):
                raise UsageError(f"{at}: {key} has to be {_TYPE_NAMES[known[key]]}")
            given[key] = Given(self._expanded(key, value, at), f"{at}: {key}")
        return given

    def _expanded(self, key: str, value: Any, at: str) -> Any:
        """URLs may take their parts, such as a password, from the environment."""

        def replace(match: re.Match[str]) -> str:
            if match[1] not in self._environ:
                raise UsageError(f"{at}: {key} names ${{{match[1]}}}, which the environment does not have")
            return self._environ[match[1]]

        return re.sub(r"\$\{(\w+)\}", replace, str(value)) if key in ("database", "stream", "table") else value

    def _refuse_doubles(self, outboxes: Iterable[Mapping[str, Given]]) -> None:
        """One out table, one stream: a second outbox with either of them is a slip."""
        seen: dict[tuple[Any, ...], str] = {}
        for position, given in enumerate(outboxes):
            name = given["name"].value if "name" in given else "outbox"
            for what, key in (
                ("out table", ("database", given["database"].value, name) if "database" in given else None),
                ("stream", ("stream", given["stream"].value) if "stream" in given else None),
            ):
                at = f"{self._path}:{self._line(position, None)}"
                if key is not None and seen.setdefault(key, at) != at:
                    raise UsageError(f"{at}: the outbox at {seen[key]} has the same {what}; each needs its own")

    def _at(self, position: int | None, key: str) -> str:
        return f"{self._path}:{self._line(position, key)}"

    def _line(self, position: int | None, key: str | None) -> int:
        """The line of a key in the `position`th `[[outbox]]` (None: before any table)."""
        headers = [n for n, line in enumerate(self._lines, 1) if re.match(r"\s*\[", line)]
        own = [n for n in headers if re.match(r"\s*\[\[\s*[\"']?outbox[\"']?\s*\]\]", self._lines[n - 1])]
        start = 0 if position is None or position >= len(own) else own[position]
        if key is None:
            return max(start, 1)
        spelled = re.compile(rf"\s*(?:\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
        for number in range(start + 1, len(self._lines) + 1):
            if spelled.match(self._lines[number - 1]):
                return number
            if position is not None and number in headers:
                break
        return max(start, 1)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about a word that nobody knows."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else f": known are {', '.join(known)}"
