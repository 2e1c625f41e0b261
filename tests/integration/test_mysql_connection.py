"""Connections to a real MariaDB: they end with their server, and the URL's options mean what they say."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from urllib.parse import quote

import connectorx
import pytest

from connector.sources.mysql_bulk import bulk_address
from outbox.database import DatabaseUrl, Session
from outbox.errors import DatabaseUnavailable
from outbox.names import OutTable
from tests.servers import mariadb

TABLE = OutTable()


def tcp_settings(connected: socket.socket) -> dict[str, int]:
    names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    return {name: connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names} | {
        "SO_KEEPALIVE": connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    }


ENDS_WITH_ITS_SERVER = {
    "TCP_USER_TIMEOUT": 30_000,
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "SO_KEEPALIVE": 1,
}


def connections_to(port: int) -> list[dict[str, int]]:
    """The settings of this process's TCP connections to a port, whoever has opened them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            copied = os.dup(int(name))
        except OSError:
            continue
        try:
            with socket.socket(fileno=copied) as connected:
                if connected.family == socket.AF_INET and connected.getpeername()[1] == port:
                    found.append(tcp_settings(connected))
        except OSError:  # no socket, or none that is connected
            continue
    return found


def test_a_connection_ends_when_its_server_vanishes(mariadb_url: str):
    with Session(DatabaseUrl.parse(mariadb_url), TABLE) as session:
        assert tcp_settings(session.driver._sock) == ENDS_WITH_ITS_SERVER


def test_the_connection_for_backlogs_ends_when_its_server_vanishes(mariadb_url: str):
    url = DatabaseUrl.parse(mariadb_url)
    # On this very machine it would change to the server's Unix socket.
    address = bulk_address(url) + "&prefer_socket=false"
    reading = threading.Thread(
        target=connectorx.read_sql, args=(address, "SELECT sleep(1) AS a"), kwargs={"return_type": "arrow"}
    )
    reading.start()
    found: list[dict[str, int]] = []
    while reading.is_alive() and not found:
        found = connections_to(url.parts.port or 0)
        time.sleep(0.01)
    reading.join()
    assert found == [ENDS_WITH_ITS_SERVER]


def test_a_unix_socket_needs_no_keepalives(mariadb_url: str):
    with mariadb.connect(mariadb_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@socket")
        ((path,),) = cursor.fetchall()
    if not Path(path).exists():
        pytest.skip("the server's Unix socket is on another machine")
    with Session(DatabaseUrl.parse(f"{mariadb_url}?unix_socket={quote(path)}"), TABLE) as session:
        assert session.driver._sock.family == socket.AF_UNIX
        assert session.run("SELECT 1") == [(1,)]


def test_a_server_that_accepts_and_never_answers_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = DatabaseUrl.parse(f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=0.3")
        with pytest.raises(DatabaseUnavailable, match="timed out"):
            Session(url, TABLE)


def test_a_statement_may_take_longer_than_connecting(mariadb_url: str):
    with Session(DatabaseUrl.parse(f"{mariadb_url}?connect_timeout=0.5"), TABLE) as session:
        assert session.run("SELECT sleep(1)") == [(0,)]


def test_a_statement_gives_up_after_the_read_timeout(mariadb_url: str):
    with (
        Session(DatabaseUrl.parse(f"{mariadb_url}?read_timeout=0.3"), TABLE) as session,
        pytest.raises(DatabaseUnavailable, match="timed out"),
    ):
        session.run("SELECT sleep(5)")
