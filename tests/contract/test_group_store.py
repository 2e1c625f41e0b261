"""What every store of group state does, on each database and in memory."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.errors import GroupMissing
from stream_store.groups.sql import SqlStore
from stream_store.groups.state import DeadLetter, Lot, Member, Order, Preference, Settings, State
from stream_store.groups.store import EPHEMERAL, Change, GroupStore, Settlement, open_store

Opener = Callable[[], GroupStore]
SETTINGS = Settings(Order.SUBJECT, Preference.REPEAT, max_in_flight=7, max_tries=3, types=("order.*", "x"))
LATER_US = 2**52


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the store of one place, any number of times."""
    urls = {"memory": lambda: EPHEMERAL, "sqlite": lambda: f"sqlite:///{tmp_path / 'groups.db'}"}
    url = urls.get(request.param, lambda: request.getfixturevalue(f"{request.param}_url"))()
    stores: list[GroupStore] = []

    def open_() -> GroupStore:
        stores.append(open_store(url))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def stream_id() -> str:
    return str(uuid.uuid4())


def make(store: GroupStore, stream_id: str, name: str = "g", head: int = 0) -> int:
    group_id = store.create(stream_id, name, SETTINGS, head)
    assert group_id is not None
    return group_id


def state_of(store: GroupStore, group_id: int) -> State:
    return store.transact(group_id, lambda state, _: Change(state, state))


def put(store: GroupStore, group_id: int, *lots: Lot, members: tuple[Member, ...] = ()) -> None:
    store.transact(group_id, lambda state, _: Change(replace(state, lots=lots, members=members)))


def test_a_group_is_made_once_and_found_by_stream_and_name(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id, "Größe 😀", head=42)
    assert store.create(stream_id, "Größe 😀", SETTINGS, 0) is None
    assert make(store, stream_id, "größe 😀") != group_id, "names differ by case"
    assert make(store, str(uuid.uuid4()), "Größe 😀") != group_id
    other = opened()
    assert other.find(stream_id, "Größe 😀") == group_id
    assert other.find(stream_id, "nobody") is None
    assert sorted(other.names(stream_id)) == sorted(["Größe 😀", "größe 😀"])
    assert state_of(other, group_id) == State(SETTINGS, 42)


def test_a_state_is_read_as_it_was_written(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id)
    state = State(
        SETTINGS,
        head=2**60,
        paused=True,
        skipped=5,
        lots=(
            Lot(11, (1, 2, 3, 7, 9, 10), (), "host/1/ab", 2, 0, suspect=True),
            Lot(2**62, (4, 5), (2**32, 0), None, 1, LATER_US, suspect=False, reason='it\'s "no" 😀'),
            Lot(13, tuple(range(100, 5000))),
        ),
        members=(Member("host/1/ab", LATER_US, 10_000_000), Member("host/2/cd", LATER_US + 1, 5)),
    )
    store.transact(group_id, lambda _, __: Change(state))
    found = state_of(opened(), group_id)
    assert (found.settings, found.head, found.paused, found.skipped) == (SETTINGS, 2**60, True, 5)
    assert set(found.lots) == set(state.lots)
    assert set(found.members) == set(state.members)
    changed = replace(state, head=1, lots=(replace(state.lots[0], ids=(9,)), Lot(14, (8,))), members=state.members[1:])
    store.transact(group_id, lambda _, __: Change(changed))
    found = state_of(opened(), group_id)
    assert (found.head, set(found.lots), found.members) == (1, set(changed.lots), changed.members)


def test_a_decision_that_fails_writes_nothing(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id)

    def fail(state: State, _: int) -> Change:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(group_id, fail)
    assert state_of(store, group_id) == State(SETTINGS, 0)


def test_only_the_token_of_a_held_lot_acknowledges(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id)
    held, also_held, waiting = Lot(1, (1, 2, 3), member="a"), Lot(2, (5,), member="b"), Lot(3, (6, 7))
    put(store, group_id, held, also_held, waiting)
    left = replace(held, ids=(3,))
    assert store.settle(
        group_id, [Settlement(1, left), Settlement(2, None), Settlement(3, None), Settlement(4, None)]
    ) == [3, 4]
    assert set(state_of(store, group_id).lots) == {left, waiting}
    assert opened().settle(group_id, [Settlement(1, None)]) == []
    assert store.settle(group_id, [Settlement(1, None)]) == [1]
    assert store.settle(group_id, []) == []


