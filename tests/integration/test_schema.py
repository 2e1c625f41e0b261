"""The installer on real databases: idempotent, concurrent, cut short, and taken back."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import OutboxError, SchemaError, UsageError
from outbox.info import SCHEMA_VERSION, read_info
from outbox.names import OutTable
from outbox.queries import block, statements
from outbox.schema import install, uninstall, upgrade
from tests.servers import mariadb

ODD_NAMES = [
    "select",
    "two words",
    'quo"te',
    "apo'strophe",
    "back`tick",
    "dotted.name",
    "naïve–Ωmega–発注",
    "percent %(x)s %s",
    "colon :new",
    "braces {table} {nothing}",
    "dollar $$ $1 $outbox$",
    "semi;;colon -- comment /* x",
]


@pytest.fixture
def url(database_url: str) -> DatabaseUrl:
    return DatabaseUrl.parse(database_url)


def emit_by_sql(session: Session, data: str = '{"a": 1}') -> None:
    """As an application in another language would: the emit function, or a plain INSERT."""
    emit = session.table.quoted(session.dialect, "_emit").replace("%", "%%")
    if session.dialect == "postgresql":
        session.run(f"SELECT {emit}('order.placed', 'order-1', %(data)s::json)", {"data": data})
    elif session.dialect == "mysql":
        session.run(f"CALL {emit}('order.placed', 'order-1', %(data)s, NULL)", {"data": data})
    else:
        table = session.table.quoted(session.dialect)
        session.run(
            f"INSERT INTO {table} (type, subject, data) VALUES ('order.placed', 'order-1', :data)", {"data": data}
        )


def lag(session: Session) -> dict[str, object]:
    names = (
        "rows_waiting",
        "oldest_waiting_time",
        "lag_seconds",
        "last_id_drawn",
        "relayed_through",
        "deleted_through",
        "leader",
        "lease_until",
    )
    view = session.table.quoted(session.dialect, "_lag")
    (row,) = session.run(f"SELECT {', '.join(names)} FROM {view}")
    return dict(zip(names, row, strict=True))


def test_install_makes_an_outbox_that_knows_who_it_is(url: DatabaseUrl) -> None:
    made = install(url, OutTable(), source="/shop/orders")
    assert made.created
    assert (made.version, made.source) == (SCHEMA_VERSION, "/shop/orders")
    assert uuid.UUID(made.outbox_id)
    with Session(url, OutTable()) as session:
        info = read_info(session)
    assert (info.outbox_id, info.source) == (made.outbox_id, "/shop/orders")
    assert (info.stream_id, info.deleted_through, info.relayed_through, info.leader) == (None, 0, 0, None)


def test_install_again_changes_nothing(url: DatabaseUrl) -> None:
    made = install(url, OutTable())
    with Session(url, OutTable()) as session:
        emit_by_sql(session)
    again = install(url, OutTable())
    assert not again.created
    assert again.outbox_id == made.outbox_id
    assert upgrade(url, OutTable()) == []
    with Session(url, OutTable()) as session:
        assert lag(session)["rows_waiting"] == 1


def test_the_same_source_again_is_fine_another_one_is_refused(url: DatabaseUrl) -> None:
    install(url, OutTable(), source="/shop")
    assert not install(url, OutTable(), source="/shop").created
    with pytest.raises(SchemaError, match="installed with source '/shop'"):
        install(url, OutTable(), source="/other")


def test_many_installs_at_once_make_one_outbox(url: DatabaseUrl) -> None:
    start = threading.Barrier(8)

    def run(_: int) -> tuple[bool, str]:
        start.wait()
        made = install(url, OutTable())
        return made.created, made.outbox_id

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    assert sum(created for created, _ in results) == 1
    assert len({outbox_id for _, outbox_id in results}) == 1


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_table_names_work_in_every_object(url: DatabaseUrl, name: str) -> None:
    table = OutTable(name)
    assert OutTable.parse(str(table)) == table
    assert install(url, table).created
    assert not install(url, table).created
    with Session(url, table) as session:
        emit_by_sql(session)
        assert lag(session)["rows_waiting"] == 1
        assert read_info(session).deleted_through == 0
    with pytest.raises(SchemaError, match=r"rows are left in .* \(1\)"):
        uninstall(url, table)
    uninstall(url, table, force=True)


@pytest.mark.parametrize("schema", ["plain", *ODD_NAMES])
def test_odd_schema_names_work_and_the_schema_is_made(database_url: str, schema: str) -> None:
    url = DatabaseUrl.parse(database_url)
    if url.dialect == "sqlite":
        with pytest.raises(UsageError, match="no schemas"):
            install(url, OutTable("outbox", schema))
        return
    # MySQL's databases are of the whole server: one of our own for each run.
    table = OutTable("outbox", f"{schema} {uuid.uuid4().hex[:8]}")
    assert install(url, table).created
    assert not install(url, table).created
    with Session(url, table) as session:
        emit_by_sql(session)
        assert lag(session)["rows_waiting"] == 1
        session.run(
            f"DROP SCHEMA {block(url.dialect, 'create_schema', table).split('EXISTS ')[1]}"
            + (" CASCADE" if url.dialect == "postgresql" else "")
        )


def test_two_outboxes_in_one_database_are_apart(url: DatabaseUrl) -> None:
    first, second = install(url, OutTable("orders")), install(url, OutTable("bills"))
    assert first.outbox_id != second.outbox_id
    with Session(url, OutTable("orders")) as session:
        emit_by_sql(session)
    with Session(url, OutTable("bills")) as session:
        assert lag(session)["rows_waiting"] == 0


def test_a_table_of_the_applications_own_is_not_taken_over(url: DatabaseUrl) -> None:
    with Session(url, OutTable()) as session:
        session.run("CREATE TABLE outbox (id integer, payload varchar(10))")
    with pytest.raises(SchemaError, match="not an out table of ours"):
        install(url, OutTable())
    with Session(url, OutTable()) as session:
        session.run("DROP TABLE outbox")
        session.run("CREATE TABLE outbox_info (id integer)")
    with pytest.raises(SchemaError, match="outbox_info"):
        install(url, OutTable())


def test_a_lost_view_is_made_again(url: DatabaseUrl) -> None:
    made = install(url, OutTable())
    with Session(url, OutTable()) as session:
        session.run("DROP VIEW outbox_lag")
    again = install(url, OutTable())
    assert (again.created, again.outbox_id) == (False, made.outbox_id)
    with Session(url, OutTable()) as session:
        assert lag(session)["rows_waiting"] == 0


def test_an_info_table_without_its_out_table_is_refused_not_completed(url: DatabaseUrl) -> None:
    """A new out table would draw its IDs from 1 again, under the old outbox's name."""
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        session.run("DROP TABLE outbox" + (" CASCADE" if url.dialect == "postgresql" else ""))
    with pytest.raises(SchemaError, match="the out table is gone"):
        install(url, OutTable())
    uninstall(url, OutTable())
    assert install(url, OutTable()).created


