"""What a Redis server makes of an acknowledged event, as it is set up."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from connector.checks.finding import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding
    from stream_store import StreamUrl
    from stream_store.durability import Acks
    from stream_store.redis.server import Server

_ALWAYS = "CONFIG SET appendonly yes; CONFIG SET appendfsync always; CONFIG REWRITE"


def look(url: StreamUrl, delete_after: str) -> Iterator[Finding]:
    """Settings that decide what a crash can take back. Those that the server hides are warnings."""
    from stream_store.redis.address import Address
    from stream_store.redis.link import Link
    from stream_store.redis.server import read_server

    address = Address.of(url)
    with closing(Link(address)) as link:
        server = read_server(link)
    replicas = server.replicas if address.replicas is None else address.replicas
    yield from judge_eviction(server)
    yield from judge_sync(server, address.acks, replicas, delete_after)
    yield from judge_replicas(server, address.acks, replicas, expected=address.replicas)


def judge_eviction(server: Server) -> Iterator[Finding]:
    policy = server.maxmemory_policy
    if policy is None:
        yield warning(
            "redis-eviction",
            "the server does not show its maxmemory-policy: with an allkeys policy it throws the stream away",
            "as an administrator: CONFIG GET maxmemory-policy; it must be noeviction",
        )
    elif server.may_evict and server.maxmemory_bytes:
        yield error(
            "redis-eviction",
            f"maxmemory-policy is {policy}: the server throws the stream away when its memory is short",
            "CONFIG SET maxmemory-policy noeviction; CONFIG REWRITE",
        )
    elif server.may_evict:
        yield warning(
            "redis-eviction",
            f"maxmemory-policy is {policy}: once maxmemory is set, the server throws the stream away",
            "CONFIG SET maxmemory-policy noeviction; CONFIG REWRITE",
        )
    else:
        yield ok("redis-eviction", f"the server evicts no stream (maxmemory-policy {policy})")


def judge_sync(server: Server, acks: Acks, replicas: int, delete_after: str) -> Iterator[Finding]:
    from stream_store.durability import Acks
    from stream_store.redis.server import Sync

    name = "redis-durability"
    if server.sync is Sync.ALWAYS:
        yield ok(name, "an acknowledged event is on the server's disk (appendfsync always)")
    elif server.sync is Sync.ASKED:
        waits = "before a row is deleted" if acks is Acks.WRITE else "for each append, which takes up to a second each"
        yield ok(name, f"the relay waits until an event is on the server's disk (WAITAOF), {waits}")
    elif server.sync is Sync.EVERY_SECOND:
        rows = (
            "its row is deleted some seconds later, once the server is seen to have synced its file"
            if delete_after == "durable"
            else f"its row is still in the database (--delete-after {delete_after}), and the relay appends it again"
        )
        yield warning(
            name,
            "with appendfsync everysec a crash of the server's machine takes back events that it had acknowledged, those of "
            f"a second or two, and readers may have seen them; {rows}",
            f"{_ALWAYS} (or Redis 7.2, where the relay can ask)",
        )
    elif acks is Acks.WRITE and not replicas:
        yield warning(
            name,
            "nothing but the server's memory has an event (appendonly no, or appendfsync no, and no replica), so the relay "
            "deletes no row from the out table",
            _ALWAYS,
        )
    elif acks is Acks.WRITE or acks.replicas_needed(replicas):
        yield warning(
            name,
            "the server does not bring events to its disk by itself (appendonly no, or appendfsync no): when it and its "
            "replicas go down together, acknowledged events are gone",
            f"{_ALWAYS}; or keep the rows: --delete-after 24h or never",
        )
    else:
        yield error(
            name,
            "nothing keeps an event that the server has acknowledged: it writes no append-only file (or never syncs it) and "
            "has no replica",
            f"{_ALWAYS}; or accept it: acks=write in the URL, and --delete-after never",
        )


def judge_replicas(server: Server, acks: Acks, replicas: int, *, expected: int | None) -> Iterator[Finding]:
    name = "redis-replicas"
    needed = acks.replicas_needed(replicas)
    if server.replicas < needed:
        yield error(
            name,
            f"{server.replicas} replicas are connected, and acks={acks.value} waits for {needed}",
            "start the replicas, or correct replicas= in the stream URL",
        )
    elif needed:
        yield ok(name, f"an append waits for {needed} of {replicas} replicas (acks={acks.value})")
        if expected is None:
            yield warning(
                name,
                "how many replicas there are is looked up when a relay starts: one that was never up then is not waited for",
                f"add replicas={server.replicas} to the stream URL",
            )
    else:
        yield warning(
            "one-copy",
            "the stream is one copy on one server",
            "give the server replicas and say acks=majority, or keep the rows for longer: --delete-after 24h or never",
        )
