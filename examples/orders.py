"""An order and its event in one transaction, with SQLAlchemy; then the relay, then the stream.

    python examples/orders.py

Everything is in a temporary folder: a SQLite database and a stream. On a server only the URL
differs, and the relay is a daemon (`outbox relay`) instead of one call.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import Outbox, OutTable, install
from outbox.database import DatabaseUrl


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'shop.db'}"
        stream = f"file://{Path(folder) / 'stream'}"
        install(DatabaseUrl.parse(url), OutTable())  # what `outbox init` does
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        outbox = Outbox()

        with Session(engine) as session, session.begin():
            session.add(Order(id="o-17", total=250))
            outbox.emit(session, type="order.placed", subject="o-17", data={"total": 250})

        # This one is never heard of: its transaction rolls back.
        with Session(engine) as session:
            session.add(Order(id="o-18", total=1))
            outbox.emit(session, type="order.placed", subject="o-18", data={"total": 1})
            session.rollback()

        program = [sys.executable, "-m", "cli.main"]
        subprocess.run([*program, "relay", "--database", url, "--stream", stream, "--once"], check=True)
        subprocess.run([*program, "tap", "--stream", stream], check=True)


if __name__ == "__main__":
    main()
