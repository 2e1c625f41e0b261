"""Names: what is taken, what is shown, and that quoting cannot be escaped from."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import UsageError
from outbox.names import NAME_BYTES_MAX, SCHEMA_BYTES_MAX, OutTable, literal, quote

PARTS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\\"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("outbox", OutTable("outbox")),
        ("app.outbox", OutTable("outbox", "app")),
        ("two words", OutTable("two words")),
        ('"dotted.name"', OutTable("dotted.name")),
        ('app."dotted.name"', OutTable("dotted.name", "app")),
        ('"my.app"."quo""te"', OutTable('quo"te', "my.app")),
    ],
)
def test_parse_reads_a_name_with_or_without_a_schema(text: str, table: OutTable) -> None:
    assert OutTable.parse(text) == table


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"open', 'a"b', '""', "a..b"])
def test_parse_refuses_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError):
        OutTable.parse(text)


@given(PARTS, st.none() | PARTS)
def test_what_is_shown_is_read_back(name: str, schema: str | None) -> None:
    table = OutTable(name, schema)
    assert OutTable.parse(str(table)) == table


@pytest.mark.parametrize("name", ["", "line\nbreak", "nul\x00", "tab\t", "del\x7f", "back\\slash"])
def test_names_that_no_database_or_literal_can_hold_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        OutTable(name)
    with pytest.raises(UsageError):
        OutTable("outbox", name)


def test_a_name_leaves_room_for_every_companion() -> None:
    longest = OutTable("x" * NAME_BYTES_MAX)
    # 63 bytes is PostgreSQL's limit; a longer name would be cut and could meet another.
    assert all(
        len(longest.quoted("postgresql", suffix)) - 2 <= 63
        for suffix in ("_info", "_lag", "_emit", "_immutable", "_id_seq")
    )
    with pytest.raises(UsageError, match="bytes"):
        OutTable("x" * (NAME_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="bytes"):
        OutTable("発" * 17)
    assert OutTable("outbox", "s" * SCHEMA_BYTES_MAX)


@given(PARTS, st.sampled_from(["postgresql", "mysql", "sqlite"]))
def test_a_quoted_identifier_ends_where_it_should(name: str, dialect: str) -> None:
    quoted = quote(name, dialect)
    mark = quoted[0]
    assert mark == quoted[-1] == ("`" if dialect == "mysql" else '"')
    assert mark not in quoted[1:-1].replace(mark * 2, "")
    assert quoted[1:-1].replace(mark * 2, mark) == name


@given(PARTS)
def test_a_literal_ends_where_it_should(text: str) -> None:
    shown = literal(text)
    assert re.fullmatch(r"'(?:[^']|'')*'", shown)
    assert shown[1:-1].replace("''", "'") == text


def test_a_literal_with_a_backslash_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        literal("a\\b")


def test_sqlite_has_no_schemas() -> None:
    with pytest.raises(UsageError, match="no schemas"):
        OutTable("outbox", "main").identifiers("sqlite")
    assert OutTable("outbox").identifiers("sqlite")["table"] == '"outbox"'


@pytest.mark.parametrize("table", [OutTable("events 🎉"), OutTable("outbox", "𠮷野")], ids=str)
def test_mysql_has_no_names_beyond_the_basic_plane(table: OutTable) -> None:
    with pytest.raises(UsageError, match=r"MySQL and MariaDB.*beyond U\+FFFF.*U\+[12][0-9A-F]{4}"):
        table.identifiers("mysql")
    assert table.identifiers("postgresql")["table"].endswith(f'"{table.name}"')
    assert OutTable("\uffee 発注").quoted("mysql") == "`\uffee 発注`"


def test_every_identifier_is_qualified_by_the_schema() -> None:
    identifiers = OutTable("out", "app").identifiers("postgresql")
    assert {identifiers[key] for key in ("table", "info", "lag", "emit", "sequence")} == {
        '"app"."out"',
        '"app"."out_info"',
        '"app"."out_lag"',
        '"app"."out_emit"',
        '"app"."out_id_seq"',
    }
    assert identifiers["table_literal"] == '\'"app"."out"\''
