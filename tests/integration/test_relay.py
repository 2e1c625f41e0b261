"""One relay on every database: what it appends, what it deletes, and what it refuses."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from structlog.testing import capture_logs

from connector import cleaner
from connector.options import DeleteAfter
from connector.verify import verify
from outbox.database import Session
from outbox.errors import ConflictingRow, LateRow, SchemaError, Unsupported, WrongPartner
from outbox.info import read_info
from outbox.names import OutTable
from stream_store import open_stream
from stream_store.readers import TABLE
from tests.integration.relays import (
    RelayThread,
    deleted_through,
    emit,
    insert,
    installed,
    relay_once,
    relay_options,
    stream_ids,
    stream_tail,
    table_ids,
    transaction,
    until,
)
from tests.integration.test_schema import ODD_NAMES

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from outbox.info import Info


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


def info_of(options: RelayOptions) -> Info:
    with Session(options.database, options.table) as session:
        return read_info(session)


def run_sql(options: RelayOptions, sql: str) -> None:
    with Session(options.database, options.table) as session:
        session.run(sql)


def explicit(options: RelayOptions, row_id: int) -> None:
    """A row with an ID of the writer's own choice."""
    overriding = " OVERRIDING SYSTEM VALUE" if options.database.dialect == "postgresql" else ""
    run_sql(options, f"INSERT INTO outbox (id, type){overriding} VALUES ({row_id}, 'explicit')")


def materialized(options: RelayOptions) -> RelayOptions:
    """Nothing is deleted before `let_delete`."""
    return replace(options, delete_after=DeleteAfter.parse("materialized"))


def let_delete(options: RelayOptions) -> None:
    with contextlib.closing(open_stream(options.stream)) as stream:
        stream.report(TABLE, "everything", 1_000_000)


def test_once_drains_cleans_up_and_exits_0(outbox: RelayOptions):
    emit(outbox, 5)
    with transaction(outbox) as session:
        insert(session)
        session.run("ROLLBACK")
    emit(outbox, 5)
    committed = table_ids(outbox)
    with RelayThread(outbox, once=True) as relay:
        assert relay.wait() == 0
    assert stream_ids(outbox.stream) == committed
    assert len(committed) == 10
    assert table_ids(outbox) == []
    info = info_of(outbox)
    assert (info.deleted_through, info.relayed_through, info.leader) == (committed[-1], committed[-1], None)


def test_once_on_an_empty_outbox_exits_0_and_makes_the_stream(outbox: RelayOptions):
    for _ in range(2):
        with RelayThread(outbox, once=True) as relay:
            assert relay.wait() == 0
    assert stream_ids(outbox.stream) == []
    with contextlib.closing(open_stream(outbox.stream)) as stream:
        assert stream.info().outbox_id == info_of(outbox).outbox_id
        assert info_of(outbox).stream_id == stream.stream_id


def test_once_again_and_again_appends_each_row_once(outbox: RelayOptions):
    for count in (1, 3, 2):
        emit(outbox, count)
        relay_once(outbox)
    assert len(stream_ids(outbox.stream)) == 6
    assert verify(outbox.database, outbox.table, outbox.stream).ok


def test_backlog_of_many_reads_is_in_order(outbox: RelayOptions):
    options = replace(outbox, batch_rows=1_000)
    emit(options, 7_500)
    relay_once(options)
    assert stream_ids(options.stream) == list(range(1, 7_501))
    assert table_ids(options) == []
    assert deleted_through(options) == 7_500


def test_out_table_that_is_missing_is_named_with_the_command_to_run(database_url: str, stream_url: str):
    if database_url.startswith("sqlite"):
        installed(database_url, stream_url, "another")
    with pytest.raises(SchemaError, match="outbox init"):
        relay_once(relay_options(database_url, stream_url))


def test_delete_after_never_keeps_every_row_and_offers_it_again(outbox: RelayOptions):
    keeping = replace(outbox, delete_after=DeleteAfter.parse("never"))
    emit(keeping, 5)
    relay_once(keeping)
    emit(keeping, 2)
    relay_once(keeping)
    assert stream_ids(keeping.stream) == table_ids(keeping) == list(range(1, 8))
    assert deleted_through(keeping) == 0
    relay_once(outbox)
    assert stream_ids(outbox.stream) == list(range(1, 8))
    assert (table_ids(outbox), deleted_through(outbox)) == ([], 7)


