"""The info table: the one row in which an outbox remembers who it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.database import is_driver_error
from outbox.errors import OutboxError, SchemaError

if TYPE_CHECKING:
    from datetime import datetime

    from outbox.database import Session

SCHEMA_VERSION = 2


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
    try:
        rows = session.query("info")
    except Exception as error:
        if isinstance(error, OutboxError) or not is_driver_error(error):
            raise
        # An older layout lacks a column: then its version says what to do.
        _refuse_other_version(session, int(session.query("identity")[0][0]))
        raise
    if not rows:
        raise SchemaError(f"the info table of {session.table} is empty: run `{command}`")
    info = Info(*rows[0])
    _refuse_other_version(session, info.schema_version)
    return info


def _refuse_other_version(session: Session, version: int) -> None:
    if version != SCHEMA_VERSION:
        raise SchemaError(
            f"out table {session.table} has schema version {version}, this program needs {SCHEMA_VERSION}: "
            + ("run `outbox upgrade`" if version < SCHEMA_VERSION else "install a newer outbox-connector")
        )
