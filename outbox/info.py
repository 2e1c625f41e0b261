"""The info table: the one row in which an outbox remembers who it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from outbox.errors import SchemaError

if TYPE_CHECKING:
    from outbox.database import Session

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Info:
    """The info row as it was read."""

    schema_version: int
    source: str
    outbox_id: str
    stream_id: str | None
    deleted_through: int
    relayed_through: int
    leader: str | None
    lease_until: datetime | str | None
    lease_seconds_left: float | None
    server_id: str | None


def read_info(session: Session) -> Info:
    """The info row; `SchemaError` with the command to run when there is none."""
    command = f"outbox init --database {session.url} --outbox {session.table}"
    if session.value("installed") == 0:
        raise SchemaError(f"there is no out table {session.table} in {session.url}: run `{command}`")
    rows = session.query("info")
    if not rows:
        raise SchemaError(f"the info table of {session.table} is empty: run `{command}`")
    info = Info(*rows[0])
    if info.schema_version != SCHEMA_VERSION:
        raise SchemaError(
            f"out table {session.table} has schema version {info.schema_version}, this program needs {SCHEMA_VERSION}: "
            + ("run `outbox upgrade`" if info.schema_version < SCHEMA_VERSION else "install a newer outbox-connector")
        )
    return info
