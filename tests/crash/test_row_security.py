"""Row-level security that hides rows from the relay: an error, never a dead ID."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from connector.options import DeleteAfter
from outbox.database import DatabaseUrl
from outbox.grants import grant_relay
from tests.crash.relay_process import running, until

if TYPE_CHECKING:
    from tests.crash.outbox_case import OutboxCase

HIDE = ("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "CREATE POLICY hide ON outbox USING (id % 2 = 0)")


@pytest.fixture
def case(postgresql_case: OutboxCase) -> OutboxCase:
    """An outbox whose relay is a role of its own, and not the owner of the table."""
    case = postgresql_case
    role = f"relay_{uuid.uuid4().hex[:8]}"
    case.execute(f"CREATE ROLE {role} LOGIN")
    grant_relay(case.database, case.table, role)
    case.relay_database = DatabaseUrl.parse(case.url.replace("postgres@", f"{role}@"))
    return case


def test_relay_role_relays_without_a_policy(case: OutboxCase) -> None:
    case.write(4)
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_policy_that_hides_rows_stops_the_relay_before_it_appends(case: OutboxCase) -> None:
    case.write(4)
    case.execute(*HIDE)
    assert case.relay_once() == 4
    assert case.streamed() == {}
    case.execute("DROP POLICY hide ON outbox", "ALTER TABLE outbox DISABLE ROW LEVEL SECURITY")
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_policy_that_comes_while_the_relay_runs_stops_it(case: OutboxCase) -> None:
    case.write(4)
    with running(case.orders(once=False)) as relay:
        until(lambda: case.deleted_through() == max(case.committed), relay.said)
        before = case.tail()
        case.execute(*HIDE)
        case.write(4)
        assert relay.wait() == 4, relay.said()
        assert "row-level security" in relay.said()
    assert case.tail() == before
    case.execute("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY")
    assert case.relay_once() == 0
    case.assert_exactly_once()


def test_policy_that_comes_between_append_and_delete_stops_the_relay(case: OutboxCase) -> None:
    case.write(4)
    with running(case.orders(once=False, delete_after=DeleteAfter("age", 1.0))) as relay:
        until(lambda: case.streamed() == case.committed, relay.said)
        case.execute(*HIDE)
        assert relay.wait() == 4, relay.said()
    assert case.deleted_through() == 0
    case.execute("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY")
    assert case.relay_once() == 0
    case.assert_exactly_once()
