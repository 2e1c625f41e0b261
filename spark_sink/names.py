"""A Delta table's name: a path, or a name in a catalog."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from outbox.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAIN = re.compile(r"\w+")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class TableName:
    """`/lake/orders`, `s3://bucket/orders`, or `main.sales.orders`."""

    text: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        text = text.strip()
        if not text or any(ord(character) < 32 for character in text):
            raise UsageError(
                f"{text!r} names no table: write a path (/lake/orders) or a catalog name (main.sales.orders)"
            )
        name = cls(text if "/" not in text else text.rstrip("/"))
        if not name.is_path and not 1 <= len(name.parts) <= 3:
            raise UsageError(f"{text!r}: a catalog name has one to three parts, as in main.sales.orders")
        return cls(_tidied(name.text)) if name.is_path else name

    @property
    def is_path(self) -> bool:
        return "/" in self.text or self.text.startswith("file:")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of a catalog name, without their quotes."""
        found = _PART.findall(self.text)
        if "".join(self.text.split(".")) == "" or not found:
            raise UsageError(f"{self.text!r} names no table")
        return tuple((quoted.replace("``", "`") or plain).strip() for quoted, plain in found)

    @property
    def sql(self) -> str:
        """The name as Spark SQL takes it, quoted."""
        if self.is_path:
            return "delta." + _quoted(self.text)
        return ".".join(_quoted(part) for part in self.parts)

    @property
    def folder(self) -> Path | None:
        """The folder, where it is one of this machine."""
        text = self.text
        if text.startswith("file:"):
            return Path(unquote("/" + text.removeprefix("file:").lstrip("/")))
        return Path(text) if self.is_path and "://" not in text else None

    @property
    def identity(self) -> str:
        """The name by which others know the table: the same, whichever way it is spelled."""
        if self.is_path:
            return str(self.folder or self.text)
        return ".".join(part if _PLAIN.fullmatch(part) else _quoted(part) for part in self.parts)

    def beside(self, suffix: str) -> TableName:
        """Another table at the same place: `/lake/orders__dead_letters`."""
        if self.is_path:
            return TableName(f"{self.text}__{suffix}")
        *before, last = self.parts
        return TableName(".".join([*(_quoted(part) for part in before), _quoted(f"{last}__{suffix}")]))

    def __str__(self) -> str:
        return self.text


def qualified(spark: SparkSession, name: TableName) -> str:
    """The identity of a table, with the catalog and the schema that a session adds to a short name."""
    if name.is_path or len(name.parts) == 3:
        return name.identity
    current = [spark.catalog.currentCatalog(), spark.catalog.currentDatabase()]
    around = [_quoted(part) for part in current[: 3 - len(name.parts)]]
    return TableName(".".join([*around, name.sql])).identity


def _tidied(path: str) -> str:
    """A path without `..`, `.` and doubled slashes. By its text alone, as Hadoop does it: a link is not followed."""
    if path.startswith("file:"):
        return "file://" + posixpath.normpath("/" + path.removeprefix("file:").lstrip("/"))
    scheme, mark, rest = path.partition("://")
    if not mark:
        return posixpath.normpath(Path(path).absolute())
    place, slash, inside = rest.partition("/")
    return f"{scheme}://{place}" + (posixpath.normpath(slash + inside.lstrip("/")) if inside else "")


def _quoted(part: str) -> str:
    return "`" + part.replace("`", "``") + "`"
