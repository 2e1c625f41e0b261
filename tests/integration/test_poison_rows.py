"""Rows that cannot be events: the relay names the row and stops for a person to look, exit code 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox.database import Session
from outbox.errors import Unsupported
from tests.integration.relays import RelayThread, emit, installed, relay_once, stream_ids

if TYPE_CHECKING:
    from connector.options import RelayOptions


def run_sql(options: RelayOptions, *statements: str) -> None:
    with Session(options.database, options.table) as session:
        for statement in statements:
            session.run(statement)


def assert_named_and_left_to_a_person(options: RelayOptions, says: str, bad_id: int, events: int) -> None:
    with pytest.raises(Unsupported, match=says):
        relay_once(options)
    with RelayThread(options, once=True) as relay:
        assert relay.wait() == 4
    run_sql(options, f"DELETE FROM outbox WHERE id = {bad_id}")
    relay_once(options)
    assert stream_ids(options.stream) == [event_id for event_id in range(1, events + 2) if event_id != bad_id]


@pytest.mark.parametrize("column", ["type", "subject", "datacontenttype"])
def test_text_that_is_not_utf_8_is_named(sqlite_url: str, stream_url: str, column: str) -> None:
    """SQLite takes any bytes as text, also where a CHECK asks for text."""
    options = installed(sqlite_url, stream_url)
    emit(options, 30)
    columns = "type" if column == "type" else f"{column}, type"
    run_sql(options, f"INSERT INTO outbox ({columns}) VALUES (CAST(x'ff41' AS text){', 1' if ',' in columns else ''})")
    emit(options, 30)
    assert_named_and_left_to_a_person(options, f"ID 31 .* {column} is not text in UTF-8", 31, 60)


@pytest.mark.parametrize("before", [3, 300])
def test_date_that_does_not_exist_is_named(mariadb_url: str, stream_url: str, before: int) -> None:
    """PyMySQL hands such a date over as text."""
    options = installed(mariadb_url, stream_url)
    emit(options, before)
    run_sql(
        options,
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO outbox (type, time) VALUES ('t', '2024-02-30 00:00:00')",
    )
    emit(options, 2)
    assert_named_and_left_to_a_person(
        options, f"ID {before + 1} .* time is '2024-02-30 00:00:00", before + 1, before + 2
    )


@pytest.mark.parametrize(
    ("columns", "values", "says"),
    [
        ("type, time", "NULL, '2024-01-01T00:00:00Z'", "type is missing"),
        ("type, time", "'t', NULL", "time is missing"),
        ("type, time", "'t', 'yesterday'", "time is 'yesterday'"),
        ("type, time", "'t', 1700000000", "time is 1700000000"),
        ("type, time, subject", "'t', '2024-01-01T00:00:00Z', 1.5", "subject is of type float"),
    ],
)
def test_value_of_a_table_without_its_checks_is_named(
    sqlite_url: str, stream_url: str, columns: str, values: str, says: str
) -> None:
    options = installed(sqlite_url, stream_url)
    run_sql(options, "DROP TABLE outbox")
    run_sql(
        options,
        "CREATE TABLE outbox (id integer PRIMARY KEY AUTOINCREMENT, type, subject, data, data_bytes, datacontenttype, "
        "headers, time DEFAULT '2024-01-01T00:00:00Z')",
    )
    emit(options, 2)
    run_sql(options, f"INSERT INTO outbox ({columns}) VALUES ({values})")
    emit(options, 1)
    assert_named_and_left_to_a_person(options, f"ID 3 .* {says}", 3, 3)
