"""A real Redis server for the tests."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import redis

from tests.servers.process import free_port, kill_group, server_folder, start_as, wait_until

# Every acknowledged write is on the disk, which is what the tests of the contract are about.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")

_names = itertools.count(1)


def binary() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A server of its own in a folder of its own, which can be stopped, killed and started again."""

    def __init__(self, *settings: str, on_disk: bool = False) -> None:
        program = binary()
        assert program, "there is no redis-server here: apt-get install redis-server"
        self.program = program
        self.settings = settings or DURABLE
        # In memory where that can be had: a SIGKILL does not mind, and a sync costs nothing.
        in_memory = not on_disk and os.access("/dev/shm", os.W_OK)
        self.folder = server_folder("redis", "/dev/shm" if in_memory else None)
        self.port = free_port()
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        self.process = start_as(
            [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *self.settings],
            self.log,
        )
        wait_until(self._ready, "Redis", self.process, self.log)
        return self

    def _ready(self) -> None:
        with self.client() as client:
            try:
                client.ping()
            except redis.AuthenticationError:
                return

    def client(self, **options: object) -> redis.Redis:
        """A plain client, as anybody would open it."""
        return redis.Redis(port=self.port, protocol=2, **options)

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

    def aof_tail(self) -> Path:
        """The file that the server appends to."""
        return max((self.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.name)


def server_url() -> tuple[str, RedisServer | None]:
    """Where the tests may make streams: environment, local binary, Docker, or fail."""
    given = os.environ.get("OUTBOX_TEST_REDIS_URL")
    if given:
        return given.rstrip("/"), None
    if binary():
        server = RedisServer().start()
        return server.url, server
    try:
        from testcontainers.redis import RedisContainer

        container = RedisContainer("redis:7").with_command("redis-server " + " ".join(DURABLE[:-1]) + ' ""').start()
    except Exception as error:
        raise RuntimeError(
            "no Redis for the tests: set OUTBOX_TEST_REDIS_URL, or apt-get install redis-server, "
            f"or start Docker ({error})"
        ) from error
    return f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0", None


def fresh_name() -> str:
    """The name of a stream that nobody has used."""
    return f"t-{os.getpid()}-{time.time_ns()}-{next(_names)}"
