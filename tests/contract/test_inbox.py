"""The inbox's contract, on every database and with every kind of connection that a handler can be given."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from outbox import Inbox, Outbox
from outbox.database import DatabaseUrl, Session
from outbox.errors import (
    EventsTrimmed,
    SchemaError,
    StreamCorrupt,
    StreamUnavailable,
    TailLost,
    TooManyParked,
    TransactionEnded,
    UsageError,
    WrongPartner,
)
from outbox.inbox import parking
from outbox.inbox.schema import install, render
from outbox.names import DIALECTS, OutTable
from stream_store import open_stream
from stream_store.memory import MemoryStream
from tests.inbox_case import KINDS, InboxCase, execute, record
from tests.integration.targets import connect, install_outbox, stored
from tests.streams import EPOCH, OUTBOX_ID, write_stream

OTHER_ID = "6f6b4b1e-0000-4000-8000-000000000002"


@pytest.fixture
def case(database_url: str) -> Iterator[InboxCase]:
    with contextlib.closing(InboxCase(database_url)) as made:
        yield made


@pytest.fixture(params=KINDS)
def kind_case(request: pytest.FixtureRequest, database_url: str) -> Iterator[InboxCase]:
    with contextlib.closing(InboxCase(database_url, request.param)) as made:
        yield made


@pytest.fixture
def small_case(sqlite_url: str) -> Iterator[InboxCase]:
    """For what does not depend on the database."""
    with contextlib.closing(InboxCase(sqlite_url)) as made:
        yield made


def subjects(text: str) -> list[dict[str, str]]:
    """One event for each letter, which is its subject."""
    return [{"subject": letter} for letter in text]


class Picky:
    """A handler that has its effect first, and then refuses some events."""

    def __init__(self, *refused: int) -> None:
        self.refused = set(refused)
        self.calls: list[int] = []

    def __call__(self, given, event) -> None:
        self.calls.append(event.id)
        record(given, event)
        if event.id in self.refused:
            raise ValueError(f"cannot take {event.id}")


@pytest.mark.parametrize("batch_events", [1, 3])
def test_each_event_takes_effect_once_and_in_order(kind_case, batch_events):
    kind_case.write(*subjects("abcabcabca"))
    kind_case.consume(batch_events=batch_events)
    assert kind_case.effects() == list(range(1, 11))
    kind_case.write(*subjects("xy"))
    kind_case.consume(batch_events=batch_events)
    kind_case.consume(batch_events=batch_events)
    assert kind_case.effects() == list(range(1, 13))
    (standing,) = kind_case.inbox().status()
    assert (standing.reached, standing.handled, standing.parked) == (12, 12, 0)


def test_failing_event_is_parked_and_its_subject_waits_behind_it(kind_case):
    kind_case.write(*subjects("abcab"), {"subject": None}, *subjects("a"))
    picky = Picky(1)
    kind_case.consume(picky, tries=3)
    assert picky.calls.count(1) == 4, "in the batch, and three times alone"
    assert kind_case.effects() == [2, 3, 5, 6]
    assert kind_case.parked() == {1: "failed", 4: "waiting", 7: "waiting"}
    (failed, *_) = kind_case.inbox().parked()
    assert (failed.error, failed.tries, failed.subject) == ("ValueError: cannot take 1", 3, "a")
    kind_case.consume()
    assert kind_case.effects() == [2, 3, 5, 6], "without a redrive nothing is tried again"


def test_redrive_takes_a_subject_up_in_order(kind_case):
    kind_case.write(*subjects("abab"))
    kind_case.consume(Picky(1))
    assert kind_case.inbox().redrive([1]) == 1
    kind_case.write(*subjects("ba"))
    kind_case.consume()
    assert kind_case.effects() == [2, 4, 1, 3, 5, 6]
    assert kind_case.parked() == {}


def test_redriven_event_that_fails_again_stays_and_so_do_those_behind_it(case):
    case.write(*subjects("aab"))
    case.consume(Picky(1))
    case.inbox().redrive(everything=True)
    case.consume(Picky(1))
    assert case.parked() == {1: "failed", 2: "waiting"}
    assert case.inbox().parked()[0].tries == 6
    case.inbox().redrive(subject="a")
    case.consume(Picky(2))
    assert (case.effects(), case.parked()) == ([3, 1], {2: "failed"})


def test_dropped_event_never_takes_effect_and_those_behind_it_go_on(case):
    case.write(*subjects("aaab"))
    case.consume(Picky(1))
    assert case.inbox().drop([1]) == 1
    case.consume()
    assert case.effects() == [4, 2, 3]
    (standing,) = case.inbox().status()
    assert (standing.parked, standing.dropped) == (0, 1)
    with pytest.raises(UsageError, match="event 1 is not parked"):
        case.inbox().redrive([1])


def test_waiting_event_is_not_redriven_past_the_one_before_it(small_case):
    small_case.write(*subjects("aa"))
    small_case.consume(Picky(1))
    with pytest.raises(UsageError, match="event 2 waits behind event 1"):
        small_case.inbox().redrive([2])


def test_events_without_a_subject_do_not_wait_for_each_other(small_case):
    small_case.write({}, {}, {})
    small_case.consume(Picky(1, 2))
    assert (small_case.effects(), small_case.parked()) == ([3], {1: "failed", 2: "failed"})
    small_case.inbox().redrive([2])
    small_case.consume()
    assert (small_case.effects(), small_case.parked()) == ([3, 2], {1: "failed"})


def test_subjects_that_a_collation_takes_for_equal_are_two(case):
    case.write({"subject": "a"}, {"subject": "a "}, {"subject": "A"}, {"subject": "á"})
    case.consume(Picky(1))
    assert (case.effects(), case.parked()) == ([2, 3, 4], {1: "failed"})


def test_batch_handler_gets_what_one_transaction_holds(kind_case):
    kind_case.write(*subjects("abcdefg"))
    seen = []

    def handle(given, events):
        seen.append([event.id for event in events])
        for event in events:
            record(given, event)
        if any(event.id == 5 for event in events):
            raise RuntimeError("not this one")

    with open_stream(kind_case.stream) as stream:
        kind_case.inbox(batch_events=3, tries=2).run(stream, batch_handler=handle, once=True)
    assert seen == [[1, 2, 3], [4, 5, 6], [4], [5], [5], [6], [7]]
    assert kind_case.effects() == [1, 2, 3, 4, 6, 7]


def test_emitted_events_commit_with_the_effects(kind_case):
    install_outbox(kind_case.url)
    outbox = Outbox()
    kind_case.write(*subjects("abc"))

    def handle(given, event):
        record(given, event)
        outbox.emit(given, type="next", subject=event.subject, data={"from": event.id})
        if event.id == 2:
            raise ValueError("after the emit")

    kind_case.consume(handle)
    assert [row[1] for row in stored(kind_case.url)] == ["a", "c"]
    assert kind_case.effects() == [1, 3]


@pytest.mark.parametrize("kind", ["engine", "session"])
def test_deferred_emit_is_part_of_the_transaction(sqlite_url, kind):
    install_outbox(sqlite_url)
    outbox = Outbox()
    with contextlib.closing(InboxCase(sqlite_url, kind)) as case:
        case.write(*subjects("ab"))
        case.consume(lambda given, event: outbox.emit(given, type="next", subject=event.subject, deferred=True))
        assert [row[1] for row in stored(sqlite_url)] == ["a", "b"]


def test_commit_that_fails_is_a_failure_of_the_events(postgresql_url):
    """A constraint that PostgreSQL checks at the end only."""
    case = InboxCase(postgresql_url)
    case.run_sql("ALTER TABLE effects ADD CONSTRAINT once UNIQUE (subject) DEFERRABLE INITIALLY DEFERRED")
    case.write(*subjects("aab"))
    case.consume()
    assert (case.effects(), case.parked()) == ([1, 3], {2: "failed"})


def test_streams_flow_into_one_consumer_each_with_its_own_position(case):
    other = f"memory://{uuid.uuid4()}"
    case.write(*subjects("abc"))
    case.write(*subjects("ab"), outbox_id=OTHER_ID, source="/other", url=other)
    inbox = case.inbox(batch_events=2)
    with open_stream(case.stream) as first, open_stream(other) as second:
        inbox.run([first, second], record, once=True)
        assert sorted(case.effect_rows()) == [
            ("/other", 1, "a"), ("/other", 2, "b"), ("/tests", 1, "a"), ("/tests", 2, "b"), ("/tests", 3, "c"),
        ]  # fmt: skip
        inbox.run([second, first], record, once=True)
    assert len(case.effects()) == 5
    assert {standing.outbox_id: standing.reached for standing in inbox.status()} == {
        "6f6b4b1e-0000-4000-8000-000000000001": 3,
        OTHER_ID: 2,
    }


def test_two_consumers_stand_apart(small_case):
    small_case.write(*subjects("ab"))
    small_case.consume()
    small_case.consume(consumer="audit")
    assert small_case.effects() == [1, 2, 1, 2]


def test_several_runs_of_a_consumer_at_once_take_each_event_once(kind_case):
    count = 60
    kind_case.write(*({"subject": f"s{number % 5}"} for number in range(count)))
    errors = []

    def work():
        try:
            kind_case.consume(batch_events=4)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    kind_case.assert_exactly_once(range(1, count + 1))


def test_error_that_passes_is_not_counted(case):
    case.write(*subjects("ab"))
    calls = []

    def handle(given, event):
        calls.append(event.id)
        record(given, event)
        if len(calls) < 4:
            raise StreamUnavailable("a service is away")

    case.consume(handle, tries=1)
    assert (case.effects(), case.parked()) == ([1, 2], {})


def test_connection_that_breaks_in_a_handler_is_no_fault_of_the_event(kind_case):
    if kind_case.database.dialect == "sqlite":
        pytest.skip("SQLite has no connection that could break")
    kind_case.write(*subjects("ab"))
    broken = []
    own = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}

    def handle(given, event):
        record(given, event)
        if not broken:
            broken.append(event.id)
            execute(given, own[kind_case.database.dialect])

    kind_case.consume(handle, tries=1)
    assert (kind_case.effects(), kind_case.parked()) == ([1, 2], {})


def test_handler_that_leaves_the_transaction_failed_has_failed(kind_case):
    kind_case.write(*subjects("ab"))

    def handle(given, event):
        record(given, event)
        if event.id == 1:
            with contextlib.suppress(Exception):
                execute(given, "INSERT INTO no_such_table VALUES (1)")

    kind_case.consume(handle)
    if kind_case.database.dialect == "postgresql":
        assert (kind_case.effects(), kind_case.parked()) == ([2], {1: "failed"})
    else:
        assert kind_case.effects() == [1, 2], "the other databases go on after a failed statement"


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_handler_that_ends_the_transaction_stops_the_consumer(kind_case, ending):
    kind_case.write(*subjects("ab"))

    def handle(given, event):
        record(given, event)
        getattr(given, ending)()

    with pytest.raises(TransactionEnded, match="events 1 to 2"):
        kind_case.consume(handle)
    assert kind_case.reached() == 0


def test_handler_that_commits_and_then_fails_is_not_tried_again(kind_case):
    kind_case.write(*subjects("ab"))

    def handle(given, event):
        record(given, event)
        given.commit()
        raise ValueError("too late")

    with pytest.raises(TransactionEnded):
        kind_case.consume(handle)
    assert (kind_case.effects(), kind_case.reached()) == ([1], 0)


def test_a_handlers_commit_is_seen_by_whoever_comes_next_until_a_person_has_looked(kind_case):
    """Killed between the handler's own commit and ours: only the ledger can tell."""
    kind_case.write(*subjects("ab"))

    class Killed(BaseException):
        pass

    def handle(given, event):
        record(given, event)
        given.commit()
        raise Killed

    with pytest.raises(Killed):
        kind_case.consume(handle)
    for _ in range(2):
        with pytest.raises(TransactionEnded, match=f"inbox resume --consumer billing --outbox-id {OUTBOX_ID}"):
            kind_case.consume()
    with Session(kind_case.database, kind_case.table) as session, session.transaction():
        assert parking.resume(session, "billing", OUTBOX_ID, 1) == 1
        with pytest.raises(UsageError, match="nothing to resume"):
            parking.resume(session, "billing", OUTBOX_ID)
    kind_case.consume()
    kind_case.assert_exactly_once([1, 2])


