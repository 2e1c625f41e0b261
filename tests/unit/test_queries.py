"""The SQL blocks: found, filled in, and put into each driver's parameter style."""

from __future__ import annotations

import re

import pytest

from outbox.info import SCHEMA_VERSION
from outbox.names import DIALECTS, OutTable
from outbox.queries import block, blocks, fill, migrations, sql_folder, statements, with_integers, with_parameters

HOSTILE = OutTable("odd :after %(x)s {info} ' \" `")
# Filled in by the installer and the grants, beside the names of the outbox.
MORE = {"schema_version": "1", "source_literal": "'/x'", "role": '"r"', "role_literal": "'r'", "every_table": "*"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_block_of_every_dialect_can_be_filled_in(dialect: str) -> None:
    for name in blocks(dialect):
        filled = block(dialect, name, OutTable("out"), **MORE)
        assert not re.search(r"\{\w+\}", filled), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_block_names_stand_once_in_all_files_of_a_dialect(dialect: str) -> None:
    names = [
        name
        for path in (sql_folder() / dialect).glob("*.sql")
        for name in re.findall(r"^-- name: (\w+)\s*$", path.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_numbered_without_a_gap_up_to_the_current_version(dialect: str) -> None:
    assert [migration.number for migration in migrations(dialect)] == list(range(1, SCHEMA_VERSION + 1))
    for migration in migrations(dialect)[1:]:
        assert f"SET schema_version = {migration.number}" in statements(migration.script)[-1]


def test_what_is_filled_in_is_not_looked_at_again() -> None:
    assert fill("SELECT 1 FROM {table}", "postgresql", HOSTILE) == """SELECT 1 FROM "odd :after %(x)s {info} ' "" `\""""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_colon_in_a_table_name_is_no_parameter(dialect: str) -> None:
    sql = fill("SELECT id FROM {table} WHERE id > :after -- :not_this\n AND x <> {name_literal}", dialect, HOSTILE)
    shown, names = with_parameters(sql, "pyformat")
    assert names == ["after"]
    quoted = HOSTILE.quoted(dialect)
    assert shown % {"after": 7} == sql.replace("id > :after", "id > 7")
    assert quoted in shown % {"after": 7}
    assert with_integers(sql, after=7) == sql.replace("id > :after", "id > 7")


def test_each_paramstyle() -> None:
    sql = "SELECT :a, :b, :a, '50%', x::text"
    assert with_parameters(sql, "pyformat") == ("SELECT %(a)s, %(b)s, %(a)s, '50%%', x::text", ["a", "b", "a"])
    assert with_parameters(sql, "named") == (sql, ["a", "b", "a"])
    assert with_parameters(sql, "numeric_dollar") == ("SELECT $1, $2, $1, '50%', x::text", ["a", "b"])


def test_integers_only_are_put_into_the_text() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        with_integers("SELECT :after", after="1; DROP TABLE x")  # type: ignore[arg-type]


def test_statements_are_parted_by_their_own_line() -> None:
    assert statements("SELECT 1\n;;\nSELECT ';;'\n;;\n") == ["SELECT 1", "SELECT ';;'"]
