"""What a relay on MySQL or MariaDB refuses at its start, and what it says then."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox.database import DatabaseUrl, Session, is_refusal
from outbox.errors import Unsupported
from outbox.grants import grant_relay
from outbox.queries import blocks
from tests.integration.relays import RelayThread, emit, installed, relay_once

if TYPE_CHECKING:
    from connector.options import RelayOptions


@pytest.fixture
def outbox(mariadb_url: str, stream_url: str) -> RelayOptions:
    return installed(mariadb_url, stream_url)


def test_prepared_transactions_that_may_not_be_listed_are_a_refusal(
    outbox: RelayOptions, monkeypatch: pytest.MonkeyPatch
):
    """MariaDB lists them to everybody; here it is made to answer as MySQL does."""
    answer = "SIGNAL SQLSTATE 'XAE03' SET MYSQL_ERRNO = 1401, MESSAGE_TEXT = 'XAER_RMERR: Fatal error occurred'"
    with Session(outbox.database, outbox.table) as session, pytest.raises(Exception, match="XAER_RMERR") as caught:
        session.run(answer)
    assert is_refusal(caught.value)
    monkeypatch.setitem(blocks("mysql"), "prepared", answer)
    with pytest.raises(Unsupported, match=r"GRANT XA_RECOVER_ADMIN ON \*\.\* TO `tester`@`%`"):
        relay_once(outbox)
    with RelayThread(outbox) as relay:
        assert relay.wait() == 4


def test_a_role_of_mysql_without_xa_recover_admin_is_refused(mysql_url: str, stream_url: str):
    owner = installed(mysql_url, stream_url)
    emit(owner, 3)
    role = f"r_{uuid.uuid4().hex[:10]}"
    with Session(owner.database, owner.table) as session:
        session.run(f"CREATE USER {role}")
        grant_relay(owner.database, owner.table, role)
        address = owner.database.url.rpartition("@")[2]
        relay = replace(owner, database=DatabaseUrl.parse(f"mysql://{role}@{address}"))
        relay_once(relay)
        session.run(f"REVOKE XA_RECOVER_ADMIN ON *.* FROM {role}")
        with pytest.raises(Unsupported, match=f"GRANT XA_RECOVER_ADMIN .* TO `{role}`"):
            relay_once(relay)
        session.run(f"DROP USER {role}")
