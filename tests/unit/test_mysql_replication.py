"""Which tables a replication source reaches through its filters."""

from __future__ import annotations

import pytest

from connector.checks.mysql import judge_replication
from connector.sources.mysql_replication import ReplicationSource


def source(*, running: bool = True, name: str = "", **filters: str) -> ReplicationSource:
    return ReplicationSource(
        name, "db1", running, {f"replicate_{key}": tuple(value.split(",")) for key, value in filters.items()}
    )


@pytest.mark.parametrize(
    ("filters", "reaches"),
    [
        ({}, True),
        ({"do_db": "crm"}, False),
        ({"do_db": "crm,shop"}, True),
        ({"ignore_db": "shop"}, False),
        ({"ignore_db": "crm"}, True),
        ({"do_table": "shop.orders"}, False),
        ({"do_table": "shop.outbox"}, True),
        ({"ignore_table": "shop.outbox"}, False),
        ({"ignore_table": "shop.orders"}, True),
        ({"wild_do_table": "crm.%"}, False),
        ({"wild_do_table": "crm.%,shop.out___"}, True),
        ({"wild_do_table": "shop.out\\_ox"}, False),
        ({"wild_ignore_table": "shop.%"}, False),
        ({"wild_ignore_table": "crm.%"}, True),
        ({"do_table": "shop.outbox", "wild_ignore_table": "shop.%"}, True),
        ({"do_db": "shop", "wild_ignore_table": "shop.out%"}, False),
        # What is renamed on its way may become ours.
        ({"do_db": "crm", "rewrite_db": "(crm,shop)"}, True),
    ],
)
def test_filters_are_asked_as_the_server_asks_them(filters: dict[str, str], reaches: bool):
    assert source(**filters).reaches("shop", "outbox") is reaches


def test_the_fix_is_written_for_the_server():
    (finding,) = judge_replication([source(running=False, name="far")], "shop", "outbox", mariadb=False)
    assert finding.level == "warning"
    assert "RESET REPLICA ALL FOR CHANNEL 'far'" in str(finding.fix)
    (finding,) = judge_replication([source(do_db="crm")], "shop", "outbox", mariadb=False)
    assert finding.level == "ok"
