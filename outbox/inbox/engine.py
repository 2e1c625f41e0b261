"""A SQLAlchemy engine for a database URL of ours, whose options SQLAlchemy does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox.database import connect

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outbox.database import DatabaseUrl

_DIALECTS = {"postgresql": "postgresql+psycopg://", "mysql": "mysql+pymysql://", "sqlite": "sqlite:///"}


def open_engine(url: DatabaseUrl, application: str) -> Engine:
    from sqlalchemy import QueuePool, create_engine

    def connect_with_transactions() -> Any:
        connection = connect(url, application)
        if url.dialect == "mysql":
            connection.autocommit(False)
        elif url.dialect == "sqlite":
            connection.isolation_level = "DEFERRED"
        else:
            connection.autocommit = False
        return connection

    return create_engine(_DIALECTS[url.dialect], creator=connect_with_transactions, poolclass=QueuePool)
