"""Transactional outbox: events that commit with the application's own changes.

    outbox = Outbox()
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.emit(session, type="order.paid", subject=str(order.id), data={"total": 12})

Importing this package loads no driver, no Arrow and no SQLAlchemy until they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.errors import EmitError, InvalidEvent, NoTransaction, OutboxError
from outbox.event import Event
from outbox.memory import MemoryOutbox
from outbox.names import OutTable
from outbox.outbox import Outbox

if TYPE_CHECKING:
    from outbox.batch import EventBatch
    from outbox.inbox import Inbox
    from outbox.schema import install
    from outbox.sqlalchemy_table import table

    __version__: str

__all__ = [
    "Outbox",
    "MemoryOutbox",
    "Inbox",
    "Event",
    "EventBatch",
    "OutTable",
    "table",
    "install",
    "OutboxError",
    "EmitError",
    "InvalidEvent",
    "NoTransaction",
    "__version__",
]

# Where the heavy names live: Arrow and SQLAlchemy are loaded when one of them is first used.
_LAZY = {
    "EventBatch": "outbox.batch",
    "Inbox": "outbox.inbox",
    "install": "outbox.schema",
    "table": "outbox.sqlalchemy_table",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("outbox-connector")
        except PackageNotFoundError:  # a source checkout that is not installed
            return "0+source"
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
