"""What a Redis server's settings make of an acknowledged event, decided without a server."""

from __future__ import annotations

import pytest

from connector.checks import redis as checks
from outbox.errors import StreamUnavailable, Unsupported, UsageError
from stream_store import StreamUrl
from stream_store.durability import Acks
from stream_store.redis.address import Address
from stream_store.redis.server import Server, Sync, describe, parse_info, require_fit
from stream_store.url import without_secrets

INFO = {
    "redis_version": "7.0.15",
    "role": "master",
    "aof_enabled": "1",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
}


def server(config: dict[str, str] | None = None, **info: str) -> Server:
    return describe({**INFO, **info}, config or {})


@pytest.mark.parametrize(
    ("info", "config", "sync"),
    [
        ({}, {"appendfsync": "always"}, Sync.ALWAYS),
        ({"redis_version": "7.2.4"}, {"appendfsync": "always"}, Sync.ALWAYS),
        ({"redis_version": "7.2.4"}, {"appendfsync": "everysec"}, Sync.ASKED),
        ({"redis_version": "8.0.0"}, {"appendfsync": "no"}, Sync.ASKED),
        ({}, {"appendfsync": "everysec"}, Sync.EVERY_SECOND),
        ({}, {}, Sync.EVERY_SECOND),
        ({}, {"appendfsync": "no"}, Sync.NEVER),
        ({"aof_enabled": "0"}, {"appendfsync": "always"}, Sync.NEVER),
    ],
)
def test_sync_follows_from_version_and_settings(info, config, sync):
    assert server(config, **info).sync is sync


def test_what_a_server_hides_counts_as_the_weakest():
    hidden = describe({}, {})
    assert (hidden.sync, hidden.maxmemory_policy, hidden.replicas) == (Sync.NEVER, None, 0)


def test_info_is_read_line_by_line():
    assert parse_info(b"# Server\r\nredis_version:7.0.15\r\nos:Linux: 6\r\n") == {
        "redis_version": "7.0.15",
        "os": "Linux: 6",
    }


@pytest.mark.parametrize(
    ("acks", "replicas", "needed"),
    [(Acks.WRITE, 5, 0), (Acks.ALL, 0, 0), (Acks.ALL, 3, 3), (Acks.MAJORITY, 0, 0), (Acks.MAJORITY, 1, 1), (Acks.MAJORITY, 2, 1), (Acks.MAJORITY, 3, 2), (Acks.MAJORITY, 4, 2)],
)  # fmt: skip
def test_majority_counts_the_primary(acks, replicas, needed):
    assert acks.replicas_needed(replicas) == needed
    if acks is Acks.MAJORITY:
        assert needed + 1 > (replicas + 1) / 2


def test_levels_are_read_from_the_url():
    assert Acks.of({}) is Acks.ALL
    assert Acks.of({"acks": "Majority"}) is Acks.MAJORITY
    with pytest.raises(UsageError, match="write, majority, all"):
        Acks.of({"acks": "some"})


@pytest.mark.parametrize(
    ("found", "error", "match"),
    [
        (server(redis_version="6.0.16"), Unsupported, "6.2 or newer"),
        (server(role="slave"), StreamUnavailable, "primary"),
        (server(maxmemory_policy="allkeys-lfu", maxmemory="1000"), Unsupported, "noeviction"),
        (server(aof_enabled="0"), Unsupported, "appendonly no"),
        (server({"appendfsync": "no"}), Unsupported, "appendfsync no"),
    ],
)
def test_server_that_cannot_keep_what_it_acknowledges_is_refused(found, error, match):
    with pytest.raises(error, match=match):
        require_fit(found, Acks.ALL, 0, "redis://h:1/0/s")


def test_server_that_keeps_it_by_replicas_or_is_not_asked_to_is_taken():
    require_fit(server(aof_enabled="0"), Acks.MAJORITY, 1, "u")
    require_fit(server(aof_enabled="0"), Acks.WRITE, 0, "u")
    require_fit(server(maxmemory_policy="volatile-lru", maxmemory="1000"), Acks.ALL, 0, "u")


@pytest.mark.parametrize(
    ("found", "acks", "replicas", "level"),
    [
        (server({"appendfsync": "always"}), Acks.ALL, 0, "ok"),
        (server(redis_version="7.4.0"), Acks.ALL, 0, "ok"),
        (server({"appendfsync": "everysec"}), Acks.ALL, 0, "warning"),
        (server(aof_enabled="0"), Acks.ALL, 0, "error"),
        (server(aof_enabled="0"), Acks.ALL, 2, "warning"),
        (server(aof_enabled="0"), Acks.WRITE, 0, "warning"),
    ],
)
def test_check_says_what_a_crash_can_take_back(found, acks, replicas, level):
    (finding,) = checks.judge_sync(found, acks, replicas, "durable")
    assert (finding.level, finding.name) == (level, "redis-durability")
    assert (finding.fix is None) == (level == "ok")


def test_check_says_what_may_be_evicted_and_who_is_missing():
    assert [f.level for f in checks.judge_eviction(server(maxmemory_policy="allkeys-lru", maxmemory="9"))] == ["error"]
    assert [f.level for f in checks.judge_eviction(server(maxmemory_policy="allkeys-lru"))] == ["warning"]
    assert [f.level for f in checks.judge_eviction(server())] == ["ok"]
    assert [f.level for f in checks.judge_eviction(describe({}, {}))] == ["warning"]
    found = server(connected_slaves="1")
    assert [f.level for f in checks.judge_replicas(found, Acks.ALL, 2, expected=2)] == ["error"]
    assert [f.level for f in checks.judge_replicas(found, Acks.ALL, 1, expected=1)] == ["ok"]
    assert [f.level for f in checks.judge_replicas(found, Acks.ALL, 1, expected=None)] == ["ok", "warning"]
    assert [f.name for f in checks.judge_replicas(server(), Acks.ALL, 0, expected=None)] == ["one-copy"]


def test_url_names_server_database_and_stream_and_hides_the_password():
    address = Address.of(
        StreamUrl.parse("rediss://app:p%40ss%2Fw:rd@[::1]:7000/3/shop.orders?acks=majority&replicas=2")
    )
    assert (address.host, address.port, address.db, address.name) == ("::1", 7000, 3, "shop.orders")
    assert (address.username, address.password) == ("app", "p@ss/w:rd")
    assert (address.acks, address.replicas) == (Acks.MAJORITY, 2)
    assert address.url == "rediss://[::1]:7000/3/shop.orders"
    assert "p@ss" not in repr(address)
    assert "p%40ss" not in without_secrets("redis://app:p%40ss%2Fw@h/0/s")
    assert address.keys.events == "outbox:{shop.orders}:events"
    assert Address.of(StreamUrl.parse("redis://:pw@h/0/s")).password == "pw"


@pytest.mark.parametrize(
    "bad",
    ["redis://host", "redis://host/shop", "redis://host/0", "redis://host/x/shop", "redis://host/0/a/b", "redis://host/0/a{b}", "redis://host/0/s?replicas=x", "redis://host/0/s?aks=all", "redis://host/0/s?acks=some"],
)  # fmt: skip
def test_url_that_is_wrong_is_a_mistake_and_shows_no_password(bad):
    bad = bad.replace("://", "://user:hidden@")
    with pytest.raises(UsageError) as refused:
        Address.of(StreamUrl.parse(bad))
    assert "hidden" not in str(refused.value)
