"""How the program speaks: tables for people, one JSON document for programs, errors on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

import click

# Wide enough that nothing is cut off when the output goes into a pipe or a file.
PIPE_WIDTH = 240


def print_json(document: Any) -> None:
    """One document, indented, with dataclasses and times as plain JSON."""
    click.echo(json.dumps(plain(document), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: Any = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        # What a report concludes is a property of it, and part of its contract.
        conclusion = {"ok": getattr(value, "ok")} if isinstance(getattr(type(value), "ok", None), property) else {}  # noqa: B009
        found = {**conclusion, **found}
    elif isinstance(value, Mapping):
        found = {str(key): plain(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        found = [plain(item) for item in value]
    elif isinstance(value, set | frozenset):
        found = [plain(item) for item in sorted(value)]
    elif value is None or isinstance(value, int | float | bool):
        found = value
    elif isinstance(value, datetime):
        found = value.isoformat()
    else:
        found = redacted(str(value.value if isinstance(value, Enum) else value))
    return found


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line."""
    print_table(None, [(name, shown(value)) for name, value in facts])


def print_table(header: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> None:
    """Columns for people. Cells are taken as they are: no markup, no control characters."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if header else None, show_header=header is not None, pad_edge=False)
    table_rows = [[printable(cell) for cell in row] for row in rows]
    for position in range(len(header) if header else max((len(row) for row in table_rows), default=0)):
        title = header[position] if header else ""
        table.add_column(title, style="bold" if position == 0 and not header else None, overflow="fold")
    for row in table_rows:
        table.add_row(*(Text(cell) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else PIPE_WIDTH, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    click.echo("".join(line.rstrip() + "\n" for line in drawn.get().splitlines()), nl=False)


def shown(value: Any) -> str:
    """A value for people."""
    if value is None or value in ((), []):
        text = "–"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.3f}".rstrip("0").rstrip(".")
    elif isinstance(value, datetime):
        text = value.isoformat(sep=" ", timespec="seconds")
    elif isinstance(value, list | tuple):
        text = ", ".join(shown(item) for item in value)
    else:
        text = redacted(str(value))
    return text


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """`0.25 s`, `14 min`, `3.5 h`, `2 d`."""
    for limit, unit_seconds, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(seconds) < limit:
            return f"{seconds / unit_seconds:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"


def size(size_bytes: int) -> str:
    """`17 B`, `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def say(text: str) -> None:
    """A line for people on stderr, where it cannot get between the data."""
    write_error(printable(redacted(text)) + "\n")


def write_error(text: str) -> None:
    """Text on stderr, if it can be written: what the program does and answers does not hang on it."""
    # ValueError: somebody has closed it.
    with contextlib.suppress(OSError, ValueError):
        click.echo(text, err=True, nl=False)


def print_error(error: BaseException, message: str) -> None:
    """`error: …` and nothing else, but for the traceback that OUTBOX_DEBUG=1 asks for."""
    if os.environ.get("OUTBOX_DEBUG", "0") not in ("", "0"):
        write_error(redacted("".join(traceback.format_exception(error))))
    # Lines that a driver has indented belong to the one before.
    lines = re.sub(r"\s*\n\s+", " ", message.replace("\t", " ")).splitlines()
    write_error("error: " + "\n".join(printable(redacted(line)) for line in lines) + "\n")


def printable(text: str) -> str:
    """The text without anything that a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# Ends at white space, so that a text around the URL stays readable.
_PASSWORD = re.compile(r"(://[^:/\s]*):[^\s]*@")
_SECRET = re.compile(r"(?i)\b((?:password|passwd|sslpassword|token|secret|pem)=)[^&\s]+")


_kept_secret: set[str] = set()


def keep_secret(password: str) -> None:
    """Never print this, not even when a driver quotes it: libpq does, of a URL it cannot read."""
    # A shorter one would take too much of every text with it.
    if len(password) >= 3:
        _kept_secret.add(password)


def redacted(text: str) -> str:
    """A text, such as a driver's message, without the passwords in it."""
    shown = _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
    for password in _kept_secret:
        shown = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "***", shown)
    return shown
