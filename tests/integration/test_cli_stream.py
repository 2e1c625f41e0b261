"""`outbox stream …`: trim, copy, compact, redact and repair, as a person runs them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cli.main import run as run_here
from connector.retainer import Retainer
from connector.start import bind
from outbox.batch import SCHEMA, EventBatch
from outbox.database import Session
from outbox.errors import WrongPartner
from outbox.info import read_info
from stream_store import check, open_stream
from stream_store.file import readers as file_readers
from stream_store.file.segment import list_segments, segment_path
from stream_store.readers import GROUP, TABLE
from stream_store.retention import Policy
from tests.integration.relays import RelayThread, emit, installed, relay_once, stream_tail, until
from tests.program import run as run_program
from tests.program import start

NOW = datetime.now(UTC)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in this process: a new one takes a second to start, and here are a hundred of them."""
    output, errors = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run_here(arguments)
    texts = []
    for stream in (output, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, *texts)


def succeed(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def report(*arguments: str, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def events(first: int, count: int, **more: Any) -> EventBatch:
    rows = [
        {
            "id": number,
            "type": "order.placed",
            "subject": f"order-{number % 5}",
            "data": json.dumps({"n": number}),
            "data_bytes": None,
            "datacontenttype": None,
            "headers": None,
            "time": NOW - timedelta(hours=100 - number),
            **more,
        }
        for number in range(first, first + count)
    ]
    return EventBatch(first - 1, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """100 events, one an hour until now, in segments of ten."""
    url = f"file://{tmp_path}/stream"
    with open_stream(url + "?segment_bytes=1", "write") as stream:
        for first in range(1, 100, 10):
            stream.append(events(first, 10))
    return url


def ids(url: str, *more: str) -> list[int]:
    return [int(json.loads(line)["id"]) for line in succeed("tap", "--stream", url, *more).splitlines()]


@pytest.mark.parametrize(
    ("limit", "wanted", "trimmed"),
    [
        (("--keep-days", "1"), 76, 70),
        (("--keep-count", "35"), 65, 60),
        (("--keep-bytes", "1GB"), 0, 0),
        (("--keep-bytes", "1B"), 100, 100),
        (("--through", "42"), 42, 40),
        (("--through", (NOW - timedelta(hours=60)).isoformat()), 40, 40),
        (("--keep-days", "1", "--keep-count", "10"), 90, 90),
    ],
)
def test_trim_says_what_it_would_do_and_does_it(url, limit, wanted, trimmed):
    planned = report("stream", "trim", "--stream", url, *limit, "--dry-run")
    assert (planned["wanted"], planned["through"], planned["trimmed_through"], planned["applied"]) == (
        wanted,
        wanted,
        0,
        False,
    )
    assert check(url).events == 100
    done = report("stream", "trim", "--stream", url, *limit)
    assert (done["trimmed_through"], done["applied"]) == (trimmed, True)
    assert ids(url) == list(range(trimmed + 1, 101))


def test_trim_is_held_back_by_readers_that_are_alive_and_names_them(url, tmp_path, monkeypatch):
    with open_stream(url) as stream:
        stream.report(TABLE, "/lake/orders", 33)
        stream.report(GROUP, "mailer", 95)
        stream.report(GROUP, "gone", 5)
    old = next((tmp_path / "stream" / "readers").glob("*.json"))
    for path in (tmp_path / "stream" / "readers").glob("*.json"):
        said = json.loads(path.read_bytes())
        if said["name"] == "gone":
            old = path
    said = json.loads(old.read_bytes())
    old.write_text(json.dumps({**said, "reported_at": (NOW - timedelta(days=3)).isoformat()}))
    held = report("stream", "trim", "--stream", url, "--keep-count", "0", "--dry-run")
    assert held["through"] == 5
    assert [hold["name"] for hold in held["held_by"]] == ["gone", "/lake/orders", "mailer"]
    assert held["reader_max_age_seconds"] is None
    passed = report("stream", "trim", "--stream", url, "--keep-count", "0", "--reader-max-age", "2d", "--dry-run")
    assert (passed["through"], [hold["name"] for hold in passed["passed_over"]]) == (33, ["gone"])
    shown = succeed("stream", "trim", "--stream", url, "--keep-count", "0", "--reader-max-age", "2d")
    assert "table /lake/orders, at 33" in shown
    assert "passed over" in shown
    assert ids(url)[0] == 31
    assert file_readers.readers(tmp_path / "stream")
    assert report("stream", "trim", "--stream", url, "--keep-count", "0", "--force")["trimmed_through"] == 100


def test_trim_needs_a_limit_and_one_kind_of_it(url):
    for arguments, message in [
        ([], "say what to keep"),
        (["--keep-count", "1", "--through", "3"], "give one of them"),
        (["--keep-bytes", "5 minutes"], "says not what to keep"),
        (["--keep-bytes", "5d"], "is not a size"),
    ]:
        done = run("stream", "trim", "--stream", url, *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.fixture
def shop(sqlite_url: str, tmp_path: Path):
    """An outbox on SQLite with a stream of small segments, 20 events relayed, the rows kept."""
    options = installed(sqlite_url, f"file://{tmp_path}/shop?segment_bytes=1", delete_after="never")
    for _ in range(5):
        emit(options, 4)
        relay_once(options)
    return options


def database(shop: Any) -> str:
    return str(shop.database.url)


def test_stream_is_not_trimmed_past_the_rows_of_the_out_table(shop):
    refused = run("stream", "trim", "--stream", shop.stream, "--keep-count", "3")
    assert (refused.returncode, "--database URL" in refused.stderr) == (2, True)
    forced = run("stream", "trim", "--stream", shop.stream, "--keep-count", "3", "--force")
    assert (forced.returncode, "--no-out-table" in forced.stderr) == (2, True)
    flags = ["--stream", shop.stream, "--keep-count", "3", "--database", database(shop)]
    held = report("stream", "trim", *flags, "--force")
    assert (held["wanted"], held["trimmed_through"], held["deleted_through"]) == (17, 0, 0)
    assert held["held_by"][0]["kind"] == "out table"
    with Session(shop.database, shop.table) as session:
        session.run("DELETE FROM outbox WHERE id <= 9")
        session.run("UPDATE outbox_info SET deleted_through = 9")
    assert report("stream", "trim", *flags)["trimmed_through"] == 8
    relay_once(shop)


def test_relay_does_what_is_asked_of_its_stream(shop):
    """The command finds the stream locked, and the relay trims and erases for it."""
    options = ["--stream", shop.stream, "--database", database(shop)]
    with RelayThread(shop):
        with open_stream(shop.stream) as stream:
            subjects = {event["subject"] for part in stream.read(0) for event in part.rows.to_pylist()}
        until(lambda: run("stream", "trim", *options, "--keep-count", "1").returncode == 0, "the relay leads")
        redacted = report("stream", "redact", "--stream", shop.stream, "--subject", "nobody")
        assert (redacted["events"], redacted["redacted"]) == (0, 0)
        assert report("stream", "trim", *options, "--through", "10", "--force")["trimmed_through"] == 0
        emit(shop, 2)
        until(lambda: stream_tail(shop.stream) == 22, "the relay goes on")
    assert subjects
    assert check(shop.stream).ok


def test_relay_trims_by_its_own_policy(sqlite_url, tmp_path):
    options = installed(sqlite_url, f"file://{tmp_path}/kept?segment_bytes=1")
    for _ in range(5):
        emit(options, 2)
        relay_once(options)

    class Log:
        lines: list[str] = []  # noqa: RUF012 - one test

        def info(self, text: str, **_: object) -> None:
            self.lines.append(text)

        warning = info

    with open_stream(options.stream, "write") as stream:
        stream.report(TABLE, "orders", 3)
        retainer = Retainer(stream, Policy.parse("3 events"), lambda: 10, Log())
        assert retainer.look().through == 3
        assert stream.info().trimmed_through == 2
        stream.forget(TABLE, "orders")
        retainer.look()
        assert stream.info().trimmed_through == 6
    assert Log.lines == ["trimmed the stream", "retention waits", "trimmed the stream"]
    config = tmp_path / "outbox.toml"
    config.write_text(f'database = "{sqlite_url}"\nstream = "{options.stream}"\nretain = "1 events"\n')
    trimmed = report("stream", "trim", "--config", str(config))
    assert trimmed["trimmed_through"] == 8
    done = run_program("relay", "--once", "--config", str(config))
    assert done.returncode == 0, done.stderr
    bad = run_program("relay", "--once", "--config", str(config), "--retain", "some")
    assert (bad.returncode, "says not what to keep" in bad.stderr) == (2, True)


def test_copy_goes_on_and_follows(url, tmp_path):
    target = f"file://{tmp_path}/copy"
    done = report("stream", "copy", "--stream", url, "--to", target)
    assert (done["after"], done["through"], done["events"]) == (0, 100, 100)
    following = start("stream", "copy", "--stream", url, "--to", target, "--follow", "--json")
    try:
        with open_stream(url, "write") as stream:
            stream.append(events(101, 7))
        until(lambda: stream_tail(target) == 107, "the copy follows")
        following.send_signal(signal.SIGTERM)
        output, errors = following.communicate(timeout=30)
    finally:
        following.kill()
    assert following.returncode == 0, errors
    assert json.loads(output)["events"] == 7
    assert "copied" in succeed("stream", "copy", "--stream", url, "--to", target)
    assert ids(target) == list(range(1, 108))
    other = f"file://{tmp_path}/other"
    with open_stream(other, "write") as stream:
        stream.append(events(1, 5, type="another"))
    refused = run("stream", "copy", "--stream", url, "--to", other)
    assert (refused.returncode, "no copy of" in refused.stderr) == (4, True)


def test_new_consumers_begin_with_a_snapshot(url, tmp_path):
    snapshot = f"file://{tmp_path}/snapshot"
    done = report("stream", "compact", "--stream", url, "--to", snapshot, "--through", "90")
    assert (done["subjects"], done["events_written"], done["tail"]) == (5, 5, 90)
    assert ids(snapshot) == [86, 87, 88, 89, 90]
    assert "compacted" in succeed("stream", "info", "--stream", snapshot)
    assert report("stream", "check", "--stream", snapshot)["compacted"] is True
    report("stream", "trim", "--stream", url, "--through", "90")
    assert ids(url, "--snapshot", snapshot) == list(range(86, 101))
    assert ids(url, "--snapshot", snapshot, "--from", "88", "--to", "93") == list(range(88, 94))
    assert ids(url, "--snapshot", snapshot, "--from", "latest") == []
    second = f"file://{tmp_path}/second"
    succeed("stream", "compact", "--stream", url, "--snapshot", snapshot, "--to", second)
    assert ids(second) == [96, 97, 98, 99, 100]
    refused = run("stream", "compact", "--stream", url, "--to", second)
    assert (refused.returncode, "name a new place" in refused.stderr) == (2, True)
    refused = run("tap", "--stream", url, "--snapshot", url)
    assert (refused.returncode, "no snapshot" in refused.stderr) == (2, True)


def test_snapshot_that_was_killed_is_finished(url, tmp_path):
    """The program is killed somewhere; the same command ends it."""
    with open_stream(url, "write") as stream:
        for first in range(101, 20_000, 1000):
            stream.append(events(first, 1000))
    snapshot = f"file://{tmp_path}/snapshot"
    process = start("stream", "compact", "--stream", url, "--to", snapshot)
    until(lambda: (tmp_path / "snapshot" / "readers").exists(), "it has begun")
    process.kill()
    process.communicate()
    done = run("stream", "compact", "--stream", url, "--to", snapshot)
    assert done.returncode == 0 or "finished snapshot" in done.stderr
    assert len(ids(snapshot)) == 5


def test_no_relay_appends_to_a_snapshot(shop, tmp_path):
    snapshot = f"file://{tmp_path}/snapshot"
    succeed("stream", "compact", "--stream", shop.stream, "--to", snapshot)
    refused = run_program("relay", "--once", "--database", database(shop), "--stream", snapshot)
    assert (refused.returncode, "outbox stream compact" in refused.stderr) == (4, True), refused.stderr
    with (
        Session(shop.database, shop.table) as session,
        open_stream(snapshot, "write") as stream,
        pytest.raises(WrongPartner, match="no relay appends"),
    ):
        bind(read_info(session), stream, session)
    found = report("verify", "--database", database(shop), "--stream", snapshot, code=3)
    assert found["compacted"] is True
    assert any("outbox stream compact" in problem for problem in found["problems"])
    refused = run("rebase", "--database", database(shop), "--stream", snapshot, "--dry-run")
    assert (refused.returncode, "made by compaction" in refused.stderr) == (4, True)


def test_redaction_is_counted_and_rows_that_still_hold_the_data_are_named(shop, tmp_path):
    with open_stream(shop.stream) as stream:
        first = next(stream.read(0)).rows.to_pylist()[0]
    subject = first["subject"]
    if subject is None:
        with Session(shop.database, shop.table) as session:
            session.run("INSERT INTO outbox (type, subject, data) VALUES ('t', 'somebody', '{\"name\": \"Ann\"}')")
        relay_once(shop)
        subject = "somebody"
    planned = report("stream", "redact", "--stream", shop.stream, "--subject", subject, "--dry-run")
    assert (planned["applied"], planned["redacted"], planned["to_redact"] > 0) == (False, 0, True)
    done = report("stream", "redact", "--stream", shop.stream, "--subject", subject)
    assert done["redacted"] == done["events"] == planned["to_redact"]
    again = report("stream", "redact", "--stream", shop.stream, "--subject", subject)
    assert (again["redacted"], again["redacted_before"]) == (0, done["redacted"])
    found = report("verify", "--database", database(shop), "--stream", shop.stream)
    assert (found["ok"], found["redacted"], found["unredacted_rows"]) == (True, done["redacted"], done["redacted"])
    assert found["unredacted_ids"] == done["ids"]
    assert "still hold what was redacted" in found["warnings"][0]
    assert "redacted" in succeed("verify", "--database", database(shop), "--stream", shop.stream)
    assert "still hold" in run("stream", "redact", "--stream", shop.stream, "--subject", subject).stderr
    assert report("stream", "check", "--stream", shop.stream)["redacted"] == done["redacted"]
    # The rows that were kept are offered again at each start, and are the same events.
    relay_once(shop)


def damage(folder: Path) -> None:
    path = segment_path(folder, list_segments(folder)[3])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_damage_is_mended_from_a_copy_by_the_program(url, tmp_path):
    succeed("stream", "copy", "--stream", url, "--to", f"file://{tmp_path}/copy")
    damage(tmp_path / "stream")
    assert run("stream", "check", "--stream", url).returncode == 3
    assert run("stream", "repair", "--stream", url).returncode == 2
    planned = report("stream", "repair", "--stream", url, "--from", f"file://{tmp_path}/copy", "--dry-run")
    assert (planned["ok"], planned["applied"], planned["damage"][0]["events"]) == (True, False, 10)
    assert "mended" in succeed("stream", "repair", "--stream", url, "--from", f"file://{tmp_path}/copy")
    assert report("stream", "check", "--stream", url)["ok"] is True
    assert ids(url) == list(range(1, 101))
    assert "nothing to mend" in run("stream", "repair", "--stream", url, "--from", f"file://{tmp_path}/copy").stderr


def test_damage_is_mended_from_rows_that_were_kept(shop, tmp_path):
    damage(tmp_path / "shop")
    mend = ["stream", "repair", "--stream", shop.stream, "--database", database(shop)]
    assert report(*mend)["ok"] is True
    assert report("verify", "--database", database(shop), "--stream", shop.stream)["ok"] is True
    relay_once(shop)


def test_damage_whose_rows_were_deleted_is_said_and_left(shop, tmp_path):
    with Session(shop.database, shop.table) as session:
        session.run("DELETE FROM outbox WHERE id <= 15")
        session.run("UPDATE outbox_info SET deleted_through = 15")
    damage(tmp_path / "shop")
    mend = ["stream", "repair", "--stream", shop.stream, "--database", database(shop)]
    found = report(*mend, code=3)
    assert "were deleted from the out table" in found["damage"][0]["problem"]
    assert "CANNOT BE MENDED" in run(*mend).stdout
    assert not (tmp_path / "shop" / "damaged").exists()
