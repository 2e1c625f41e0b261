"""`check` of the stream: there, whole, writable, and this outbox's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from connector.check import check
from outbox.batch import SCHEMA, EventBatch
from outbox.database import DatabaseUrl, Session
from outbox.info import read_info
from outbox.names import OutTable
from outbox.schema import install
from stream_store import open_stream
from tests.integration.test_check import assert_wrong, emit, look

if TYPE_CHECKING:
    from pathlib import Path

TABLE = OutTable()


@pytest.fixture
def session(database_url: str) -> Session:
    url = DatabaseUrl.parse(database_url)
    install(url, TABLE)
    return Session(url, TABLE)


def append(stream_url: str, session: Session, last_id: int, *, outbox_id: str | None = None) -> str:
    """A stream with events 1 to `last_id`, bound to the outbox; returns its ID."""
    info = read_info(session)
    ids = list(range(1, last_id + 1))
    columns = {"id": ids, "type": ["t"] * last_id, "time": [datetime.now(UTC)] * last_id}
    arrays = [pa.array(columns.get(field.name, [None] * last_id), field.type) for field in SCHEMA]
    with open_stream(stream_url, "write") as stream:
        stream.bind(outbox_id or info.outbox_id, info.source)
        stream.append(EventBatch(0, pa.record_batch(arrays, schema=SCHEMA)))
        return stream.stream_id


def bind(session: Session, stream_id: str, deleted_through: int) -> None:
    session.run(f"UPDATE outbox_info SET stream_id = '{stream_id}', deleted_through = {deleted_through}")


def test_a_stream_that_is_not_there_yet_is_fine(session: Session, stream_url: str) -> None:
    findings = look(session, stream_url)
    assert (findings["stream"].level, findings["stream-writable"].level) == ("ok", "ok")
    assert "makes it" in findings["stream"].message


def test_a_bound_pair_is_fine(session: Session, stream_url: str) -> None:
    emit(session, 3)
    bind(session, append(stream_url, session, 3), 0)
    findings = look(session, stream_url)
    assert (findings["bond"].level, findings["tail-lost"].level, findings["stream"].level) == ("ok", "ok", "ok")
    assert "ends at 3" in findings["stream"].message


def test_a_stream_that_was_never_bound_is_free(session: Session, stream_url: str) -> None:
    open_stream(stream_url, "write").close()
    assert "are free" in look(session, stream_url)["bond"].message


def test_one_copy_on_one_disk_is_a_warning_when_rows_are_deleted(session: Session, stream_url: str) -> None:
    assert_wrong(look(session, stream_url)["one-copy"], level="warning", says="one copy", fix="--delete-after")
    for policy in ("materialized", "never", "24h"):
        names = {finding.name for finding in check(session.url, TABLE, stream_url, delete_after=policy)}
        assert "one-copy" not in names


def test_another_outboxs_stream_is_refused(session: Session, stream_url: str) -> None:
    append(stream_url, session, 3, outbox_id="somebody-else")
    assert_wrong(look(session, stream_url)["bond"], says="belongs to outbox somebody-else", fix="stream of its own")


def test_another_stream_than_before_is_refused(session: Session, stream_url: str) -> None:
    append(stream_url, session, 3)
    bind(session, "the-right-one", 0)
    assert_wrong(look(session, stream_url)["bond"], says="bound to stream the-right-one", fix="outbox rebase")


def test_a_bound_stream_that_is_gone_is_an_error(session: Session, stream_url: str) -> None:
    bind(session, "the-right-one", 5)
    assert_wrong(
        look(session, stream_url)["stream"], says="is bound to stream the-right-one", fix="put the stream back"
    )


def test_a_stream_that_went_back_in_time_is_an_error(session: Session, stream_url: str) -> None:
    emit(session, 5)
    session.run("DELETE FROM outbox")
    bind(session, append(stream_url, session, 3), 5)
    assert_wrong(look(session, stream_url)["tail-lost"], says="ends at 3", fix="restore a newer copy")


def test_a_database_that_went_back_in_time_is_an_error(session: Session, stream_url: str) -> None:
    emit(session, 2)
    bind(session, append(stream_url, session, 9), 0)
    assert_wrong(look(session, stream_url)["sequence-reset"], says="stream has events through 9", fix="outbox rebase")


def test_a_damaged_stream_is_a_finding(session: Session, stream_url: str, tmp_path: Path) -> None:
    append(stream_url, session, 3)
    for path in (tmp_path / "stream").rglob("*"):
        if path.is_file():
            path.write_bytes(b"\xff" * 64)
    assert_wrong(look(session, stream_url)["stream"], says="cannot be opened", fix="outbox stream check")


def test_a_folder_that_cannot_be_written_is_an_error(sqlite_url: str, tmp_path: Path) -> None:
    install(DatabaseUrl.parse(sqlite_url), TABLE)
    session = Session(DatabaseUrl.parse(sqlite_url), TABLE)
    # Nobody makes files in /proc, root included.
    assert_wrong(look(session, "file:///proc/outbox")["stream-writable"], says="/proc cannot be written", fix="chown")
    (tmp_path / "plain").write_text("a file, no folder")
    findings = look(session, f"file://{tmp_path}/plain/stream")
    assert "error" in {finding.level for finding in findings.values()}


@pytest.mark.parametrize("url", ["", "nonsense", "carrier-pigeon://x", "file://", "file:///tmp/x?unknown=1"])
def test_a_url_that_is_no_stream_is_a_finding(sqlite_url: str, url: str) -> None:
    install(DatabaseUrl.parse(sqlite_url), TABLE)
    assert_wrong(
        look(Session(DatabaseUrl.parse(sqlite_url), TABLE), url)["stream"],
        says="cannot be opened",
        fix="correct the URL",
    )


def test_the_stream_is_looked_at_even_when_the_database_is_away(stream_url: str) -> None:
    findings = check(DatabaseUrl.parse("postgresql://nobody@127.0.0.1:1/none"), TABLE, stream_url)
    assert [finding.name for finding in findings] == ["database", "stream", "stream-writable", "one-copy"]


def test_memory_is_for_tests(sqlite_url: str) -> None:
    install(DatabaseUrl.parse(sqlite_url), TABLE)
    session = Session(DatabaseUrl.parse(sqlite_url), TABLE)
    assert_wrong(look(session, "memory://check")["one-copy"], level="warning", says="for tests")
