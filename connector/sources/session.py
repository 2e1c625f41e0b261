"""A small session with the relay's settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outbox.database import Session
from outbox.errors import DatabaseUnavailable
from outbox.queries import blocks

if TYPE_CHECKING:
    from connector.options import RelayOptions


def open_session(options: RelayOptions, application: str, *, hurried: bool = False) -> Session:
    """A session in autocommit with the isolation and durability that the relay relies on.

    A hurried one gives up a lock that it cannot have within two seconds.
    """
    url = options.database
    if url.dialect == "sqlite" and not Path(url.path).exists():
        # SQLite would make an empty one.
        raise DatabaseUnavailable(f"there is no database file {url.path}: has the application made it yet?")
    session = Session(options.database, options.table, application=application)
    try:
        for settings in ("session_settings", "short_lock_waits") if hurried else ("session_settings",):
            if settings in blocks(session.dialect):
                session.query(settings)
    except BaseException:
        session.close()
        raise
    return session
