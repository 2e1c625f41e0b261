"""What a server offers, and what an acknowledged append is worth there: read once, decided here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable, Unsupported
from stream_store.durability import Acks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stream_store.redis.link import Link

OLDEST = (6, 2)
_WAITAOF_SINCE = (7, 2)


class Sync(Enum):
    """How an event comes to the server's disk."""

    # Before the append is acknowledged: appendfsync always.
    ALWAYS = "always"
    # When asked to: WAITAOF.
    ASKED = "asked"
    # By itself, about once a second: appendfsync everysec.
    EVERY_SECOND = "every second"
    # When the operating system likes, or never.
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it describes itself; None is what it would not show."""

    version: tuple[int, ...]
    is_replica: bool
    aof_enabled: bool | None
    appendfsync: str | None
    saves: str | None
    maxmemory_bytes: int | None
    maxmemory_policy: str | None
    replicas: int
    min_replicas: int | None
    # no-appendfsync-on-rewrite; not shown counts as the worse.
    syncs_during_rewrites: bool = False

    @property
    def sync(self) -> Sync:
        if not self.aof_enabled:
            return Sync.NEVER
        if self.appendfsync == "always":
            return Sync.ALWAYS
        if self.version >= _WAITAOF_SINCE:
            return Sync.ASKED
        # Not shown: everysec is the server's own default.
        return Sync.NEVER if self.appendfsync == "no" else Sync.EVERY_SECOND

    @property
    def may_evict(self) -> bool:
        """Whether the stream's keys, which never expire, may be thrown away when memory is short."""
        return (self.maxmemory_policy or "").startswith("allkeys")


def read_server(link: Link) -> Server:
    """What the server shows of itself. CONFIG is often forbidden: INFO has most of it."""
    names = ("appendfsync", "min-replicas-to-write", "no-appendfsync-on-rewrite", "save")
    answers = link.attempts([("INFO",), *(("CONFIG", "GET", name) for name in names)])
    config: dict[str, str] = {}
    for answer in answers[1:]:
        if isinstance(answer, list):
            words = [word.decode("utf-8", "replace") for word in answer]
            config |= dict(zip(words[::2], words[1::2], strict=True))
    return describe(parse_info(answers[0] or b""), config)


def read_run_id(link: Link) -> str | None:
    """What tells one run of one server from any other; None where it is not shown."""
    return parse_info(link.attempts([("INFO", "server")])[0] or b"").get("run_id")


def parse_info(text: object) -> dict[str, str]:
    """The fields of INFO."""
    lines = (text.decode("utf-8", "replace") if isinstance(text, bytes) else "").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def describe(info: Mapping[str, str], config: Mapping[str, str]) -> Server:
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    return Server(
        version=numbers or OLDEST,
        is_replica=info.get("role") == "slave",
        aof_enabled=info["aof_enabled"] == "1" if "aof_enabled" in info else None,
        appendfsync=config.get("appendfsync"),
        saves=config.get("save"),
        maxmemory_bytes=int(info["maxmemory"]) if "maxmemory" in info else None,
        maxmemory_policy=info.get("maxmemory_policy"),
        replicas=int(info.get("connected_slaves", "0")),
        min_replicas=int(config["min-replicas-to-write"]) if "min-replicas-to-write" in config else None,
        syncs_during_rewrites=config.get("no-appendfsync-on-rewrite") == "no",
    )


def require_fit(server: Server, acks: Acks, replicas: int, url: str) -> None:
    """Refuse to write where nothing could keep what is acknowledged."""
    if server.version < OLDEST:
        shown = ".".join(str(part) for part in server.version)
        raise Unsupported(f"{url}: the server is Redis {shown}, and 6.2 or newer is needed")
    if server.is_replica:
        raise StreamUnavailable(f"{url} is a replica: let the URL, or the name in it, lead to the primary")
    if server.may_evict and server.maxmemory_bytes:
        raise Unsupported(
            f"{url}: with maxmemory-policy {server.maxmemory_policy} the server throws the stream away when its memory is "
            "short: CONFIG SET maxmemory-policy noeviction, and in redis.conf"
        )
    if acks is not Acks.WRITE and server.sync is Sync.NEVER and acks.replicas_needed(replicas) == 0:
        why = "appendonly no" if not server.aof_enabled else f"appendfsync {server.appendfsync}"
        raise Unsupported(
            f"{url}: the server has {why} and no replica, so nothing would keep an event that it has acknowledged: set "
            "appendonly yes and appendfsync always; or say acks=write in the URL, and keep the rows (--delete-after never)"
        )
