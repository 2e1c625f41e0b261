"""`rebase`: what it plans, that a plan changes nothing, and that the relay goes on after it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.options import DeleteAfter
from connector.rebase import apply, plan
from connector.verify import verify
from outbox.database import Session
from outbox.errors import (
    ConflictingRow,
    DatabaseUnavailable,
    ExplicitId,
    LateRow,
    LeaseLost,
    SequenceReset,
    ServerChanged,
    TailLost,
    WrongPartner,
)
from stream_store import open_stream
from tests.integration.relays import (
    RelayThread,
    emit,
    insert,
    installed,
    relay_once,
    stream_ids,
    stream_rows,
    stream_tail,
    table_ids,
    transaction,
    until,
)

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from connector.rebase import Step
    from connector.verify import Verification


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    return installed(database_url, stream_url)


def keeping(options: RelayOptions) -> RelayOptions:
    return replace(options, delete_after=DeleteAfter.parse("never"))


def run_sql(options: RelayOptions, sql: str) -> None:
    with Session(options.database, options.table) as session:
        session.run(sql)


def explicit(options: RelayOptions, row_id: int) -> None:
    overriding = " OVERRIDING SYSTEM VALUE" if options.database.dialect == "postgresql" else ""
    run_sql(options, f"INSERT INTO outbox (id, type, subject){overriding} VALUES ({row_id}, 't', 'explicit')")


def reset_sequence(options: RelayOptions, drawn: int) -> None:
    """As a restored database or a TRUNCATE leaves it. The out table is empty above `drawn`."""
    reset = {
        "postgresql": f"ALTER SEQUENCE outbox_id_seq RESTART WITH {drawn + 1}",
        "mysql": f"ALTER TABLE outbox AUTO_INCREMENT = {drawn + 1}",
        "sqlite": f"UPDATE sqlite_sequence SET seq = {drawn} WHERE name = 'outbox'",
    }
    run_sql(options, reset[options.database.dialect])


def older_stream(options: RelayOptions, copy: Path) -> None:
    folder = Path(options.stream.removeprefix("file://"))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def planned(options: RelayOptions) -> list[Step]:
    return plan(options.database, options.table, options.stream)


def kinds(steps: list[Step]) -> list[str]:
    return [step.kind for step in steps]


def standing(options: RelayOptions) -> tuple[object, ...]:
    """Everything that a plan must not touch."""
    with Session(options.database, options.table) as session:
        info = session.row("info")[:7]
        drawn = session.row("standing")[0]
    with contextlib.closing(open_stream(options.stream)) as stream:
        return info, drawn, table_ids(options), stream.info()


def rebase(options: RelayOptions, *expected: str) -> list[Step]:
    """Plan without a trace, apply, and have nothing left to plan."""
    before = standing(options)
    steps = planned(options)
    assert kinds(steps) == list(expected)
    assert standing(options) == before
    assert apply(options.database, options.table, options.stream) == steps
    assert planned(options) == []
    with Session(options.database, options.table) as session:
        assert session.row("info")[6] is None, "the lease is given back"
    return steps


def go_on(options: RelayOptions) -> Verification:
    """The relay goes on, and everything is in order."""
    emit(options, 1, "after")
    relay_once(options)
    result = verify(options.database, options.table, options.stream)
    assert result.ok, result
    assert table_ids(options) == []
    assert stream_rows(options.stream)[-1]["subject"] == "after-0"
    return result


def test_outbox_and_stream_that_agree_need_nothing(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    emit(outbox, 2)
    rebase(outbox)
    go_on(outbox)
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5, 6]


def test_another_server_is_accepted(outbox: RelayOptions):
    emit(outbox, 2)
    relay_once(outbox)
    run_sql(outbox, "UPDATE outbox_info SET server_id = 'the old one'")
    with pytest.raises(ServerChanged, match="outbox rebase"):
        relay_once(outbox)
    (step,) = rebase(outbox, "accept-server")
    assert "in place of the old one" in step.message
    go_on(outbox)


def test_loss_of_the_streams_end_is_recorded(outbox: RelayOptions, tmp_path: Path):
    emit(outbox, 2)
    relay_once(outbox)
    shutil.copytree(outbox.stream.removeprefix("file://"), tmp_path / "older")
    emit(outbox, 3)
    relay_once(outbox)
    older_stream(outbox, tmp_path / "older")
    with pytest.raises(TailLost, match="outbox rebase"):
        relay_once(outbox)
    (step,) = rebase(outbox, "record-loss")
    assert (step.through, "IDs 3 to 5" in step.message) == (5, True)
    result = go_on(outbox)
    assert (result.recorded_lost, result.events) == (3, 3)
    assert stream_ids(outbox.stream) == [1, 2, 6]


def test_rows_that_are_still_there_are_not_lost_with_the_streams_end(outbox: RelayOptions, tmp_path: Path):
    emit(outbox, 2)
    relay_once(outbox)
    shutil.copytree(outbox.stream.removeprefix("file://"), tmp_path / "older")
    emit(outbox, 3)
    relay_once(keeping(outbox))
    older_stream(outbox, tmp_path / "older")
    # Nothing was deleted after the stream had it: the relay appends it again by itself.
    rebase(outbox)
    go_on(outbox)
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5, 6]


def test_new_stream_takes_the_place_of_one_that_is_gone(outbox: RelayOptions):
    emit(outbox, 2)
    relay_once(outbox)
    emit(outbox, 2)
    relay_once(keeping(outbox))
    shutil.rmtree(outbox.stream.removeprefix("file://"))
    with pytest.raises(WrongPartner, match="outbox rebase"):
        relay_once(outbox)
    steps = rebase(outbox, "bind-stream", "record-loss")
    assert steps[1].through == 2
    go_on(outbox)
    assert stream_ids(outbox.stream) == [3, 4, 5]


def test_sequence_that_was_reset_is_moved_past_the_stream(outbox: RelayOptions):
    emit(outbox, 4)
    relay_once(outbox)
    reset_sequence(outbox, 0)
    with pytest.raises(SequenceReset, match="outbox rebase"):
        relay_once(outbox)
    (step,) = rebase(outbox, "move-sequence")
    assert step.message == "move the sequence from 0 to 4: the stream already has events through 4"
    go_on(outbox)
    assert stream_ids(outbox.stream) == [1, 2, 3, 4, 5]


def test_ids_that_a_restored_database_gave_out_again_get_new_ones(outbox: RelayOptions):
    """The backup is from before ID 4; since then the application has drawn 4 and 5 a second time."""
    emit(outbox, 6)
    relay_once(outbox)
    reset_sequence(outbox, 3)
    run_sql(outbox, "UPDATE outbox_info SET deleted_through = 3, relayed_through = 3")
    emit(outbox, 2, "again")
    with pytest.raises(SequenceReset):
        relay_once(outbox)
    _, step = rebase(outbox, "move-sequence", "renumber-rows")
    assert step.ids == (4, 5)
    assert table_ids(outbox) == [7, 8]
    go_on(outbox)
    assert [row["subject"] for row in stream_rows(outbox.stream)[6:]] == ["again-0", "again-1", "after-0"]


def test_conflict_without_a_reset_gets_a_new_id_too(outbox: RelayOptions):
    emit(outbox, 3)
    relay_once(outbox)
    reset_sequence(outbox, 1)
    run_sql(outbox, "UPDATE outbox_info SET deleted_through = 1, relayed_through = 1")
    emit(outbox, 2, "again")
    with pytest.raises(ConflictingRow, match="outbox rebase"):
        relay_once(outbox)
    (step,) = rebase(outbox, "renumber-rows")
    assert step.ids == (2, 3)
    go_on(outbox)
    assert [row["subject"] for row in stream_rows(outbox.stream)[3:]] == ["again-0", "again-1", "after-0"]


def test_late_rows_get_new_ids_in_their_old_order(outbox: RelayOptions):
    emit(outbox, 5)
    relay_once(outbox)
    explicit(outbox, 4)
    explicit(outbox, 2)
    with pytest.raises(LateRow, match="outbox rebase"):
        relay_once(outbox)
    (step,) = rebase(outbox, "renumber-rows")
    assert (step.ids, table_ids(outbox)) == ((2, 4), [6, 7])
    go_on(outbox)


def test_renumbered_row_keeps_its_content(outbox: RelayOptions):
    emit(outbox, 2)
    relay_once(outbox)
    columns = "(id, type, subject, data_bytes, datacontenttype, headers, time)"
    overriding = " OVERRIDING SYSTEM VALUE" if outbox.database.dialect == "postgresql" else ""
    binary = "'\\x00ff'" if outbox.database.dialect == "postgresql" else "x'00ff'"
    moment = "'2020-02-03T04:05:06.789012Z'" if outbox.database.dialect != "mysql" else "'2020-02-03 04:05:06.789012'"
    run_sql(
        outbox,
        f"INSERT INTO outbox {columns}{overriding} "
        f"VALUES (1, 'late', 's', {binary}, 'application/avro', '{{\"a\":\"b\"}}', {moment})",
    )
    (step,) = rebase(outbox, "renumber-rows")
    assert step.message.startswith("give row 1 a new ID: the stream never had it")
    relay_once(outbox)
    row = stream_rows(outbox.stream)[-1]
    assert (row["id"], row["type"], row["subject"], row["data"], row["data_bytes"]) == (3, "late", "s", None, b"\0\xff")
    assert (row["datacontenttype"], row["headers"]) == ("application/avro", '{"a":"b"}')
    assert row["time"].isoformat() == "2020-02-03T04:05:06.789012+00:00"


def test_postgresql_sequence_is_moved_past_an_explicit_id(postgresql_url: str, stream_url: str):
    outbox = installed(postgresql_url, stream_url)
    emit(outbox, 2)
    relay_once(outbox)
    explicit(outbox, 50)
    explicit(outbox, 70)
    with pytest.raises(ExplicitId, match="row 70"):
        relay_once(outbox)
    (step,) = rebase(outbox, "move-sequence")
    assert step.message == "move the sequence from 2 to 70: row 70 was written with an explicit ID"
    go_on(outbox)
    assert stream_ids(stream_url) == [1, 2, 50, 70, 71]


def test_everything_at_once(outbox: RelayOptions, tmp_path: Path):
    """The server failed over to an old backup, and the stream was restored from an older copy too."""
    emit(outbox, 2)
    relay_once(outbox)
    shutil.copytree(outbox.stream.removeprefix("file://"), tmp_path / "older")
    emit(outbox, 4)
    relay_once(outbox)
    older_stream(outbox, tmp_path / "older")
    run_sql(outbox, "UPDATE outbox_info SET server_id = 'the old one'")
    reset_sequence(outbox, 3)
    explicit(outbox, 1)
    steps = rebase(outbox, "accept-server", "record-loss", "move-sequence", "renumber-rows")
    assert [step.through for step in steps] == [None, 6, 6, None]
    go_on(outbox)
    assert stream_ids(outbox.stream) == [1, 2, 7, 8]


def test_rebase_is_refused_while_a_relay_leads(outbox: RelayOptions):
    with RelayThread(outbox):
        emit(outbox, 1)
        until(lambda: stream_tail(outbox.stream) == 1, "the relay leads")
        assert planned(outbox) == []
        with pytest.raises(LeaseLost, match="stop it first"):
            apply(outbox.database, outbox.table, outbox.stream)


def test_stream_of_another_outbox_is_never_taken_over(outbox: RelayOptions, tmp_path: Path):
    relay_once(outbox)
    other = installed(outbox.database.url, f"file://{tmp_path}/other", "other")
    relay_once(other)
    crossed = replace(outbox, stream=other.stream)
    for attempt in (plan, apply):
        with pytest.raises(WrongPartner, match="belongs to outbox"):
            attempt(crossed.database, crossed.table, crossed.stream)
    with Session(outbox.database, outbox.table) as session:
        assert session.row("info")[6] is None, "the lease is given back after a refusal too"


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"])
def test_writer_in_flight_is_not_queued_upon_for_long(database: str, stream_url: str, request: pytest.FixtureRequest):
    """Moving the sequence needs a moment without writers. While one idles, rebase gives up and says so."""
    outbox = installed(str(request.getfixturevalue(f"{database}_url")), stream_url)
    emit(outbox, 5)
    relay_once(outbox)
    reset_sequence(outbox, 0)
    with transaction(outbox) as writer:
        assert insert(writer, "in flight") == 1
        with pytest.raises(DatabaseUnavailable, match="transaction in flight holds the out table"):
            apply(outbox.database, outbox.table, outbox.stream)
        writer.run("COMMIT")
    # What it has drawn a second time meanwhile is renumbered.
    rebase(outbox, "move-sequence", "renumber-rows")
    go_on(outbox)
    assert [row["subject"] for row in stream_rows(stream_url)[5:]] == ["in flight", "after-0"]