def test_an_install_killed_after_any_statement_is_completed_by_the_next(mariadb_admin_url: str) -> None:
    """MySQL commits each statement of the schema by itself."""
    table = OutTable()
    script = statements(block("mysql", "schema", table, schema_version=str(SCHEMA_VERSION), source_literal="'/x'"))
    for done in range(len(script)):
        url = DatabaseUrl.parse(mariadb.fresh_database(mariadb_admin_url))
        with Session(url, table) as session:
            for statement in script[:done]:
                session.run(statement)
        made = install(url, table)
        assert made.created, f"killed after {done} statements"
        with Session(url, table) as session:
            emit_by_sql(session)
            assert lag(session)["rows_waiting"] == 1


def test_a_failed_install_leaves_nothing_where_ddl_is_transactional(postgresql_url: str) -> None:
    url = DatabaseUrl.parse(postgresql_url)
    with Session(url, OutTable()) as session:
        # The last object cannot be made: something else has its name.
        session.run("CREATE TABLE outbox_lag (x integer)")
        with pytest.raises(SchemaError, match="outbox_lag"):
            install(url, OutTable())
        assert session.run("SELECT to_regclass('outbox')::text, to_regclass('outbox_info')::text") == [(None, None)]


def test_uninstall_refuses_while_rows_are_unrelayed(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        emit_by_sql(session)
        emit_by_sql(session)
        # What the leader said of its tail is no proof: the sequence may have been reset since.
        session.run("UPDATE outbox_info SET relayed_through = 2")
        with pytest.raises(SchemaError, match=r"rows are left in outbox \(2\)"):
            uninstall(url, OutTable())
        session.run("DELETE FROM outbox")
    uninstall(url, OutTable())
    assert install(url, OutTable()).created


def test_uninstall_refuses_while_a_relay_is_at_work(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        soon = {
            "postgresql": "clock_timestamp() + interval '1 hour'",
            "mysql": "utc_timestamp(6) + INTERVAL 1 HOUR",
            "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '3600 seconds')",
        }[url.dialect]
        session.run(f"UPDATE outbox_info SET leader = 'relay-7', lease_until = {soon}")
    with pytest.raises(SchemaError, match="relay-7 is at work"):
        uninstall(url, OutTable())
    uninstall(url, OutTable(), force=True)


def test_uninstall_counts_the_rows_of_a_writer_in_flight(postgresql_url: str) -> None:
    url = DatabaseUrl.parse(postgresql_url)
    install(url, OutTable())
    with psycopg.connect(postgresql_url) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO outbox (type) VALUES ('t')")
        attempt = pool.submit(uninstall, url, OutTable())
        with Session(url, OutTable()) as watcher:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox'::regclass"
            while watcher.run(waiting) == [(0,)]:
                assert not attempt.done()
        writer.commit()
        with pytest.raises(SchemaError, match=r"rows are left in .* \(1\)"):
            attempt.result()


def test_uninstall_of_what_is_not_there_says_so(url: DatabaseUrl) -> None:
    with pytest.raises(SchemaError, match="nothing is dropped"):
        uninstall(url, OutTable())


def test_uninstall_leaves_nothing_behind(url: DatabaseUrl) -> None:
    install(url, OutTable())
    uninstall(url, OutTable())
    with Session(url, OutTable()) as session:
        assert session.query("layout") == []


def test_a_role_without_the_privilege_is_told_what_to_do(postgresql_url: str) -> None:
    role = f"nobody_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
    with pytest.raises(SchemaError, match="--print"):
        install(DatabaseUrl.parse(postgresql_url.replace("postgres@", f"{role}@")), OutTable())


def test_a_source_that_is_no_uri_reference_is_refused(url: DatabaseUrl) -> None:
    for source in ("two words", "back\\slash", "line\nbreak", "x" * 1025):
        with pytest.raises(UsageError, match="source"):
            install(url, OutTable(), source=source)
    with Session(url, OutTable()) as session:
        assert session.query("layout") == []


def test_lag_view_counts_what_is_neither_relayed_nor_deleted(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        empty = lag(session)
        assert (empty["rows_waiting"], empty["oldest_waiting_time"], empty["lag_seconds"], empty["last_id_drawn"]) == (
            0,
            None,
            0,
            0,
        )
        for _ in range(5):
            emit_by_sql(session)
        session.run("UPDATE outbox_info SET relayed_through = 3, deleted_through = 1, leader = 'relay-1'")
        shown = lag(session)
        assert (shown["rows_waiting"], shown["relayed_through"], shown["deleted_through"]) == (2, 3, 1)
        assert shown["oldest_waiting_time"] is not None
        assert float(str(shown["lag_seconds"])) > 0
        assert (shown["last_id_drawn"], shown["leader"]) == (5, "relay-1")
        # Another relay has cleaned up past what the leader said last.
        session.run("UPDATE outbox_info SET deleted_through = 5")
        assert lag(session)["rows_waiting"] == 0


def test_emit_function_is_part_of_the_callers_transaction(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        session.run("BEGIN")
        emit_by_sql(session)
        session.run("ROLLBACK")
        assert lag(session)["rows_waiting"] == 0
        with session.transaction():
            emit_by_sql(session)
        assert session.run("SELECT type, subject, datacontenttype FROM outbox") == [("order.placed", "order-1", None)]


def test_emit_function_takes_named_arguments_and_binary_data(postgresql_url: str) -> None:
    install(DatabaseUrl.parse(postgresql_url), OutTable())
    with psycopg.connect(postgresql_url) as connection:
        connection.execute("SELECT outbox_emit(type => 'tombstone', subject => 's')")
        connection.execute("SELECT outbox_emit('avro', data_bytes => '\\x00ff', datacontenttype => 'application/avro')")
        connection.execute("""SELECT outbox_emit('order.placed', headers => '{"traceparent": "00-1"}')""")
        rows = connection.execute(
            "SELECT type, data, data_bytes, datacontenttype, headers FROM outbox ORDER BY id"
        ).fetchall()
    assert rows == [
        ("tombstone", None, None, None, None),
        ("avro", None, b"\x00\xff", "application/avro", None),
        ("order.placed", None, None, None, {"traceparent": "00-1"}),
    ]


def test_emit_function_is_bound_to_its_table_whatever_the_search_path(postgresql_url: str) -> None:
    install(DatabaseUrl.parse(postgresql_url), OutTable())
    with psycopg.connect(postgresql_url) as connection:
        connection.execute("CREATE SCHEMA decoy")
        connection.execute("CREATE TABLE decoy.outbox (LIKE public.outbox)")
        connection.execute("SET search_path = decoy")
        connection.execute("SELECT public.outbox_emit('t')")
        assert connection.execute("SELECT count(*) FROM public.outbox").fetchone() == (1,)


@pytest.mark.parametrize("data", ["not json", "{'a': 1}", "NaN", '{"a": 1'])
def test_data_that_is_not_json_is_refused_by_the_database(url: DatabaseUrl, data: str) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        with pytest.raises(Exception, match=r"(?i)json|check constraint"):
            emit_by_sql(session, data)
        assert lag(session)["rows_waiting"] == 0


def test_deep_json_passes_by_plain_insert(url: DatabaseUrl) -> None:
    deep = "[" * 500 + "]" * 500
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        place = ":data" if url.dialect == "sqlite" else "%(data)s"
        session.run(f"INSERT INTO outbox (type, data) VALUES ('deep', {place})", {"data": deep})
        cast = "::text" if url.dialect == "postgresql" else ""
        assert session.run(f"SELECT data{cast} FROM outbox") == [(deep,)]


def test_an_empty_type_and_both_kinds_of_data_are_refused(url: DatabaseUrl) -> None:
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        for values in ("('', NULL, NULL)", "('t', '1', 'x')", "(NULL, NULL, NULL)"):
            with pytest.raises(Exception, match=r"(?i)constraint|null"):
                session.run(f"INSERT INTO outbox (type, data, data_bytes) VALUES {values}")


def test_rows_of_a_sqlite_out_table_are_never_changed(sqlite_url: str) -> None:
    url = DatabaseUrl.parse(sqlite_url)
    install(url, OutTable())
    with Session(url, OutTable()) as session:
        emit_by_sql(session)
        with pytest.raises(Exception, match="never changed"):
            session.run("UPDATE outbox SET type = 'other'")


def test_a_database_that_cannot_be_opened_is_an_error_of_ours(url: DatabaseUrl) -> None:
    wrong = {
        "postgresql": "postgresql://postgres@127.0.0.1:1/none",
        "mysql": "mysql://tester:wrong@" + url.url.rpartition("@")[2],
        "sqlite": "sqlite:////nowhere/at/all.db",
    }[url.dialect]
    with pytest.raises(OutboxError):
        install(DatabaseUrl.parse(wrong), OutTable())
