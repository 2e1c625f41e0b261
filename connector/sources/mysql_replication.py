"""Whether rows come into the out table by replication from another MySQL or MariaDB server.

On a replica nobody holds the lock that comes before an ID: a row of a lower ID may still be
under way from the primary when a higher one is there. `read_only` alone does not tell: on
MariaDB a replica is writable unless somebody says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox.database import Session


@dataclass(frozen=True, slots=True)
class ReplicationSource:
    """A server that this one is set up to replicate from."""

    name: str
    host: str
    # One thread is enough: the other one goes on where it was.
    is_running: bool
    # What the filters let through, by the names of the status: replicate_do_db and so on.
    filters: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        return f"{self.host} (connection {self.name!r})" if self.name else self.host

    def reaches(self, schema: str, table: str) -> bool:
        """Whether rows of a table come in: the first filter that knows it decides, as the server has it."""
        name = f"{schema}.{table}"
        databases, tables, wild = (self._filter(kind) for kind in ("do_db", "do_table", "wild_do_table"))
        rules = (
            # Under which name they come in is more than is worth to find out.
            (bool(self._filter("rewrite_db")), True),
            (bool(databases) and schema not in databases, False),
            (not databases and schema in self._filter("ignore_db"), False),
            (name in tables, True),
            (name in self._filter("ignore_table"), False),
            (any(_is_like(name, pattern) for pattern in wild), True),
            (any(_is_like(name, pattern) for pattern in self._filter("wild_ignore_table")), False),
        )
        return next((comes_in for knows_it, comes_in in rules if knows_it), not tables and not wild)

    def _filter(self, kind: str) -> tuple[str, ...]:
        return self.filters.get(f"replicate_{kind}", ())


def replication_sources(session: Session, version: str) -> list[ReplicationSource]:
    """Where this server replicates from. Needs REPLICA MONITOR (MariaDB) or REPLICATION CLIENT (MySQL)."""
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    block = "replication_mysql" if number >= (8, 0, 22) else "replication_mysql_old"
    if "mariadb" in version.lower():
        block = "replication_mariadb"
    found = [_source({name.lower(): value for name, value in row.items()}) for row in session.records(block)]
    # The members of a group have channels of their own; the group's primary is a primary.
    return [source for source in found if not source.name.startswith("group_replication_")]


def _source(status: dict[str, Any]) -> ReplicationSource:
    def first(*names: str) -> str:
        return next((str(status[name]) for name in names if status.get(name) is not None), "")

    threads = (
        first("replica_io_running", "slave_io_running"),
        first("replica_sql_running", "slave_sql_running"),
    )
    return ReplicationSource(
        first("connection_name", "channel_name"),
        first("source_host", "master_host"),
        any(thread.lower() not in ("no", "") for thread in threads),
        {
            name: tuple(part for part in str(value or "").split(",") if part)
            for name, value in status.items()
            if name.startswith("replicate_") and name.endswith(("_db", "_table"))
        },
    )


def _is_like(name: str, pattern: str) -> bool:
    """As LIKE: % for anything, _ for one letter, a backslash before one that stands for itself."""
    parts = re.findall(r"\\?.", pattern, flags=re.DOTALL)
    return (
        re.fullmatch("".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts), name) is not None
    )
