"""Relays for the tests: run once, in a thread, or as the program in a process of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connector.options import DeleteAfter, RelayOptions
from connector.relay import Relay
from connector.supervisor import run
from outbox.database import DatabaseUrl, Session
from outbox.errors import OutboxError
from outbox.names import OutTable
from outbox.schema import install
from stream_store import open_stream
from tests.program import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_SECONDS = 60.0


def relay_options(database_url: str, stream_url: str, table: OutTable | str = "outbox", **changes: Any) -> RelayOptions:
    """Options with a short lease, so that tests of take-overs do not wait for long."""
    if isinstance(table, str):
        table = OutTable.parse(table)
    delete_after = changes.pop("delete_after", "durable")
    options = RelayOptions(
        DatabaseUrl.parse(database_url),
        table,
        stream_url,
        delete_after=DeleteAfter.parse(delete_after),
        lease_seconds=2.0,
    )
    return replace(options, **changes)


def installed(database_url: str, stream_url: str, table: OutTable | str = "outbox", **changes: Any) -> RelayOptions:
    """An outbox that is there now, and the options of its relay."""
    options = relay_options(database_url, stream_url, table, **changes)
    install(options.database, options.table)
    return options


def relay_once(options: RelayOptions) -> None:
    """What `outbox relay --once` does, without its retries: every error is to be seen."""
    Relay(options, threading.Event(), once=True).run()


class RelayThread:
    """Relays under a supervisor in a thread of this process."""

    def __init__(self, *relays: RelayOptions, once: bool = False) -> None:
        self.stop = threading.Event()
        self.exit_code: int | None = None
        self._relays = relays
        self._once = once
        self._thread = threading.Thread(target=self._run, name="test relay")

    def _run(self) -> None:
        self.exit_code = run(self._relays, once=self._once, stop=self.stop)

    def __enter__(self) -> RelayThread:
        self._thread.start()
        return self

    def wait(self) -> int:
        """The exit code of a relay that ends by itself."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the relay goes on"
        assert self.exit_code is not None
        return self.exit_code

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the relay does not stop"


class RelayProcess:
    """`outbox relay` in a process of its own; its log goes to a file."""

    def __init__(self, options: RelayOptions, log: Path, *more: str) -> None:
        self.log = log
        keep = options.delete_after
        arguments = {
            "--database": options.database.url,
            "--stream": options.stream,
            "--outbox": str(options.table),
            "--delete-after": f"{keep.age_seconds}s" if keep.kind == "age" else keep.kind,
            "--fence": options.fence,
            "--lease": f"{options.lease_seconds}s",
            "--batch-rows": str(options.batch_rows),
        }
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command("relay", *(word for pair in arguments.items() for word in pair), *more),
                stdout=sink,
                stderr=sink,
                env=environment(),
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and the exit code after it."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_SECONDS)

    def resident_bytes_max(self) -> int:
        """The most memory the process has had at any time."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM: not Linux?")

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait for something to become true, and say what did not."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


def stream_rows(stream_url: str) -> list[dict[str, Any]]:
    """Every event of a stream; its chain is checked on the way, over losses that are recorded only."""
    rows: list[dict[str, Any]] = []
    with contextlib.closing(open_stream(stream_url)) as stream:
        facts = stream.info()
        at = facts.trimmed_through
        for batch in stream.read(at):
            at = at if batch.prev_id == at else dict(facts.lost).get(at, at)
            assert batch.prev_id == at, f"{batch.first_id} follows {batch.prev_id}, not {at}"
            at = batch.last_id
            rows += batch.rows.to_pylist()
    ids = [row["id"] for row in rows]
    assert ids == sorted(set(ids)), "IDs do not strictly increase"
    return rows


def stream_ids(stream_url: str) -> list[int]:
    return [row["id"] for row in stream_rows(stream_url)]


def stream_tail(stream_url: str) -> int:
    """The tail; 0 also before there is a stream."""
    try:
        with contextlib.closing(open_stream(stream_url)) as stream:
            return stream.tail()
    except OutboxError:
        return 0


def emit(options: RelayOptions, count: int = 1, subject: str = "o") -> None:
    """Commit events by plain SQL in one transaction."""
    table = options.table.quoted(options.database.dialect).replace("%", "%%")
    with Session(options.database, options.table) as session, session.transaction():
        for start in range(0, count, 1000):
            values = ", ".join(
                f"""('order.placed', '{subject}-{n}', '{{"n": {n}}}')""" for n in range(start, min(count, start + 1000))
            )
            session.run(f"INSERT INTO {table} (type, subject, data) VALUES {values}".replace("%%", "%"))


def table_ids(options: RelayOptions) -> list[int]:
    """The IDs of the rows that are visible in the out table."""
    with Session(options.database, options.table) as session:
        found = session.run(f"SELECT id FROM {options.table.quoted(session.dialect)} ORDER BY id")
    return [int(number) for (number,) in found]


def deleted_through(options: RelayOptions) -> int:
    with Session(options.database, options.table) as session:
        return int(session.row("standing")[1])


@contextlib.contextmanager
def transaction(options: RelayOptions, application: str = "writer") -> Iterator[Session]:
    """A session in an open transaction; whoever uses it ends it, or leaving it rolls back."""
    with Session(options.database, options.table, application=application) as session:
        session.run("BEGIN")
        yield session


def insert(session: Session, subject: str = "o", data: str = "{}") -> int:
    """One row on an open session; its ID."""
    table = session.table.quoted(session.dialect).replace("%", "%%")
    mark = (":s", ":d") if session.dialect == "sqlite" else ("%(s)s", "%(d)s")
    found = session.run(
        f"INSERT INTO {table} (type, subject, data) VALUES ('t', {mark[0]}, {mark[1]}) RETURNING id"
        if session.dialect != "mysql" or _is_mariadb(session)
        else f"INSERT INTO {table} (type, subject, data) VALUES ('t', {mark[0]}, {mark[1]})",
        {"s": subject, "d": data},
    )
    return int(found[0][0] if found else session.run("SELECT last_insert_id()")[0][0])


def _is_mariadb(session: Session) -> bool:
    return "mariadb" in str(session.driver.get_server_info()).lower()
