"""Fixtures of the relay's crash tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.outbox_case import OutboxCase, quick_standby

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quick_standby"]

# MySQL itself needs Docker or a URL; the matrix is too large to be skipped line by line.
HAS_MYSQL = bool(os.environ.get("OUTBOX_TEST_MYSQL_URL")) or Path("/var/run/docker.sock").exists()
SERVERS = ["postgresql", "mariadb", *(["mysql"] if HAS_MYSQL else [])]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a killed process leaves its files: in memory where that can be had, a SIGKILL does not mind."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="outbox-") as made:
        yield Path(made)


def database_of(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    return f"sqlite:///{folder / 'app.db'}" if kind == "sqlite" else str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture(params=[*SERVERS, "sqlite"])
def case(request: pytest.FixtureRequest, folder: Path) -> OutboxCase:
    """An outbox on each kind of database."""
    return OutboxCase(database_of(request, request.param, folder), folder)


@pytest.fixture(params=SERVERS)
def server_case(request: pytest.FixtureRequest, folder: Path) -> OutboxCase:
    """An outbox on each kind of database that is a server."""
    return OutboxCase(database_of(request, request.param, folder), folder)


@pytest.fixture
def sqlite_case(request: pytest.FixtureRequest, folder: Path) -> OutboxCase:
    """An outbox for what does not depend on the database."""
    return OutboxCase(database_of(request, "sqlite", folder), folder)


@pytest.fixture
def postgresql_case(request: pytest.FixtureRequest, folder: Path) -> OutboxCase:
    return OutboxCase(database_of(request, "postgresql", folder), folder)


@pytest.fixture
def mariadb_case(request: pytest.FixtureRequest, folder: Path) -> OutboxCase:
    return OutboxCase(database_of(request, "mariadb", folder), folder)