@pytest.mark.parametrize("leave", ["close", "with"])
def test_handler_that_closes_the_connection_is_stopped_or_undone(kind_case, leave):
    """psycopg and sqlite3 commit at the end of a `with`; PyMySQL closes, which undoes everything and looks like a loss."""
    if kind_case.kind == "driver" and kind_case.database.dialect == "mysql":
        pytest.skip("PyMySQL does not tell a connection that was closed from one that was lost; nothing is committed")
    if kind_case.kind != "driver" and leave == "with":
        pytest.skip("for a SQLAlchemy connection this is close")
    kind_case.write(*subjects("ab"))

    def handle(given, event):
        if leave == "with":
            with given:
                record(given, event)
        else:
            record(given, event)
            given.close()

    with pytest.raises(TransactionEnded):
        kind_case.consume(handle, batch_events=1)
    assert kind_case.reached() == 0
    assert len(kind_case.effects()) <= 1


def test_a_failed_try_that_cannot_be_written_down_is_no_failed_try(sqlite_url):
    """Its own commit has nothing of the handler in it: what goes wrong there is told as it is."""
    case = InboxCase(sqlite_url)
    case.write(*subjects("a"))
    has_failed = False

    class Connection(sqlite3.Connection):
        def commit(self) -> None:
            if has_failed:
                raise sqlite3.IntegrityError("no")
            super().commit()

    def handle(_given, _event):
        nonlocal has_failed
        has_failed = True
        raise ValueError("no")

    inbox = Inbox(lambda: sqlite3.connect(case.database.path, factory=Connection), "billing")
    with open_stream(case.stream) as stream, pytest.raises(sqlite3.IntegrityError):
        inbox.run(stream, handle, once=True)


