"""The names of an outbox's objects in the database, quoted by the dialect's own rule."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass

from outbox.errors import UsageError

DIALECTS = ("postgresql", "mysql", "sqlite")
# The longest suffix that is added to the table's name is "_immutable"; MySQL allows 64
# characters and PostgreSQL 63 bytes for an identifier.
NAME_BYTES_MAX = 50
# A schema's name gets no suffix, so it may be as long as PostgreSQL allows.
SCHEMA_BYTES_MAX = 63


@dataclass(frozen=True, slots=True)
class OutTable:
    """The out table `name`, in `schema` or in the connection's default schema."""

    name: str = "outbox"
    schema: str | None = None

    def __post_init__(self) -> None:
        for part, limit_bytes in ((self.name, NAME_BYTES_MAX), (self.schema, SCHEMA_BYTES_MAX)):
            if part is None:
                continue
            if not part or len(part.encode()) > limit_bytes or re.search(r"[\x00-\x1f\x7f\\]", part):
                raise UsageError(
                    f"{part!r} cannot name an out table or its schema: "
                    f"use 1 to {limit_bytes} bytes without control characters and backslashes"
                )

    @classmethod
    def parse(cls, text: str) -> OutTable:
        """`outbox`, `schema.outbox`; a part with a dot in it goes in double quotes."""
        parts = re.findall(r'"(?:[^"]|"")+"|[^."]+|\.', text)
        plain = [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts if part != "."]
        if (
            "".join(parts) != text
            or parts[1:2] not in ([], ["."])
            or len(parts) != 2 * len(plain) - 1
            or len(plain) > 2
        ):
            raise UsageError(f'{text!r} is not a table name: write NAME or SCHEMA.NAME, with "quotes" around odd parts')
        return cls(plain[-1], plain[0] if len(plain) == 2 else None)

    def __str__(self) -> str:
        # Odd parts in quotes, so that `parse` reads back what is shown.
        shown = [quote(part, "ansi") if set(part) & set('."') else part for part in (self.schema, self.name) if part]
        return ".".join(shown)

    @property
    def source(self) -> str:
        """The events' CloudEvents `source` when none is given: `/outbox`, `/app/outbox`."""
        parts = [part for part in (self.schema, self.name) if part]
        return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)

    def quoted(self, dialect: str, suffix: str = "") -> str:
        """The qualified, quoted name of the table, or of its companion with `suffix`."""
        if dialect == "sqlite" and self.schema:
            # An attached database would also need the name without it, in triggers.
            raise UsageError(f"SQLite has no schemas: write {self.name!r} without {self.schema!r} in front")
        if dialect == "mysql":
            _refuse_beyond_bmp(self)
        parts = [part for part in (self.schema, self.name + suffix) if part]
        return ".".join(quote(part, dialect) for part in parts)

    def identifiers(self, dialect: str) -> dict[str, str]:
        """What the blocks of `sql/` may name in braces."""
        return {
            "table": self.quoted(dialect),
            "info": self.quoted(dialect, "_info"),
            "lag": self.quoted(dialect, "_lag"),
            "emit": self.quoted(dialect, "_emit"),
            "immutable": self.quoted(dialect, "_immutable"),
            "parked": self.quoted(dialect, "_parked"),
            "orders": self.quoted(dialect, "_orders"),
            # PostgreSQL names the sequence of an identity column so; `check` looks.
            "sequence": self.quoted(dialect, "_id_seq"),
            "sequence_literal": literal(self.quoted(dialect, "_id_seq")),
            "table_literal": literal(self.quoted(dialect)),
            "info_literal": literal(self.quoted(dialect, "_info")),
            "lag_literal": literal(self.quoted(dialect, "_lag")),
            "emit_literal": literal(self.quoted(dialect, "_emit")),
            "parked_literal": literal(self.quoted(dialect, "_parked")),
            "name_literal": literal(self.name),
            "schema_literal": literal(self.schema) if self.schema else "NULL",
            "schema": quote(self.schema, dialect) if self.schema else "",
        }


def _refuse_beyond_bmp(table: OutTable) -> None:
    """MySQL and MariaDB keep identifiers in a three-byte UTF-8, which has no place for an emoji."""
    for part in (table.schema, table.name):
        beyond = [character for character in part or "" if ord(character) > 0xFFFF]
        if beyond:
            raise UsageError(
                f"{part!r} cannot name an out table or its schema on MySQL and MariaDB: their names have no characters "
                f"beyond U+FFFF, and {beyond[0]!r} is U+{ord(beyond[0]):X}; choose another name"
            )


def quote(identifier: str, dialect: str) -> str:
    """One identifier in the dialect's quotes."""
    mark = "`" if dialect == "mysql" else '"'
    return mark + identifier.replace(mark, mark * 2) + mark


def literal(text: str) -> str:
    """A string literal that means the same in all three dialects.

    MySQL takes a backslash for an escape in its default mode, so it is refused.
    """
    if "\\" in text:
        raise UsageError(f"{text!r} cannot name an out table: it has a backslash")
    return "'" + text.replace("'", "''") + "'"