def test_a_heartbeat_prolongs_a_life_by_the_stores_clock(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id)
    put(store, group_id, members=(Member("a", 0, 5_000_000),))
    before_us = store.transact(group_id, lambda state, now_us: Change(state, now_us))
    assert store.beat(group_id, "a")
    assert not store.beat(group_id, "b")
    after_us = store.transact(group_id, lambda state, now_us: Change(state, now_us))
    # SQLite's clock has milliseconds.
    assert before_us - 1000 <= state_of(store, group_id).members[0].expires_us - 5_000_000 <= after_us + 1000


def test_dead_letters_are_kept_listed_and_removed(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id = make(store, stream_id)
    other_id = make(store, stream_id, "other")
    letters = tuple(DeadLetter(event_id, 3, "boom\0 'x'", f'{{"id":"{event_id}","x":"😀"}}') for event_id in (5, 2, 9))
    store.transact(group_id, lambda state, _: Change(state, letters=letters))
    store.transact(other_id, lambda state, _: Change(state, letters=letters[:1]))
    assert [letter.id for letter in store.letters(group_id)] == [2, 5, 9]
    assert [letter.id for letter in store.letters(group_id, limit=2)] == [2, 5]
    assert [letter.id for letter in store.letters(group_id, ids=[9, 3, 5])] == [5, 9]
    (found,) = store.letters(group_id, ids=[5])
    assert (found.tries, found.event) == (3, letters[0].event)
    assert found.reason.startswith("boom")
    assert found.recorded_us > 0
    again = DeadLetter(5, 4, "again", "{}")
    store.transact(group_id, lambda state, _: Change(state, letters=(again,), letters_gone=(2,)))
    assert [(letter.id, letter.tries) for letter in store.letters(group_id)] == [(5, 4), (9, 3)]
    assert (store.count_letters(group_id), store.count_letters(other_id)) == (2, 1)


def test_a_deleted_group_is_gone_with_all_that_was_its_own(opened: Opener, stream_id: str) -> None:
    store = opened()
    group_id, other_id = make(store, stream_id), make(store, stream_id, "other")
    put(store, group_id, Lot(1, (1,), member="a"), members=(Member("a", LATER_US, 1),))
    put(store, other_id, Lot(1, (1,), member="a"))
    store.delete(group_id)
    assert store.find(stream_id, "g") is None
    with pytest.raises(GroupMissing):
        state_of(store, group_id)
    new_id = make(store, stream_id)
    assert new_id != group_id
    assert state_of(store, new_id).lots == ()
    assert len(state_of(store, other_id).lots) == 1


def test_decisions_of_many_threads_come_one_after_another(opened: Opener, stream_id: str) -> None:
    group_id = make(opened(), stream_id)
    stores = [opened() for _ in range(4)]
    failures: list[BaseException] = []

    def work(store: GroupStore, number: int) -> None:
        try:
            for step in range(15):
                token = number * 100 + step
                store.transact(
                    group_id,
                    lambda state, _, token=token: Change(
                        replace(
                            state, head=state.head + 1, lots=(*state.lots, Lot(token + 1, (token + 1,), member="m"))
                        )
                    ),
                )
                assert store.settle(group_id, [Settlement(token + 1, None)]) == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(store, number)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    state = state_of(stores[0], group_id)
    assert (state.head, state.lots) == (60, ())


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_session_that_was_ended_is_made_again(kind: str, stream_id: str, request: pytest.FixtureRequest) -> None:
    store = open_store(str(request.getfixturevalue(f"{kind}_url")))
    group_id = make(store, stream_id)
    put(store, group_id, Lot(1, (1, 2), member="a"))
    assert isinstance(store, SqlStore)
    assert store._session is not None
    end = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mariadb": "KILL CONNECTION_ID()"}
    with contextlib.suppress(Exception):
        store._session.driver.cursor().execute(end[kind])
    assert store.settle(group_id, [Settlement(1, None)]) == []
    assert state_of(store, group_id).lots == ()
    store.close()
