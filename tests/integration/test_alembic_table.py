"""The SQLAlchemy Table is the schema that the installer makes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect, select, text

import outbox
from outbox import Outbox, OutTable, install
from outbox.database import DatabaseUrl
from tests.integration.targets import sqlalchemy_url, stored


def describe(engine: Engine, name: str, schema: str | None = None) -> dict[str, Any]:
    """All that SQLAlchemy can find out about a table, in a form that compares."""
    inspector = inspect(engine)
    columns = [
        {**column, "type": column["type"].compile(engine.dialect)} for column in inspector.get_columns(name, schema)
    ]
    if engine.dialect.name == "sqlite":
        for column in columns:
            # SQLAlchemy says NOT NULL where INTEGER PRIMARY KEY already means it.
            column["nullable"] = column["nullable"] and not column["primary_key"]
    checks = sorted(
        re.sub(r"[\s()`\"]", "", check["sqltext"]).lower() for check in inspector.get_check_constraints(name, schema)
    )
    described: dict[str, Any] = {
        "columns": columns,
        "checks": checks,
        "primary key": inspector.get_pk_constraint(name, schema),
        "indexes": inspector.get_indexes(name, schema),
        "unique": inspector.get_unique_constraints(name, schema),
    }
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            options = "SELECT relname, unnest(reloptions) FROM pg_class WHERE relname = :name ORDER BY 2"
            described["storage"] = [tuple(row) for row in connection.execute(text(options), {"name": name})]
        elif engine.dialect.name == "mysql":
            described["options"] = inspector.get_table_options(name, schema)
        else:
            sql = connection.execute(
                text("SELECT sql FROM sqlite_schema WHERE name = :name"), {"name": name}
            ).scalar_one()
            described["autoincrement"] = "AUTOINCREMENT" in sql
    return described


def fresh(request: pytest.FixtureRequest, database: str, tmp_path: Any) -> str:
    """A second database of the same kind."""
    from tests.servers import mariadb, postgresql

    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'other.db'}"
    admin = request.getfixturevalue(f"{database}_admin_url")
    return (postgresql if database == "postgresql" else mariadb).fresh_database(admin)


@pytest.mark.parametrize("name", ["outbox", "Odd name"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql", "sqlite"])
def test_table_is_what_the_installer_makes(request, tmp_path, database, name):
    installed_url = request.getfixturevalue(f"{database}_url")
    made_url = fresh(request, database, tmp_path)
    install(DatabaseUrl.parse(installed_url), OutTable(name))
    installed, made = create_engine(sqlalchemy_url(installed_url)), create_engine(sqlalchemy_url(made_url))
    metadata = MetaData()
    table = outbox.table(metadata, name)
    metadata.create_all(made)
    for each in (name, f"{name}_info"):
        assert describe(made, each) == describe(installed, each)
    assert [column.name for column in table.columns] == [
        column["name"] for column in describe(installed, name)["columns"]
    ]
    # `outbox init` completes what a migration has made, and the outbox works.
    install(DatabaseUrl.parse(made_url), OutTable(name))
    with made.begin() as connection:
        Outbox(name).emit(connection, type="t", data={"a": 1})
        assert connection.execute(select(table.c.type)).all() == [("t",)]
    assert [row[:3] for row in stored(made_url, OutTable(name))] == [("t", None, '{"a":1}')]
    installed.dispose()
    made.dispose()


def test_table_in_a_schema(postgresql_url):
    install(DatabaseUrl.parse(postgresql_url), OutTable("events", "app"))
    engine = create_engine(sqlalchemy_url(postgresql_url))
    metadata = MetaData()
    table = outbox.table(metadata, "events", "app")
    assert set(metadata.tables) == {"app.events", "app.events_info"}
    with engine.begin() as connection:
        Outbox("events", schema="app").emit(connection, type="t")
        assert connection.execute(select(table.c.type)).all() == [("t",)]
    engine.dispose()


def test_name_that_cannot_be_one_is_refused():
    with pytest.raises(outbox.OutboxError, match="cannot name"):
        outbox.table(MetaData(), "x" * 60)