@pytest.mark.parametrize("wrap", [lambda engine: engine, sessionmaker], ids=["engine", "session"])
def test_engine_with_a_driver_whose_errors_are_unknown_is_refused(wrap):
    engine = create_engine("sqlite://")
    Inbox(wrap(engine), "billing")
    engine.dialect.driver = "psycopg2"
    with pytest.raises(UsageError, match=r"driver psycopg2: use postgresql\+psycopg"):
        Inbox(wrap(engine), "billing")


def test_tries_are_counted_across_restarts(case):
    case.write(*subjects("a"))
    tries = 0

    class Stop(BaseException):
        pass

    def handle(given, event):
        nonlocal tries
        tries += 1
        if tries % 2 == 0:
            raise Stop
        raise ValueError("never")

    for _ in range(2):
        with pytest.raises(Stop):
            case.consume(handle, tries=3)
    (standing,) = case.inbox().status()
    assert (standing.failing_id, standing.failing_tries, standing.failing_error) == (1, 2, "ValueError: never")
    case.consume(handle, tries=3)
    assert case.parked() == {1: "failed"}


def test_too_many_parked_events_stop_the_consumer(small_case):
    small_case.write(*subjects("abcdef"))
    with pytest.raises(TooManyParked, match="3 events of consumer billing are parked"):
        small_case.consume(Picky(*range(1, 7)), tries=1, parked_max=3)
    assert len(small_case.parked()) == 3
    assert small_case.reached() == 3


