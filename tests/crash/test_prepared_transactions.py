"""A transaction that was prepared and left alone: the stream waits for its end, whichever it is."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from tests.crash.outbox_case import OutboxCase, Row
from tests.crash.relay_process import running, until
from tests.servers import mariadb, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Server = postgresql.PostgresServer | mariadb.MariaDbServer


class Prepared:
    """A transaction with three rows that is prepared, and whose client then leaves."""

    def __init__(self, case: OutboxCase) -> None:
        self._case = case
        self._name = f"left-{uuid.uuid4().hex[:8]}"
        self._connection: Any = case.connect()
        self._ended = False
        if case.dialect == "mysql":
            self._connection.cursor().execute(f"XA START '{self._name}'")
        contents = [case.new_row() for _ in range(3)]
        self.rows: dict[int, Row] = {case.insert(self._connection, content): content for content in contents}

    def prepare(self) -> None:
        statements = [f"PREPARE TRANSACTION '{self._name}'"]
        if self._case.dialect == "mysql":
            statements = [f"XA END '{self._name}'", f"XA PREPARE '{self._name}'"]
        for statement in statements:
            self._connection.cursor().execute(statement)
        self._connection.close()

    def end(self, how: str) -> None:
        """COMMIT or ROLLBACK, by somebody else, once the server has noticed that the client left."""
        sql = f"XA {how} '{self._name}'" if self._case.dialect == "mysql" else f"{how} PREPARED '{self._name}'"
        until(lambda: self._try(sql))
        if how == "COMMIT":
            self._case.committed |= self.rows

    def _try(self, sql: str) -> bool:
        with contextlib.suppress(pymysql.err.MySQLError):  # MariaDB is just closing the session it belonged to
            self._case.execute(sql)
            self._ended = True
        return self._ended


@contextlib.contextmanager
def begun(case: OutboxCase) -> Iterator[Prepared]:
    """One that is not left behind: on MariaDB it would hold the streams of every database."""
    prepared = Prepared(case)
    try:
        yield prepared
    finally:
        if not prepared._ended:
            prepared.end("ROLLBACK")


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_stream_waits_for_a_prepared_transaction_and_then_has_it_or_its_ids_dead(
    server_case: OutboxCase, how: str
) -> None:
    case = server_case
    case.write(3)
    with begun(case) as prepared:
        prepared.prepare()
        case.write(3)
        with running(case.orders()) as relay:
            until(lambda: f"held at {min(prepared.rows)} by" in relay.said(), relay.said)
            assert max(case.streamed()) == min(prepared.rows) - 1
            assert relay.exit_code is None
            prepared.end(how)
            assert relay.wait() == 0, relay.said()
    case.assert_exactly_once()


def test_transaction_prepared_while_the_relay_waits_for_its_session_is_waited_for(server_case: OutboxCase) -> None:
    """On MariaDB the metadata lock goes when the client leaves, and only XA RECOVER knows it from then on."""
    case = server_case
    case.write(3)
    with begun(case) as prepared:
        case.write(3)
        with running(case.orders()) as relay:
            until(lambda: f"held at {min(prepared.rows)} by" in relay.said(), relay.said)
            prepared.prepare()
            case.write(3)
            assert relay.exit_code is None
            assert max(case.streamed()) == min(prepared.rows) - 1
            prepared.end("COMMIT")
            assert relay.wait() == 0, relay.said()
    case.assert_exactly_once()


@pytest.fixture(scope="module")
def own_postgresql() -> Iterator[Server]:
    server = postgresql.PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[Server]:
    server = mariadb.MariaDbServer().start()
    yield server
    server.destroy()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"own_{request.param}")


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_prepared_transaction_is_waited_for_across_the_end_of_its_server(
    server: Server, folder: Path, how: str, ending: str
) -> None:
    package = postgresql if isinstance(server, postgresql.PostgresServer) else mariadb
    case = OutboxCase(package.fresh_database(server.url()), folder)
    case.write(3)
    with begun(case) as prepared:
        prepared.prepare()
        case.write(3)
        with running(case.orders()) as relay:
            until(lambda: case.streamed() and max(case.streamed()) == min(prepared.rows) - 1, relay.said)
            leading = relay.said().count("leading")
            server.stop() if ending == "restart" else server.crash()
            server.start()
            until(lambda: relay.said().count("leading") > leading, relay.said)
            case.write(3)
            until(lambda: f"held at {min(prepared.rows)} by" in relay.said(), relay.said)
            assert max(case.streamed()) == min(prepared.rows) - 1
            prepared.end(how)
            assert relay.wait() == 0, relay.said()
    case.assert_exactly_once()


def test_prepared_transaction_of_another_database_does_not_hold_the_stream(postgresql_case: OutboxCase) -> None:
    case = postgresql_case
    elsewhere = OutboxCase(postgresql.fresh_database(case.url.rsplit("/", 1)[0] + "/postgres"), case.folder / "other")
    with begun(elsewhere) as prepared:
        prepared.prepare()
        case.write(3)
        assert case.relay_once() == 0
        case.assert_exactly_once()
