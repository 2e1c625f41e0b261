"""A real MariaDB server, and MySQL where Docker runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

from tests.servers.process import free_port, kill_group, run_as, server_folder, start_as, unprivileged_user, wait_until


class MariaDbServer:
    """A server of our own, on a free port; can be stopped and crashed."""

    def __init__(self, settings: tuple[str, ...] = ()) -> None:
        program = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise RuntimeError(
                "MariaDB's server program is not installed: apt-get install mariadb-server, "
                "or set OUTBOX_TEST_MARIADB_URL to a server where the tests may create databases"
            )
        self.program = program
        self.settings = settings
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = server_folder("my")
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.socket = self.folder / "s.sock"
        user = unprivileged_user()
        run_as(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={self.data}",
                # Its own: a server that starts removes what looks like temporary tables there.
                f"--tmpdir={self.folder}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
                *([f"--user={user}"] if user else []),
            ]
        )

    def url(self, database: str = "") -> str:
        return f"mysql://tester:secret@127.0.0.1:{self.port}/{database}"

    def start(self) -> MariaDbServer:
        first = self.process is None
        self.process = start_as(
            [
                self.program,
                "--no-defaults",
                f"--datadir={self.data}",
                f"--tmpdir={self.folder}",
                f"--port={self.port}",
                f"--socket={self.socket}",
                f"--pid-file={self.folder / 'pid'}",
                "--bind-address=127.0.0.1",
                "--max-connections=300",
                "--innodb-buffer-pool-size=128M",
                "--plugin-load-add=metadata_lock_info",
                "--plugin-maturity=unknown",
                *self.settings,
            ],
            self.log,
        )
        wait_until(lambda: self._root().close(), "MariaDB", self.process, self.log)
        if first:
            with self._root() as connection, connection.cursor() as cursor:
                cursor.execute("DELETE FROM mysql.global_priv WHERE user = ''")
                cursor.execute("FLUSH PRIVILEGES")
                cursor.execute("CREATE USER tester@'%' IDENTIFIED BY 'secret'")
                cursor.execute("GRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION")
        return self

    def _root(self) -> pymysql.Connection:
        return pymysql.connect(unix_socket=str(self.socket), user="root", autocommit=True)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def crash(self) -> None:
        assert self.process
        kill_group(self.process)

    def restart(self) -> None:
        self.stop()
        self.start()

    def destroy(self) -> None:
        if self.process:
            kill_group(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)


def admin_url() -> tuple[str, MariaDbServer | None]:
    """Where the tests may create databases: environment, local binary, Docker, or fail."""
    given = os.environ.get("OUTBOX_TEST_MARIADB_URL")
    if given:
        return given, None
    if shutil.which("mariadbd") or Path("/usr/sbin/mariadbd").exists():
        server = MariaDbServer().start()
        return server.url(), server
    try:
        from testcontainers.mysql import MySqlContainer

        container = MySqlContainer("mariadb:11", root_password="secret", username="root").start()
    except Exception as error:
        raise RuntimeError(
            "no MariaDB for the tests: set OUTBOX_TEST_MARIADB_URL, or apt-get install mariadb-server, "
            f"or start Docker ({error})"
        ) from error
    return f"mysql://root:secret@{container.get_container_host_ip()}:{container.get_exposed_port(3306)}/", None


def mysql_admin_url() -> str:
    """A real MySQL 8 server: from the environment or Docker; there is no other way to one."""
    given = os.environ.get("OUTBOX_TEST_MYSQL_URL")
    if given:
        return given
    from testcontainers.mysql import MySqlContainer

    container = MySqlContainer("mysql:8.4", root_password="secret", username="root").start()
    return f"mysql://root:secret@{container.get_container_host_ip()}:{container.get_exposed_port(3306)}/"


def connect(url: str, **options: object) -> pymysql.Connection:
    """A plain PyMySQL connection by URL, as an application would open it."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:] or None,
        charset="utf8mb4",
        **options,
    )


def fresh_database(admin: str) -> str:
    """The URL of a new, empty database on the server behind `admin`."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with connect(admin, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return admin.rsplit("/", 1)[0] + "/" + name
