"""A connection to MySQL or MariaDB through PyMySQL, which ends when its server vanishes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError
from outbox.mysql_options import MysqlOptions

if TYPE_CHECKING:
    import ssl

    from outbox.database import DatabaseUrl

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
    options = MysqlOptions.parse(url.parts.query)
    try:
        connection: Any = pymysql.connect(
            host=url.parts.hostname or "localhost",
            port=url.parts.port or 3306,
            user=url.username,
            password=url.password,
            database=url.database or None,
            unix_socket=options.unix_socket,
            autocommit=True,
            charset="utf8mb4",
            # An UPDATE counts the rows it matched, as in the other databases.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=options.connect_timeout_seconds,
            # Of the handshake: a proxy may accept us and never find a server.
            read_timeout=options.connect_timeout_seconds,
            program_name=application,
            # MySQL answers with a day-old AUTO_INCREMENT unless told otherwise; MariaDB never does,
            # and skips comments for MySQL's versions.
            init_command="SET SESSION time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
            " /*!80000 , information_schema_stats_expiry = 0 */",
            **tls_arguments(options),
        )
    except pymysql.err.OperationalError as error:
        refuse_tls_failure(url, error)
        raise
    if options.ssl_mode not in ("DISABLED", "PREFERRED") and not is_encrypted(connection._sock):
        # PyMySQL before 1.2 goes on in the clear with a server that offers no TLS.
        connection.close()
        raise UsageError(f"{url} offers no TLS, and ssl_mode={options.ssl_mode} asks for it")
    # From here on a statement may take its time.
    connection._read_timeout = options.read_timeout_seconds
    end_with_its_peer(connection._sock)
    return connection


def tls_arguments(options: MysqlOptions) -> dict[str, Any]:
    """What PyMySQL is told about TLS.

    A context of our own: without a CA its own arguments check neither certificate nor host,
    whatever they say.
    """
    if options.ssl_mode == "PREFERRED":
        return {}
    if options.ssl_mode == "DISABLED":
        return {"ssl_disabled": True}
    return {"ssl": tls_context(options)}


def tls_context(options: MysqlOptions) -> ssl.SSLContext:
    import ssl

    reading = f"ssl_ca={options.ssl_ca}"
    try:
        # Without a file, the system's own authorities.
        context = ssl.create_default_context(cafile=options.ssl_ca)
        if options.ssl_cert is not None:
            reading = f"ssl_cert={options.ssl_cert}" + (f", ssl_key={options.ssl_key}" if options.ssl_key else "")
            # No password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(options.ssl_cert, options.ssl_key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{reading} cannot be read ({reason}): name files in PEM format, keys without a password"
        ) from error
    # MySQL makes certificates for itself that do not keep to every letter of X.509.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = options.ssl_mode == "VERIFY_IDENTITY"
    if options.ssl_mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return context


def refuse_tls_failure(url: DatabaseUrl, error: Exception) -> None:
    """A server that is there, and is not who we trust, is no server that does not answer."""
    import ssl

    reason = getattr(error, "original_exception", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise UsageError(
            f"{url} shows a certificate that is not trusted: {reason.verify_message}. Look at ssl_ca, which names its "
            "authority, and with VERIFY_IDENTITY at the host's name in the URL"
        ) from error
    if error.args[:1] == (2026,):
        raise UsageError(f"{url} offers no TLS, and its ssl_mode asks for it: {error.args[-1]}") from error


def is_encrypted(connected: socket.socket) -> bool:
    import ssl

    return isinstance(connected, ssl.SSLSocket)


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