def test_delete_after_a_duration_keeps_rows_for_that_long(outbox: RelayOptions):
    emit(outbox, 5)
    with RelayThread(replace(outbox, delete_after=DeleteAfter.parse("1h"))):
        until(lambda: stream_tail(outbox.stream) == 5, "everything is in the stream")
    assert table_ids(outbox) == [1, 2, 3, 4, 5]
    with RelayThread(replace(outbox, delete_after=DeleteAfter.parse("200ms"))):
        until(lambda: table_ids(outbox) == [], "the rows are old enough")
    assert deleted_through(outbox) == 5
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5]


def test_age_of_rows_goes_on_over_restarts(outbox: RelayOptions):
    """A relay that is restarted once a day must delete what is to be kept for a day."""
    emit(outbox, 2)
    aged = replace(outbox, delete_after=DeleteAfter.parse("2s"))
    emitted = time.monotonic()
    relay_once(aged)
    assert table_ids(outbox) == [1, 2]
    until(lambda: time.monotonic() - emitted > 2.5, "the rows are old enough")
    relay_once(aged)
    assert table_ids(outbox) == []
    assert stream_ids(outbox.stream) == [1, 2]


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize(
    ("database_options", "setting"),
    [
        ("ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'", ""),
        ("", "ALTER DATABASE {} SET client_encoding = 'LATIN1'"),
    ],
    ids=["database", "setting"],
)
def test_text_of_another_encoding_becomes_unicode(
    postgresql_url: str,
    stream_url: str,
    database_options: str,
    setting: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """However many rows there are: a few come over psycopg, a backlog over ADBC."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    base, _, name = postgresql_url.rpartition("/")
    name = f"{name}_latin1"
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} {database_options}")
        if setting:
            admin.execute(setting.format(name))
    options = installed(f"{base}/{name}", stream_url)
    with Session(options.database, options.table) as session:
        for _ in range(rows):
            session.run("INSERT INTO outbox (type, subject, data) VALUES ('t', 'Müller', '{\"name\": \"é\"}')")
    relay_once(options)
    with contextlib.closing(open_stream(stream_url)) as stream:
        (events,) = [batch.rows for batch in stream.read(0)]
    events.validate(full=True)
    assert set(events.column("subject").to_pylist()) == {"Müller"}
    assert set(events.column("data").to_pylist()) == {'{"name": "é"}'}


def test_database_whose_text_may_be_any_bytes_is_refused(postgresql_url: str, stream_url: str):
    base, _, name = postgresql_url.rpartition("/")
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name}_ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    with pytest.raises(Unsupported, match="SQL_ASCII"):
        relay_once(installed(f"{base}/{name}_ascii", stream_url))


def test_relay_waits_while_somebody_restores_the_database(postgresql_url: str, stream_url: str):
    """Once it has led, a table that is missing is one that is not there yet."""
    outbox = installed(postgresql_url, stream_url)
    emit(outbox, 1)
    with RelayThread(outbox) as relay, capture_logs() as logs:
        until(lambda: stream_tail(stream_url) == 1, "the relay leads")
        with psycopg.connect(postgresql_url) as admin:  # in one transaction: the relay finds its session gone
            admin.execute("ALTER TABLE outbox RENAME TO away")
            admin.execute("ALTER TABLE outbox_info RENAME TO away_info")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
            )
        until(lambda: any("no out table" in str(entry.get("reason")) for entry in logs), "it has noticed")
        run_sql(outbox, "ALTER TABLE away RENAME TO outbox; ALTER TABLE away_info RENAME TO outbox_info")
        emit(outbox, 1)
        until(lambda: stream_tail(stream_url) == 2, "it goes on by itself")
        relay.stop.set()
        assert relay.wait() == 0


def test_delete_after_materialized_waits_for_every_known_sink(outbox: RelayOptions):
    waiting = materialized(outbox)
    emit(outbox, 5)
    with RelayThread(waiting):
        until(lambda: stream_tail(outbox.stream) == 5, "everything is in the stream")
        with contextlib.closing(open_stream(outbox.stream)) as stream:
            stream.report(TABLE, "orders", 5)
            stream.report(TABLE, "customers", 4)
    assert table_ids(outbox) == [1, 2, 3, 4, 5]
    with RelayThread(waiting):
        with contextlib.closing(open_stream(outbox.stream)) as stream:
            stream.report(TABLE, "customers", 5)
        until(lambda: table_ids(outbox) == [], "both sinks are there")
    assert deleted_through(outbox) == 5


def test_without_a_known_sink_materialized_deletes_nothing(outbox: RelayOptions):
    emit(outbox, 2)
    relay_once(materialized(outbox))
    assert (stream_ids(outbox.stream), table_ids(outbox)) == ([1, 2], [1, 2])


def test_rows_deleted_by_hand_after_they_were_relayed_do_no_harm(outbox: RelayOptions):
    """The cleaner finds other rows than were appended, and looks again from the start."""
    emit(outbox, 5)
    with RelayThread(materialized(outbox)) as relay:
        until(lambda: stream_tail(outbox.stream) == 5, "everything is in the stream")
        run_sql(outbox, "DELETE FROM outbox WHERE id IN (2, 5)")
        emit(outbox, 1)
        let_delete(outbox)
        until(lambda: table_ids(outbox) == [] and stream_tail(outbox.stream) == 6, "the rest is relayed and deleted")
        relay.stop.set()
        assert relay.wait() == 0
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5, 6]
    assert verify(outbox.database, outbox.table, outbox.stream).ok


def test_rows_deleted_by_hand_while_stopped_do_no_harm(outbox: RelayOptions):
    emit(outbox, 5)
    relay_once(replace(outbox, delete_after=DeleteAfter.parse("never")))
    run_sql(outbox, "DELETE FROM outbox WHERE id >= 4")
    emit(outbox, 1)
    relay_once(outbox)
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5, 6]
    assert (table_ids(outbox), deleted_through(outbox)) == ([], 6)


CHANGES = {
    "data": """UPDATE outbox SET data = '{"n": 99}' WHERE id = 2""",
    "as many characters": """UPDATE outbox SET data = '{"n": 9}' WHERE id = 2""",
    "subject": "UPDATE outbox SET subject = 'another' WHERE id = 2",
    "time": "UPDATE outbox SET time = '2020-01-01 00:00:00' WHERE id = 2",
}
# Every column where the row's version is a checksum; PostgreSQL has a version of its own.
CHANGED = [
    ("postgresql", "subject"),
    *(("mariadb", name) for name in CHANGES),
    ("mysql", "subject"),
    ("sqlite", "data"),
]


@pytest.mark.parametrize(("database", "what"), CHANGED)
def test_changing_a_relayed_row_ends_the_relay_with_4(
    database: str, what: str, stream_url: str, request: pytest.FixtureRequest
):
    outbox = installed(str(request.getfixturevalue(f"{database}_url")), stream_url)
    change = CHANGES[what]
    emit(outbox, 3)
    if database == "sqlite":
        with pytest.raises(Exception, match="rows of an out table are never changed"):
            run_sql(outbox, change)
        return
    with capture_logs() as logs, RelayThread(materialized(outbox)) as relay:
        until(lambda: stream_tail(stream_url) == 3, "everything is in the stream")
        run_sql(outbox, change)
        let_delete(outbox)
        assert relay.wait() == 4
    assert [entry["kind"] for entry in logs if entry["log_level"] == "error"] == ["ConflictingRow"]
    assert "ID 2" in logs[-1]["event"]
    assert table_ids(outbox) == [1, 2, 3], "nothing is deleted that is not in the stream as it is"
    with pytest.raises(ConflictingRow, match="ID 2"):
        relay_once(outbox)


def test_changing_a_row_to_what_it_was_is_no_conflict(database_url: str, stream_url: str):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite's out table refuses every UPDATE, as the test above shows")
    outbox = installed(database_url, stream_url)
    emit(outbox, 3)
    with RelayThread(materialized(outbox)) as relay:
        until(lambda: stream_tail(stream_url) == 3, "everything is in the stream")
        run_sql(outbox, "UPDATE outbox SET subject = subject WHERE id = 2")
        let_delete(outbox)
        until(lambda: table_ids(outbox) == [], "the same content is the same row")
        relay.stop.set()
        assert relay.wait() == 0


def test_late_row_is_an_error_not_a_skip_also_while_running(outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch):
    """A row that appears where everything was relayed and deleted: exit 4, and it stays where it is."""
    monkeypatch.setattr(cleaner, "LATE_CHECK_SECONDS", 0.1)
    emit(outbox, 5)
    with capture_logs() as logs, RelayThread(outbox) as relay:
        until(lambda: deleted_through(outbox) == 5, "everything is relayed and deleted")
        explicit(outbox, 3)
        assert relay.wait() == 4
    assert [entry["kind"] for entry in logs if entry["log_level"] == "error"] == ["LateRow"]
    assert table_ids(outbox) == [3]
    with pytest.raises(LateRow, match="row 3"):
        relay_once(outbox)


def test_late_row_among_kept_rows_is_an_error_on_restart(outbox: RelayOptions):
    keeping = replace(outbox, delete_after=DeleteAfter.parse("never"))
    emit(keeping, 2)
    explicit_gap = 3
    if outbox.database.dialect == "sqlite":
        explicit(keeping, 4)
    else:
        with transaction(keeping) as session:
            insert(session)
            session.run("ROLLBACK")
        emit(keeping, 1)
    relay_once(keeping)
    assert stream_ids(keeping.stream) == [1, 2, 4]
    explicit(keeping, explicit_gap)
    with pytest.raises(LateRow, match="row 3"):
        relay_once(keeping)


def test_stream_of_another_outbox_is_refused(outbox: RelayOptions, stream_url: str):
    relay_once(outbox)
    other = installed(outbox.database.url, stream_url, "other")
    emit(other)
    with pytest.raises(WrongPartner):
        relay_once(other)
    with RelayThread(other, once=True) as relay:
        assert relay.wait() == 4
    assert stream_ids(stream_url) == []


def test_stream_that_was_swapped_for_another_is_refused(outbox: RelayOptions, tmp_path: str):
    emit(outbox)
    relay_once(outbox)
    with pytest.raises(WrongPartner, match="outbox rebase"):
        relay_once(replace(outbox, stream=f"file://{tmp_path}/another"))


def test_odd_names_go_through_the_whole_chain(database_url: str, tmp_path: str):
    schemas = [None] if database_url.startswith("sqlite") else [None, 'odd "schema`. %s :x']
    for number, name in enumerate(ODD_NAMES[2::2]):
        schema = schemas[number % len(schemas)]
        if schema and database_url.startswith("mysql"):
            # Databases are of the server, not of the test: this one's name must be its own.
            schema = database_url.rsplit("/", 1)[1] + schema
        outbox = installed(database_url, f"file://{tmp_path}/stream {number}", OutTable(name, schema))
        emit(outbox, 2)
        relay_once(outbox)
        assert stream_ids(outbox.stream) == [1, 2], name
        assert table_ids(outbox) == [], name
        assert verify(outbox.database, outbox.table, outbox.stream).ok, name


IMPOSSIBLE_TIMES = {
    "postgresql": ["infinity", "-infinity", "294276-01-01 00:00:00Z", "4713-01-01 00:00:00 BC"],
    "mysql": ["0000-00-00", "2026-00-00", "2026-02-00"],
    "sqlite": [
        "infinity",
        "2026-13-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:00.1234567Z",
        "2026-01-01T00:00:00 Z",
    ],
}


def test_time_that_consumers_could_not_say_is_refused_by_the_table(outbox: RelayOptions):
    """It would come out of the stream as another time, or stop the relay."""
    for impossible in IMPOSSIBLE_TIMES[outbox.database.dialect]:
        with Session(outbox.database, outbox.table) as session:
            if outbox.database.dialect == "mysql":
                session.run("SET SESSION sql_mode = ''")  # as lax as a writer's session can be
            with pytest.raises(Exception, match=r"(?i)check|constraint"):
                session.run(f"INSERT INTO outbox (type, time) VALUES ('t', '{impossible}')")
    assert table_ids(outbox) == []