def test_parked_event_comes_back_as_it_was(case):
    first = {
        "type": "weird.é", "subject": "s\U0001f98a", "data": '{"a" :1.0, "b": "\\u0000"}', "time": EPOCH,
        "headers": {"traceparent": "00-x", "n": 1},
    }  # fmt: skip
    second = {"data_bytes": b"\x00\xff", "datacontenttype": "application/x", "subject": None}
    case.write(first, second)
    seen = []

    def keep(given, event):
        seen.append(event)
        if len(seen) < 4:
            raise ValueError(f"NUL \0 and a surrogate \ud800 {'x' * 5000}")

    case.consume(keep, tries=1)
    case.inbox().redrive(everything=True)
    case.consume(keep)
    assert seen[-2:] == seen[1:3]
    assert seen[-2].data == {"a": 1.0, "b": "\0"}


def test_consumer_that_has_nothing_to_do_is_still_heard_of(small_case, monkeypatch):
    small_case.write(*subjects("a"))
    said = []
    stop = threading.Event()

    def report(*given):
        said.append(given[-1])
        if len(said) > 5:
            stop.set()

    monkeypatch.setattr(MemoryStream, "report", report)
    monkeypatch.setattr("outbox.inbox.consumption.REPORT_AGAIN_SECONDS", 0.0)
    # Without the reports, it would not end by itself.
    threading.Timer(5, stop.set).start()
    with open_stream(small_case.stream) as stream:
        small_case.inbox(poll_seconds=0.001).run(stream, record, stop=stop)
    assert said[-3:] == [1, 1, 1]


