"""What the relay does with SQLite's files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from connector.options import RelayOptions
from connector.sources import open_source
from outbox.database import DatabaseUrl
from outbox.names import OutTable
from outbox.schema import install


@pytest.mark.parametrize("link", ["", "to the file", "to the folder"])
@pytest.mark.parametrize(
    ("journal", "beside"), [("wal", "app.db-wal"), ("truncate", "app.db-journal"), ("persist", "app.db-journal")]
)
def test_every_file_that_a_commit_is_in_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str, beside: str, link: str
) -> None:
    """A commit is in the log, in the file, and in the journal that ended: wherever a link leads."""
    real = tmp_path / "real"
    real.mkdir()
    path = real / "app.db"
    sqlite3.connect(path).close()
    if link == "to the file":
        path = tmp_path / "link.db"
        path.symlink_to(real / "app.db")
    elif link == "to the folder":
        (tmp_path / "link").symlink_to(real)
        path = tmp_path / "link" / "app.db"
    url = DatabaseUrl.parse(f"sqlite:///{path}")
    install(url, OutTable())
    with closing(sqlite3.connect(path)) as writer:
        writer.execute(f"PRAGMA journal_mode = {journal}")
        writer.execute("PRAGMA synchronous = NORMAL")
        writer.execute("INSERT INTO outbox (type) VALUES ('a')")
        writer.commit()
        assert (real / beside).exists()
        source = open_source(RelayOptions(url, OutTable(), f"file://{tmp_path}/stream"))
        source.open()
        standing = source.standing()
        assert [len(part.events) for part in source.read(0, 10)] == [1]
        synced, sync = [], os.fsync

        def recorded(descriptor: int) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", recorded)
        source.make_durable(standing)
        source.close()
    assert set(synced) == {real / "app.db", real / beside, real}
