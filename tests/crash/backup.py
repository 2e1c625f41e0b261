"""A copy of an out table's database, and the database put back from it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.crash.outbox_case import OutboxCase


class Backup:
    """What the database was when this was made. `restore` may run while a relay does."""

    def __init__(self, case: OutboxCase) -> None:
        self._case = case
        self._copy: Any = _TAKE[case.dialect](case)

    def restore(self) -> None:
        _RESTORE[self._case.dialect](self._case, self._copy)


def _names(case: OutboxCase) -> tuple[str, str, str]:
    """The database, its copy, and a URL from which both can be handled."""
    name = case.database.database
    return name, f"{name}_copy", case.url.rsplit("/", 1)[0] + "/postgres"


def _take_postgresql(case: OutboxCase) -> None:
    name, copy, admin = _names(case)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{name}"')


def _restore_postgresql(case: OutboxCase, _: None) -> None:
    """The copy takes the name: every session is ended, as it is for a restore."""
    name, copy, admin = _names(case)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        connection.execute(f'ALTER DATABASE "{copy}" RENAME TO "{name}"')


def _take_mysql(case: OutboxCase) -> int:
    for name in ("outbox", "outbox_info"):
        case.execute(f"CREATE TABLE {name}_copy LIKE {name}", f"INSERT INTO {name}_copy SELECT * FROM {name}")
    return case.drawn() + 1


def _restore_mysql(case: OutboxCase, next_id: int) -> None:
    case.execute(
        f"ALTER TABLE outbox_copy AUTO_INCREMENT = {next_id}",
        "RENAME TABLE outbox TO outbox_gone, outbox_copy TO outbox, "
        "outbox_info TO outbox_info_gone, outbox_info_copy TO outbox_info",
    )


def _take_sqlite(case: OutboxCase) -> Path:
    copy = Path(case.database.path + ".copy")
    with closing(sqlite3.connect(case.database.path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _restore_sqlite(case: OutboxCase, copy: Path) -> None:
    copy.replace(case.database.path)


_TAKE = {"postgresql": _take_postgresql, "mysql": _take_mysql, "sqlite": _take_sqlite}
_RESTORE = {"postgresql": _restore_postgresql, "mysql": _restore_mysql, "sqlite": _restore_sqlite}
