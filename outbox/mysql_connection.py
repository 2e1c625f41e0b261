"""A connection to MySQL or MariaDB through PyMySQL, which ends when its server vanishes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl

CONNECT_TIMEOUT_SECONDS = 10.0
# As for PostgreSQL: a server that is gone without a word is given up after this time.
VANISHED_TIMEOUT_SECONDS = 30
PROBE_INTERVAL_SECONDS = 10
PROBE_COUNT = 3


def connect(url: DatabaseUrl, application: str) -> Any:
    try:
        import pymysql
        from pymysql.constants import CLIENT
    except ImportError as error:
        raise UsageError("MySQL and MariaDB need their driver: pip install 'outbox-connector[mysql]'") from error
    options = url.options
    connection: Any = pymysql.connect(
        host=url.parts.hostname or "localhost",
        port=url.parts.port or 3306,
        user=url.username,
        password=url.password,
        database=url.database or None,
        unix_socket=options.get("unix_socket"),
        autocommit=True,
        charset="utf8mb4",
        # An UPDATE counts the rows it matched, as in the other databases.
        client_flag=CLIENT.FOUND_ROWS,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        # Of the handshake: a proxy may accept us and never find a server.
        read_timeout=CONNECT_TIMEOUT_SECONDS,
        ssl_ca=options.get("ssl_ca"),
        ssl_cert=options.get("ssl_cert"),
        ssl_key=options.get("ssl_key"),
        program_name=application,
        # MySQL answers with a day-old AUTO_INCREMENT unless told otherwise; MariaDB never does,
        # and skips comments for MySQL's versions.
        init_command="SET SESSION time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
        " /*!80000 , information_schema_stats_expiry = 0 */",
    )
    # From here on a statement may take its time.
    connection._read_timeout = float(options["read_timeout"]) if "read_timeout" in options else None
    end_with_its_peer(connection._sock)
    return connection


def end_with_its_peer(connected: socket.socket) -> None:
    """Have the kernel end a TCP connection whose peer has vanished: PyMySQL would wait for 15 minutes, or for ever."""
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", VANISHED_TIMEOUT_SECONDS),
        # What macOS calls the same.
        ("TCP_KEEPALIVE", VANISHED_TIMEOUT_SECONDS),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBE_COUNT),
        # Keepalives do not run while something that was sent is unanswered.
        ("TCP_USER_TIMEOUT", VANISHED_TIMEOUT_SECONDS * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
