"""A Delta table's name: a path, or a name in a catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from outbox.errors import UsageError

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
        if name.is_path and "://" not in text and not text.startswith("file:"):
            return cls(str(Path(name.text).absolute()))
        return name

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

    def beside(self, suffix: str) -> TableName:
        """Another table at the same place: `/lake/orders__dead_letters`."""
        if self.is_path:
            return TableName(f"{self.text}__{suffix}")
        *before, last = self.parts
        return TableName(".".join([*(_quoted(part) for part in before), _quoted(f"{last}__{suffix}")]))

    def __str__(self) -> str:
        return self.text


def _quoted(part: str) -> str:
    return "`" + part.replace("`", "``") + "`"
