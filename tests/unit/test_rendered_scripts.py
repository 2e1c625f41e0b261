"""What `--print` shows is whole: no name in braces and no parameter is left for somebody to fill in."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from cli.main import program
from outbox import schema
from outbox.database import DatabaseUrl, Session
from outbox.names import DIALECTS, OutTable
from outbox.queries import Migration, fill, migrations, statements, with_parameters

URLS = {"postgresql": "postgresql://owner@db/shop", "mysql": "mysql://owner@db/shop", "sqlite": "sqlite:///shop.db"}
GRANTS = ("--grant-writer", "web", "--grant-relay", "relay")


def assert_whole(script: str) -> None:
    assert script.strip()
    assert re.findall(r"\{\w*\}", script) == []
    assert with_parameters(script, "named")[1] == []


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(program, [*arguments, "--print"], env={"OUTBOX_DATABASE_URL": None})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("outbox", ["outbox", "app.outbox"])
def test_printed_init_and_uninstall_are_whole(dialect: str, outbox: str) -> None:
    if dialect == "sqlite" and outbox != "outbox":
        outbox = "another"  # it has no schemas
    place = ("--database", URLS[dialect], "--outbox", outbox)
    assert_whole(printed("init", *place))
    assert_whole(printed("uninstall", *place))
    if dialect != "sqlite":
        assert_whole(printed("init", *place, *GRANTS))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_printed_upgrade_from_any_version_is_whole(dialect: str) -> None:
    for migration in migrations(dialect)[:-1]:
        script = schema.render_upgrade(dialect, OutTable(), installed_version=migration.number, source="/shop")
        assert_whole(script)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_printed_upgrade_names_the_source_where_a_migration_does(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table made anew, as SQLite's migrations have to, writes the info row again."""
    first = migrations(dialect)[0].script
    monkeypatch.setattr(schema, "migrations", lambda _: (Migration(2, "0002_table_made_anew", first),))
    script = schema.render_upgrade(dialect, OutTable(), installed_version=1, source="/shop's")
    assert_whole(script)
    assert "'/shop''s'" in script


def test_upgrade_takes_version_and_source_from_the_database(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(DatabaseUrl.parse(sqlite_url), OutTable()) as session:
        first = migrations("sqlite")[0].script
        for statement in statements(fill(first, "sqlite", OutTable(), source_literal="'/old'")):
            session.run(statement)
    script = printed("upgrade", "--database", sqlite_url)
    assert script == schema.render_upgrade("sqlite", OutTable(), installed_version=1, source="/old")
    monkeypatch.setattr(schema, "migrations", lambda _: (Migration(2, "0002_source", "SELECT {source_literal}"),))
    assert "SELECT '/old'" in printed("upgrade", "--database", sqlite_url)
