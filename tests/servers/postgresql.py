"""A real PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import psycopg

from tests.servers.process import free_port, kill_group, run_as, server_folder, start_as, wait_until


def binaries() -> Path | None:
    """The folder with initdb: on PATH, or where Debian keeps it."""
    found = shutil.which("initdb")
    if found:
        # A link on PATH may stand for one program alone; the others are beside the real one.
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return installed[-1].parent if installed else None


class PostgresServer:
    """A cluster of our own, on a free port; can be stopped, crashed, copied and promoted."""

    SETTINGS = (
        "listen_addresses='127.0.0.1'",
        "max_connections=200",
        "max_prepared_transactions=20",
        "wal_level=replica",
        "max_wal_senders=8",
        "hot_standby=on",
    )

    def __init__(self, folder: Path | None = None, settings: tuple[str, ...] = ()) -> None:
        programs = binaries()
        if programs is None:
            raise RuntimeError(
                "PostgreSQL's server programs are not installed: apt-get install postgresql, "
                "or set OUTBOX_TEST_POSTGRESQL_URL to a server where the tests may create databases"
            )
        self.programs = programs
        self.settings = self.SETTINGS + settings
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = folder or server_folder("pg")
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        if not self.data.exists():
            run_as(
                [
                    str(programs / "initdb"),
                    "-D",
                    str(self.data),
                    "-A",
                    "trust",
                    "-U",
                    "postgres",
                    "-E",
                    "UTF8",
                    "--no-sync",
                ]
            )

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        command = [str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)]
        for setting in self.settings:
            command += ["-c", setting.replace("'", "")]
        self.process = start_as(command, self.log)
        wait_until(lambda: psycopg.connect(self.url()).close(), "PostgreSQL", self.process, self.log)
        return self

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, everything is flushed."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def crash(self) -> None:
        """SIGKILL of the whole server: what was not flushed is gone from its memory."""
        assert self.process
        # Each backend is in a session of its own, and would go on for a moment without its parent.
        self.process.send_signal(signal.SIGSTOP)
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        kill_group(self.process)

    def restart(self) -> None:
        self.stop()
        self.start()

    def destroy(self) -> None:
        if self.process:
            kill_group(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def replica(self) -> PostgresServer:
        """An asynchronous streaming replica of this server, started."""
        folder = server_folder("pgr")
        run_as(
            [
                str(self.programs / "pg_basebackup"),
                "-D",
                str(folder / "data"),
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "-d",
                self.url(),
            ]
        )
        (folder / "data").chmod(0o700)
        return PostgresServer(folder).start()

    def promote(self) -> None:
        run_as([str(self.programs / "pg_ctl"), "promote", "-w", "-D", str(self.data)])


def admin_url() -> tuple[str, PostgresServer | None]:
    """Where the tests may create databases: environment, local binary, Docker, or fail."""
    given = os.environ.get("OUTBOX_TEST_POSTGRESQL_URL")
    if given:
        return given, None
    if binaries() is not None:
        server = PostgresServer().start()
        return server.url(), server
    try:
        from testcontainers.postgres import PostgresContainer

        container = PostgresContainer("postgres:17", driver=None).start()
    except Exception as error:
        raise RuntimeError(
            "no PostgreSQL for the tests: set OUTBOX_TEST_POSTGRESQL_URL, or apt-get install postgresql, "
            f"or start Docker ({error})"
        ) from error
    return container.get_connection_url(), None


def fresh_database(admin: str) -> str:
    """The URL of a new, empty database on the server behind `admin`."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return admin.rsplit("/", 1)[0] + "/" + name
