"""Groups as their members see them: who gets what, when again, and what is left of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from outbox.errors import (
    DatabaseUnavailable,
    DeliveryLost,
    EventsTrimmed,
    GroupMissing,
    StreamCorrupt,
    TailLost,
    Transient,
    UsageError,
)
from stream_store import Group, list_groups, open_stream
from stream_store.file.stream import FileStream
from stream_store.groups import Habits
from stream_store.groups import shelf as shelf_module
from stream_store.groups import sql as sql_module
from stream_store.groups.shelf import Shelf
from stream_store.groups.state import Settings
from stream_store.groups.store import Change
from stream_store.readers import GROUP, reached
from tests.streams import EPOCH, write_stream

# Each acknowledgement at once, four events at most.
CAREFUL = Habits(ack_every=1, max_in_flight=4)
# Taken for dead when it is silent for a moment.
HASTY = Habits(heartbeat_seconds=0.02, heartbeats_missed=2, ack_every=1, max_in_flight=4)


@pytest.fixture
def url(make_stream: Callable[..., str]) -> str:
    return make_stream(*({"subject": f"s{n % 3}", "data": {"n": n}} for n in range(1, 11)))


def taken(group: Group, **habits: object) -> list[int]:
    """Every event that the group gives out now, acknowledged."""
    found = []
    for delivery in group.consume(wait_seconds=0, **habits):
        with delivery:
            found.append(delivery.event.id)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def test_each_event_comes_once_with_its_content(url: str) -> None:
    with Group.create(url, "g") as group:
        found = list(group.consume(wait_seconds=0, max_in_flight=20))
        assert [delivery.event.id for delivery in found] == list(range(1, 11))
        first = found[0].event
        assert (first.subject, first.data, first.source, first.prev_id) == ("s1", {"n": 1}, "/tests", 0)


def test_acknowledged_events_do_not_come_again_and_others_do(url: str) -> None:
    with Group.create(url, "g") as group:
        for delivery in group.consume(wait_seconds=0, max_in_flight=20):
            if delivery.event.id % 2:
                delivery.ack()
        status = group.status()
        assert (status.head, status.through, status.waiting, status.in_flight, status.lag) == (10, 1, 5, 0, 5)
        assert taken(group) == [2, 4, 6, 8, 10]
        assert (group.status().through, group.status().lag, group.status().members) == (10, 0, ())


def test_what_a_member_read_ahead_and_never_handed_out_was_not_tried(url: str) -> None:
    with Group.create(url, "g") as group:
        for delivery in group.consume(wait_seconds=0):
            assert delivery.event.id == 1
            break
        tries = {delivery.event.id: delivery.tries for delivery in group.consume(wait_seconds=0)}
        assert tries == {1: 2, **dict.fromkeys(range(2, 11), 1)}


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 1), (None, 1), (4, 4), ("7", 7), (EPOCH + timedelta(seconds=5), 5), ("latest", None)],
)
def test_a_group_starts_where_it_is_told_to(url: str, start: object, first: int | None) -> None:
    with Group.create(url, "g", start=start) as group:
        assert next(iter(taken(group)), None) == first
        write_stream(url, [{}])
        assert taken(group) == [11]


def test_groups_have_each_event_for_themselves(url: str) -> None:
    with Group.create(url, "one") as one, Group.create(url, "two", types=["order.*"]) as two:
        assert taken(one) == taken(two) == list(range(1, 11))
        assert [(status.name, status.lag) for status in list_groups(url)] == [("one", 0), ("two", 0)]


def test_members_share_the_events(url: str) -> None:
    with Group.create(url, "g") as group, group.member(CAREFUL) as ann, group.member(CAREFUL) as ben:
        first = [ann.next_event(wait_seconds=0) for _ in range(4)]
        second = [ben.next_event(wait_seconds=0) for _ in range(4)]
        assert [each.event.id for each in (*first, *second)] == list(range(1, 9))
        assert ann.next_event(wait_seconds=0) is None, "max in flight"
        first[0].ack()
        assert ann.next_event(wait_seconds=0).event.id == 9
        assert len(group.status().members) == 2


def test_the_group_limits_what_is_in_flight(url: str) -> None:
    with Group.create(url, "g", max_in_flight=3) as group, group.member() as ann, group.member() as ben:
        assert [ann.next_event(wait_seconds=0).event.id for _ in range(3)] == [1, 2, 3]
        assert ann.next_event(wait_seconds=0) is None
        assert ben.next_event(wait_seconds=0) is None
        assert group.status().in_flight == 3


def test_batches_are_acknowledged_together(url: str) -> None:
    with Group.create(url, "g") as group:
        sizes = []
        for delivery in group.consume_batches(4, wait_seconds=0):
            with delivery:
                sizes.append(delivery.batch.ids.to_pylist())
        assert sizes == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        assert group.status().lag == 0


def test_part_of_a_batch_is_acknowledged_and_part_of_it_given_back(url: str) -> None:
    with Group.create(url, "g") as group:
        with group.member() as member:
            delivery = member.next_batch(6)
            assert delivery.ack([1, 2, 5])
            assert delivery.nack([3], "not now", delay_seconds=0)
            again = member.next_batch(6, wait_seconds=0)
            assert (again.batch.ids.to_pylist(), again.tries) == ([3], 2)
            assert again.ack()
            assert delivery.ack()
        assert group.status().through == 6
        assert taken(group) == [7, 8, 9, 10]


def test_a_nack_waits_for_its_delay(url: str) -> None:
    with Group.create(url, "g") as group, group.member(Habits(ack_every=1)) as member:
        member.next_event().nack("later", delay_seconds=3600)
        assert [member.next_event().event.id for _ in range(9)] == list(range(2, 11))
        assert member.next_event(wait_seconds=0) is None
        assert (group.status().waiting, group.status().through) == (1, 0)


def test_a_handler_that_raises_gives_its_event_back_until_it_is_a_dead_letter(url: str) -> None:
    with Group.create(url, "g", max_tries=3) as group:
        tries = 0
        with group.member() as member:
            while (delivery := member.next_event(wait_seconds=0)) is not None:
                if delivery.event.id != 4:
                    delivery.ack()
                    continue
                tries += 1
                assert delivery.tries == tries
                delivery.nack(f"boom {tries}", delay_seconds=0)
        assert tries == 3
        assert (group.status().lag, group.status().dead_letters, group.status().through) == (0, 1, 10)
        (letter,) = group.dead_letters()
        assert (letter.id, letter.tries, letter.reason) == (4, 3, "boom 3")
        assert '"data":{"n":4}' in letter.event
        assert group.redrive([4]) == 1
        assert (group.status().dead_letters, group.status().through) == (0, 3)
        assert taken(group) == [4]
        assert group.status().through == 10


def test_the_context_manager_turns_an_exception_into_a_nack(url: str) -> None:
    with Group.create(url, "g", max_tries=1) as group:
        for delivery in group.consume(wait_seconds=0):
            with delivery:
                if delivery.event.id == 2:
                    raise ValueError("bad total")
        assert [(letter.id, letter.reason) for letter in group.dead_letters()] == [(2, "ValueError: bad total")]
        assert group.drop() == 1
        assert group.dead_letters() == []


def test_events_of_a_dead_member_go_to_another_and_its_late_ack_acknowledges_nothing(url: str) -> None:
    with Group.create(url, "g") as group:
        dead, alive = group.member(HASTY), group.member()
        late = [dead.next_event(wait_seconds=0) for _ in range(4)]
        dead._heartbeat.end()
        time.sleep(2 * HASTY.lease_seconds)
        again = [alive.next_event(wait_seconds=10) for _ in range(4)]
        assert [(each.event.id, each.tries) for each in again] == [(n, 2) for n in (1, 2, 3, 4)]
        late[0].ack()
        assert dead.late == 1
        assert group.status().in_flight == 4
        assert dead.next_event(wait_seconds=0).event.id == 5, "it is a member again"
        for each in again:
            each.ack()
        assert alive.flush() == 0
        assert group.status().through == 4
        dead._store.close()
        alive.close()


def test_heartbeats_keep_a_slow_member_alive(url: str) -> None:
    habits = Habits(heartbeat_seconds=0.02, heartbeats_missed=500)

    def expires_us(group: Group) -> int:
        return group._store.transact(group._group_id, lambda state, _: Change(state, state.members[0].expires_us))

    with Group.create(url, "g") as group, group.member(habits) as slow:
        slow.next_event()
        for _ in range(2):
            before_us = expires_us(group)
            wait_for(lambda before_us=before_us: expires_us(group) > before_us)


def test_acknowledgements_are_written_after_a_time_without_the_members_help(url: str) -> None:
    with Group.create(url, "g") as group, group.member(Habits(ack_every=1000, ack_seconds=0.01)) as member:
        member.next_event().ack()
        wait_for(lambda: group.status().through == 1)


def test_an_event_waits_for_the_earlier_ones_of_its_subject(url: str) -> None:
    """Subjects: s1 has 1, 4, 7, 10; s2 has 2, 5, 8; s0 has 3, 6, 9."""
    with Group.create(url, "g", order="subject") as group, group.member(CAREFUL) as ann, group.member() as ben:
        first, second = ann.next_event(wait_seconds=0), ann.next_event(wait_seconds=0)
        assert (first.event.id, second.event.id) == (1, 2)
        assert ann.next_event(wait_seconds=0).event.id == 3
        assert ann.next_event(wait_seconds=0) is None, "4 is of the subject of 1, which is not done"
        assert ben.next_event(wait_seconds=0) is None, "every subject is with ann"
        assert group.status().waiting == 6
        first.ack()
        assert ann.next_event(wait_seconds=0).event.id == 4
        second.nack("again", delay_seconds=0)
        assert ben.next_event(wait_seconds=5).event.id == 2, "and not 5"


def test_a_dead_letter_frees_its_subject(url: str) -> None:
    with Group.create(url, "g", order="subject", max_tries=1) as group, group.member() as member:
        found = []
        while (delivery := member.next_event(wait_seconds=0)) is not None:
            found.append(delivery.event.id)
            delivery.nack("no") if delivery.event.id == 1 else delivery.ack()
        assert sorted(found) == list(range(1, 11))
        assert [letter.id for letter in group.dead_letters()] == [1]


def test_strict_order_survives_nacks_and_changes_of_members(url: str) -> None:
    with Group.create(url, "g", order="strict") as group:
        done: list[int] = []
        for turn in range(100):
            with group.member(Habits(max_in_flight=4)) as member, group.member() as other:
                delivery = member.next_event(wait_seconds=0)
                if delivery is None:
                    break
                assert other.next_event(wait_seconds=0) is None, "one delivery at a time"
                if turn % 3:
                    delivery.nack("once more", delay_seconds=0)
                    delivery = member.next_event(wait_seconds=0)
                done.append(delivery.event.id)
                delivery.ack()
        assert done == list(range(1, 11))


def test_strict_order_with_one_in_flight_is_one_at_a_time(url: str) -> None:
    with Group.create(url, "g", order="strict", max_in_flight=1) as group:
        found = []
        for delivery in group.consume(wait_seconds=0):
            assert group.status().in_flight == 1
            found.append(delivery.event.id)
            delivery.ack()
        assert found == list(range(1, 11))


def test_only_events_of_the_groups_types_are_delivered(make_stream: Callable[..., str]) -> None:
    url = make_stream(*({"type": f"t{n % 4}.x"} for n in range(1, 41)))
    with Group.create(url, "g", types=["t1.*", "t3.x"]) as group:
        found = list(group.consume(wait_seconds=0))
        assert [delivery.event.id for delivery in found] == list(range(1, 41, 2))
        assert [delivery.event.prev_id for delivery in found] == list(range(0, 40, 2)), "the stream's neighbour"
        assert group.status().head == 40


def test_a_group_that_wants_the_latest_skips_what_it_missed(url: str) -> None:
    with Group.create(url, "g", preference="latest", start="earliest") as group:
        assert taken(group, max_in_flight=3) == [8, 9, 10]
        status = group.status()
        assert (status.lag, status.through, status.skipped_ids) == (0, 10, 7)
        assert taken(group) == []


def test_a_paused_group_delivers_nothing_until_it_is_resumed(url: str) -> None:
    with Group.create(url, "g") as group, group.member(CAREFUL) as member:
        first = member.next_event()
        group.pause()
        for _ in range(3):
            member.next_event(wait_seconds=0).ack()
        first.ack()
        assert member.next_event(wait_seconds=0) is None
        assert group.status().paused
        group.resume()
        assert member.next_event(wait_seconds=5).event.id == 5


def test_a_reset_makes_what_is_in_flight_come_to_nothing(url: str) -> None:
    with Group.create(url, "g") as group, group.member(CAREFUL) as member:
        early = member.next_event()
        assert group.reset(6) == 5
        early.ack()
        assert member.flush() + member.late > 0
        assert member.next_event(wait_seconds=5).event.id == 6
        assert group.status().through == 5
        with pytest.raises(UsageError, match="ends at ID 10"):
            group.reset(99)


def test_the_stream_knows_how_far_durable_groups_are_until_they_are_deleted(url: str) -> None:
    with open_stream(url) as stream, Group.create(url, "g", start=4) as group:
        [known] = [each.name for each in stream.readers()]
        assert known.startswith("g:")
        assert reached(stream.readers(), GROUP, known) == 3
        for delivery in group.consume(wait_seconds=0):
            if delivery.event.id != 6:
                delivery.ack()
        assert reached(stream.readers(), GROUP, known) == 5
        taken(group)
        assert reached(stream.readers(), GROUP, known) == 10
        group.reset("earliest")
        assert reached(stream.readers(), GROUP, known) == 0
        group.delete()
        assert stream.readers() == []
        assert list_groups(url) == []
        with pytest.raises(GroupMissing):
            group.status()


def test_groups_of_one_name_in_two_places_are_two_readers(url: str, tmp_path: Path) -> None:
    """Neither may let the stream forget what the other has not read."""
    with (
        open_stream(url) as stream,
        Group.create(url, "g", state=f"sqlite:///{tmp_path}/one.db") as slow,
        Group.create(url, "g", state=f"sqlite:///{tmp_path}/two.db") as fast,
    ):
        taken(fast)
        assert sorted(each.through for each in stream.readers()) == [0, 10]
        fast.delete()
        assert [each.through for each in stream.readers()] == [0]
        assert (slow.status().name, slow.status().through) == ("g", 0)
    for name in ("inbox:billing", "outbox stream compact"):
        with pytest.raises(UsageError, match="cannot name a group"):
            Group.create(url, name)


def test_a_reset_reports_the_later_place_only_when_it_is_committed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    monkeypatch.setattr(FileStream, "report", lambda _self, _kind, _name, through: said.append(through))
    with Group.create(url, "g", start=4) as group:
        group.reset("latest")
        assert said == [3, 3, 10]
        group.reset("earliest")
        assert said[3:] == [0, 0]


def test_events_far_apart_are_found_without_keeping_what_lies_between(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_stream(url) as stream:
        shelf = Shelf(stream, "g", Settings(types=("no.such",)))
        sizes: list[int] = []
        joined = shelf_module._joined
        monkeypatch.setattr(
            shelf_module, "_joined", lambda parts: (sizes.append(sum(map(len, parts))), joined(parts))[1]
        )
        found = shelf.find([2, 9])
        assert found.rows.column(0).to_pylist() == [2, 9]
        assert found.previous.to_pylist() == [1, 8]
        assert sizes == [2]
        with pytest.raises(StreamCorrupt, match="no longer has event 11"):
            shelf.find([2, 11])


def test_an_acknowledgement_whose_answer_was_lost_is_not_called_late(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settled, lost = sql_module._settled, iter([True])

    def once_lost(*given: Any) -> bool:
        done = settled(*given)
        if next(lost, False):
            raise DatabaseUnavailable("the answer")
        return done

    with Group.create(url, "g") as group, group.member(CAREFUL) as member:
        delivery = member.next_batch(4)
        monkeypatch.setattr(sql_module, "_settled", once_lost)
        with pytest.raises(Transient, match="is not known"):
            delivery.ack()
        assert member.late == 0
        assert group.status().in_flight == 0


def test_a_member_that_has_nothing_to_do_is_still_heard_of(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Group.create(url, "g") as group:
        taken(group)
        monkeypatch.setattr("stream_store.groups.member.REPORT_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr("stream_store.groups.member.REPORT_SECONDS", 0.0)
        with open_stream(url) as stream, group.member(CAREFUL) as member:
            assert member.next_event(wait_seconds=0) is None
            [before] = stream.readers()
            assert member.next_event(wait_seconds=0) is None
            [after] = stream.readers()
        assert (before.through, after.through) == (10, 10)
        assert after.reported_at > before.reported_at


def test_letters_that_are_dropped_meanwhile_are_not_redriven(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Group.create(url, "g", max_tries=1) as group, Group.open(url, "g") as other:
        for delivery in group.consume(wait_seconds=0):
            if delivery.event.id == 3:
                delivery.nack("no")
            else:
                delivery.ack()
        assert [letter.id for letter in group.dead_letters()] == [3]
        transact = group._store.transact

        def late(*given: Any) -> Any:
            assert other.drop([3]) == 1
            return transact(*given)

        monkeypatch.setattr(group._store, "transact", late)
        assert group.redrive() == 0
        monkeypatch.undo()
        assert taken(group) == []
        assert group.drop() == 0


def test_an_ephemeral_group_is_shared_by_threads_and_unknown_to_the_stream(url: str) -> None:
    group = Group.create(url, "g", ephemeral=True)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(taken(group, max_in_flight=2))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 11))
    with open_stream(url) as stream:
        assert stream.readers() == []
    assert list_groups(url) == []
    group.delete()


def test_a_member_waits_for_events_that_come_later(url: str) -> None:
    with Group.create(url, "g", start="latest") as group:
        found: list[int] = []
        stop = threading.Event()

        def follow() -> None:
            for delivery in group.consume(stop=stop):
                with delivery:
                    found.append(delivery.event.id)

        thread = threading.Thread(target=follow)
        thread.start()
        for n in range(3):
            write_stream(url, [{}])
            wait_for(lambda n=n: len(found) == n + 1)
        stop.set()
        thread.join()
        assert found == [11, 12, 13]
        assert group.status().lag == 0


def test_acknowledging_may_happen_in_other_threads(url: str) -> None:
    with Group.create(url, "g") as group, group.member(Habits(max_in_flight=2)) as member:
        held = [member.next_event(), member.next_event()]
        worker = threading.Timer(0.05, lambda: held[0].ack())
        worker.start()
        assert member.next_event(wait_seconds=10).event.id == 3
        worker.join()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_effects_in_the_state_database_happen_exactly_once(kind: str, url: str, request: pytest.FixtureRequest) -> None:
    state = str(request.getfixturevalue(f"{kind}_url"))
    drivers = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql", "sqlite": "sqlite"}
    engine = sqlalchemy.create_engine(f"{drivers[kind]}://{state.split('://', 1)[1]}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE effects (id integer PRIMARY KEY)"))
    failed = False
    with Group.create(url, "g", state=state) as group:
        for delivery in group.consume_batches(4, wait_seconds=0, heartbeat_seconds=30):
            with delivery, engine.begin() as connection:
                for event_id in delivery.batch.ids.to_pylist():
                    connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:id)"), {"id": event_id})
                delivery.ack_within(connection)
                if not failed:
                    failed = True
                    raise ValueError("after everything, before the commit")
        assert failed
        wait_for(lambda: _again(group, engine))
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT count(*) FROM effects")).scalar() == 10
    engine.dispose()


def _again(group: Group, engine: sqlalchemy.Engine) -> bool:
    for delivery in group.consume_batches(4, wait_seconds=0):
        with engine.begin() as connection:
            for event_id in delivery.batch.ids.to_pylist():
                connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:id)"), {"id": event_id})
            delivery.ack_within(connection)
    return group.status().lag == 0


def test_a_lost_delivery_is_not_committed(url: str, sqlite_url: str) -> None:
    engine = sqlalchemy.create_engine(sqlite_url)
    with Group.create(url, "g", state=sqlite_url) as group, group.member() as member:
        delivery = member.next_batch(4)
        group.reset("earliest")
        with pytest.raises(DeliveryLost, match="roll back"), engine.begin() as connection:
            delivery.ack_within(connection)
    engine.dispose()


def test_events_trimmed_away_from_a_group_are_an_error_not_a_skip(tmp_path: Path) -> None:
    url = f"memory://trimmed-{tmp_path.name}"
    write_stream(url, [{} for _ in range(10)], frame_rows=2)
    group = Group.create(url, "g", ephemeral=True)
    with open_stream(url, "write") as stream:
        stream.trim(4)
    with pytest.raises(EventsTrimmed, match="group reset --to earliest"):
        taken(group)
    assert group.reset("earliest") == 4
    assert taken(group) == [5, 6, 7, 8, 9, 10]
    group.delete()


def test_a_stream_that_went_back_is_an_error(make_stream: Callable[..., str], tmp_path: Path) -> None:
    url = make_stream({}, {})
    with Group.create(url, "g") as group:
        assert taken(group) == [1, 2]
        group._store.transact(group._group_id, lambda state, _: Change(replace(state, head=9)))
        with pytest.raises(TailLost, match="stands at ID 9"):
            taken(group)


def test_refusals_say_what_to_do(url: str, tmp_path: Path) -> None:
    write_stream("memory://refusals", [{}])
    with pytest.raises(UsageError, match="--state"):
        Group.create("memory://refusals", "g")
    with pytest.raises(UsageError, match=r"outbox\.Inbox"):
        Group.create(url, "g", preference="exactly-once")
    with pytest.raises(UsageError, match="none, subject, strict"):
        Group.create(url, "g", order="random")
    with pytest.raises(GroupMissing, match="group create"):
        Group.open(url, "g")
    Group.create(url, "g", order="strict").close()
    with pytest.raises(UsageError, match="already"):
        Group.create(url, "g")
    with pytest.raises(UsageError, match="order 'strict', not 'none'"):
        Group.create(url, "g", exist_ok=True)
    Group.create(url, "g", order="strict", exist_ok=True).close()
    with pytest.raises(GroupMissing, match="no group 'h'"):
        Group.open(url, "h")


def test_a_crowd_of_members_handles_each_event_once(make_stream: Callable[..., str]) -> None:
    url = make_stream(*({"subject": f"s{n % 7}"} for n in range(2000)))
    with Group.create(url, "g", order="subject") as group:
        found: list[tuple[str, int]] = []

        def work() -> None:
            for delivery in group.consume(wait_seconds=0.3, max_in_flight=50):
                with delivery:
                    found.append((str(delivery.event.subject), delivery.event.id))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(event_id for _, event_id in found) == list(range(1, 2001))
        for subject in {subject for subject, _ in found}:
            ids = [event_id for each, event_id in found if each == subject]
            assert ids == sorted(ids), subject
