"""The relay as a daemon: stopping, standing by, many outboxes, idling, and its memory."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from connector.sources.postgresql import PostgresSource
from connector.verify import verify
from outbox.database import Session
from outbox.info import read_info
from tests.integration.relays import (
    RelayProcess,
    RelayThread,
    emit,
    installed,
    relay_once,
    stream_ids,
    stream_tail,
    table_ids,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from connector.options import RelayOptions

MIB = 2**20


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


def leader_of(options: RelayOptions) -> str | None:
    with Session(options.database, options.table) as session:
        return read_info(session).leader


def test_sigterm_finishes_what_is_under_way_and_exits_0(outbox: RelayOptions, tmp_path: Path):
    emit(outbox, 20_000)
    with RelayProcess(replace(outbox, batch_rows=1_000), tmp_path / "relay.log") as relay:
        until(lambda: stream_tail(outbox.stream) > 0, "the relay is at work")
        assert relay.terminate() == 0, relay.log.read_text()
    assert leader_of(outbox) is None, "the next one may lead at once"
    result = verify(outbox.database, outbox.table, outbox.stream)
    assert result.ok, result
    assert result.events + result.rows_pending == 20_000
    with RelayProcess(outbox, tmp_path / "relay.log", "--once") as relay:
        assert relay.process.wait(60) == 0, relay.log.read_text()
    assert stream_ids(outbox.stream) == list(range(1, 20_001))
    assert table_ids(outbox) == []


def test_standby_takes_over_when_the_leader_stops(outbox: RelayOptions):
    with capture_logs() as logs, RelayThread(outbox) as first:
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 1, "the first leads")
        with RelayThread(outbox) as second:
            until(lambda: any("standing by" in entry["event"] for entry in logs), "the second stands by")
            first.stop.set()
            assert first.wait() == 0
            emit(outbox, 2)
            until(lambda: stream_tail(outbox.stream) == 3, "the second leads")
            second.stop.set()
            assert second.wait() == 0
    assert stream_ids(outbox.stream) == [1, 2, 3]


def test_once_beside_a_living_leader_has_nothing_to_do(outbox: RelayOptions):
    quick = replace(outbox, lease_seconds=0.5)
    with RelayThread(quick):
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 1, "the daemon leads")
        with pytest.raises(Exception, match="another relay leads"):
            relay_once(quick)


def test_one_outbox_that_fails_for_good_does_not_stop_the_others(database_url: str, tmp_path: Path):
    """Exit code 4 in the end, and until then the others are served."""
    good = [installed(database_url, f"file://{tmp_path}/{name}", name) for name in ("orders", "customers")]
    bad = installed(database_url, good[0].stream + "-bad", "payments")
    emit(bad)
    relay_once(bad)
    swapped = replace(bad, stream=f"file://{tmp_path}/empty")
    with capture_logs() as logs, RelayThread(*good, swapped) as relay:
        until(lambda: any(entry.get("kind") == "WrongPartner" for entry in logs), "one fails for good")
        for options in good:
            emit(options, 3)
        for options in good:
            until(lambda options=options: stream_tail(options.stream) == 3, f"{options.table} is relayed")
        relay.stop.set()
        assert relay.wait() == 4
    assert [stream_ids(options.stream) for options in good] == [[1, 2, 3], [1, 2, 3]]
    assert stream_ids(swapped.stream) == []


def test_idle_relay_asks_little(outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """The budget is 20 statements a second. Counted on every session, and the reads beside them."""
    counted: list[str] = []
    lock = threading.Lock()

    def counting(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(*arguments: Any, **more: Any) -> Any:
            with lock:
                counted.append(name)
            return original(*arguments, **more)

        monkeypatch.setattr(kind, name, call)

    counting(Session, "run")
    counting(Session, "change")
    counting(PostgresSource, "read")
    emit(outbox, 3)
    with RelayThread(outbox):
        until(lambda: stream_tail(outbox.stream) == 3 and table_ids(outbox) == [], "everything is relayed")
        time.sleep(1)
        counted.clear()
        begun = time.monotonic()
        time.sleep(3)
        rate = len(counted) / (time.monotonic() - begun)
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 4, "the first event after an idle while")
    with capsys.disabled():
        print(f"\nidle on {outbox.database.dialect}: {rate:.1f} statements/s")
    # A slow machine makes it fewer, never more.
    assert rate <= 20


COUNTED = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25)"
LARGE = {
    "postgresql": f"{COUNTED} INSERT INTO outbox (type, data) SELECT 't', to_json(repeat('x', 1048574)) FROM n",
    "mysql": f"""INSERT INTO outbox (type, data) {COUNTED} SELECT 't', concat('"', repeat('x', 1048574), '"') FROM n""",
    "sqlite": f"""INSERT INTO outbox (type, data) {COUNTED} SELECT 't', '"' || printf('%.*c', 1048574, 'x') || '"' FROM n""",
}


def test_memory_is_bounded_with_rows_of_a_mebibyte(
    database_url: str, stream_url: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    outbox = installed(database_url, stream_url)
    with Session(outbox.database, outbox.table) as session:
        # PostgreSQL keeps them compressed; elsewhere the test would mostly wait for the disk.
        count = 300 if outbox.database.dialect == "postgresql" else 150
        for _ in range(count // 25):
            session.run(LARGE[outbox.database.dialect])
    with RelayProcess(outbox, tmp_path / "relay.log") as relay:
        until(lambda: stream_tail(stream_url) >= count and table_ids(outbox) == [], "all is relayed", 120)
        peak_bytes = relay.resident_bytes_max()
        assert relay.terminate() == 0, relay.log.read_text()
    with capsys.disabled():
        print(f"\n{count} rows of 1 MiB on {outbox.database.dialect}: {peak_bytes / MIB:.0f} MiB at most")
    assert peak_bytes < 500 * MIB