def test_position_is_reported_to_the_stream_when_it_is_committed(small_case):
    small_case.write(*subjects("abc"))
    with open_stream(small_case.stream) as stream:
        small_case.inbox().run(stream, Picky(2), once=True)
        (reader,) = stream.readers()
        assert (reader.kind, reader.through) == ("group", 3)
        assert reader.name.startswith("inbox:billing:")
        small_case.inbox("quiet", report=False).run(stream, record, once=True)
        assert len(stream.readers()) == 1


def test_consumer_is_known_to_the_stream_before_it_reads(small_case, monkeypatch):
    small_case.write(*subjects("abc"))
    order = []
    monkeypatch.setattr(MemoryStream, "report", lambda *given: order.append("report"))
    small_case.consume(lambda given, event: order.append("handler"))
    assert order[:2] == ["report", "handler"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [1, 2, 4]), ("latest", []), (2, [2, 4]), (3, [4]), (4, [4]), (EPOCH + timedelta(seconds=2), [2, 4])],
)
def test_new_consumer_starts_where_it_is_told_and_an_old_one_goes_on(small_case, start, expected):
    small_case.write({"id": 1}, {"id": 2}, {"id": 4})
    small_case.consume(start=start)
    assert small_case.effects() == expected
    small_case.write({})
    small_case.consume(start="latest")
    assert small_case.effects() == [*expected, 5]


def test_consumer_waits_for_a_stream_that_nobody_has_bound_yet(small_case):
    with open_stream(small_case.stream, "write") as stream:
        small_case.inbox().run(stream, record, once=True)
    assert small_case.effects() == []


def test_running_consumer_takes_events_and_redrives_as_they_come(small_case):
    small_case.write(*subjects("ab"))
    picky, stop = Picky(1), threading.Event()
    with open_stream(small_case.stream) as stream:
        inbox = small_case.inbox(poll_seconds=0.01, tries=1)
        running = threading.Thread(target=inbox.run, args=(stream, picky), kwargs={"stop": stop})
        running.start()
        until(lambda: small_case.parked() == {1: "failed"} and small_case.effects() == [2])
        small_case.write(*subjects("c"))
        until(lambda: small_case.effects() == [2, 3])
        picky.refused.clear()
        small_case.inbox().redrive([1])
        until(lambda: small_case.effects() == [2, 3, 1])
        stop.set()
        running.join()


def until(condition, seconds=30.0):
    deadline = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        deadline.wait(0.02)
    raise AssertionError("it did not come to that")


def test_stream_trimmed_ahead_of_the_consumer_is_terminal(small_case):
    small_case.write(*subjects("abcd"))
    small_case.consume()
    small_case.write(*subjects("abcdefgh"))
    with open_stream(small_case.stream, "write") as stream:
        stream.trim(8)
        assert stream.info().trimmed_through == 8
    with pytest.raises(EventsTrimmed, match=r"trimmed through ID 8, and this consumer has read only through 4"):
        small_case.consume()
    small_case.consume(consumer="new")
    assert small_case.effects() == [1, 2, 3, 4, 9, 10, 11, 12]


