"""Keys of one or several columns, in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def same_key(left: str, right: str, key: Sequence[str]) -> str:
    """NULL equals NULL: a part of a composite key may be NULL."""
    return " AND ".join(f"{left}.{quoted(name)} <=> {right}.{quoted(name)}" for name in key)


def missing_key(key: Sequence[str]) -> str:
    """The condition that a row has no key at all."""
    return " AND ".join(f"{quoted(name)} IS NULL" for name in key)


def missing_part(key: Sequence[str]) -> str:
    """The condition that a row lacks some of these columns."""
    return "(" + " OR ".join(f"{quoted(name)} IS NULL" for name in key) + ")"