def test_another_outbox_behind_the_url_is_terminal(small_case, monkeypatch):
    small_case.write(*subjects("ab"))
    small_case.consume()
    monkeypatch.setattr("stream_store.memory._stores", {})
    small_case.write(*subjects("ab"), outbox_id=OTHER_ID)
    with pytest.raises(WrongPartner, match="outbox inbox forget --consumer billing"):
        small_case.consume()
    assert small_case.effects() == [1, 2]


def test_stream_that_went_back_is_terminal(small_case, monkeypatch):
    small_case.write(*subjects("abc"))
    small_case.consume()
    monkeypatch.setattr("stream_store.memory._stores", {})
    small_case.write(*subjects("ab"))
    with pytest.raises(TailLost, match="its tail is 2, and this consumer has everything through 3"):
        small_case.consume()


def test_other_history_with_a_higher_tail_is_terminal(small_case, monkeypatch):
    small_case.write(*subjects("abc"))
    small_case.consume()
    monkeypatch.setattr("stream_store.memory._stores", {})
    small_case.write({"id": 2}, {"id": 5})
    with pytest.raises(StreamCorrupt, match="event 5 follows 2, and this consumer stands at 3"):
        small_case.consume()


def test_range_that_was_recorded_as_lost_is_passed_over(small_case):
    small_case.write(*subjects("ab"))
    small_case.consume()
    with open_stream(small_case.stream, "write") as stream:
        stream.lose(7)
    small_case.write({"id": 9})
    small_case.consume()
    assert small_case.effects() == [1, 2, 9]


def test_autocommit_connection_is_refused(database_url):
    InboxCase(database_url)
    given = {"isolation_level": None} if database_url.startswith("sqlite") else {"autocommit": True}
    inbox = Inbox(lambda: connect(database_url, **given), "c")
    with pytest.raises(UsageError, match="not in autocommit mode"):
        inbox.status()


@pytest.mark.parametrize("given", ["sqlite:///x.db", object(), InboxCase])
def test_what_is_no_database_is_refused(given):
    with pytest.raises(UsageError, match="it takes a SQLAlchemy Engine, a sessionmaker, or a function"):
        Inbox(given, "c")


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 201])
def test_consumer_has_a_name_that_every_database_keeps_apart(name):
    with pytest.raises(UsageError, match="cannot name a consumer"):
        Inbox(lambda: None, name)


def test_inbox_that_is_not_installed_names_the_command(database_url):
    with pytest.raises(SchemaError, match="run `outbox inbox init --database URL --inbox inbox`"):
        Inbox(lambda: connect(database_url), "c").status()


def test_installing_again_changes_nothing(case):
    again = install(case.database)
    assert not again.created
    assert again == install(case.database)
    case.write(*subjects("a"))
    case.consume()
    install(case.database)
    assert case.reached() == 1


def test_table_of_another_kind_is_not_taken_for_an_inbox(database_url):
    install_outbox(database_url, OutTable("inbox"))
    with pytest.raises(SchemaError, match="that is not an inbox of ours"):
        install(DatabaseUrl.parse(database_url))


def test_inbox_with_an_odd_name_works(database_url):
    case = InboxCase(database_url, table=OutTable("in :box %s {x} ' \" `"))
    case.write(*subjects("aab"))
    case.consume(Picky(1))
    case.inbox().redrive(everything=True)
    case.consume()
    assert case.effects() == [3, 1, 2]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_printed_script_is_whole(dialect):
    script = render(dialect, OutTable("in box"))
    assert "CREATE TABLE IF NOT EXISTS" in script
    assert "in box_parked" in script
    assert "{" not in script


def test_outbox_and_inbox_live_side_by_side(sqlite_url):
    install_outbox(sqlite_url)
    case = InboxCase(sqlite_url)
    write_stream(case.stream, subjects("a"))
    case.consume()
    assert case.effects() == [1]
