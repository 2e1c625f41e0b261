"""Waiting until events are durable: behind an append, and before rows are deleted from the out table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outbox.errors import StreamUnavailable
from stream_store.durability import Acks
from stream_store.redis.server import Sync, parse_info, read_run_id

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from stream_store.redis.address import Address
    from stream_store.redis.link import Link
    from stream_store.redis.server import Server

# appendfsync everysec, as the server's source has it: a write waits up to 2 s for a sync that is
# under way; the next sync begins when the second changes; a sync that is under way shows in INFO.
SYNCED_AFTER_SECONDS = 4.0
_SYNC_POLL_SECONDS = 0.5
# While one of these runs, `no-appendfsync-on-rewrite yes` keeps the server from syncing.
_REWRITES = ("aof_rewrite_in_progress", "rdb_bgsave_in_progress")


class Settling:
    """What the server is asked to wait for. May be used from several threads."""

    def __init__(self, link: Link, address: Address, server: Server, replicas: int, closed: threading.Event) -> None:
        self._link = link
        self._address = address
        self._server = server
        self._replicas = replicas
        self._closed = closed
        # What the server can do, when an append has not waited for it.
        self._acks = Acks.ALL if address.acks is Acks.WRITE else address.acks

    @property
    def can_settle(self) -> bool:
        """Whether anything but the memory of one server ever has an event."""
        return self._server.sync is not Sync.NEVER or self._acks.replicas_needed(self._replicas) > 0

    def settle(self, tail: Callable[[], int]) -> int:
        """Wait until the events through the tail are durable, and answer it; 0 when nothing ever is."""
        if not self.can_settle:
            return 0
        waits = self.waits(self._acks)
        if not waits and self._server.sync is Sync.ALWAYS:
            return tail()
        run_id = read_run_id(self._link)
        through = tail()
        if waits:
            # Waiting counts from the last write of this connection, so there has to be one.
            settling = ("HSET", self._address.keys.info, "settling", through)
            _, *answers = self._link.calls([settling, *waits])
            self.require_waited(answers, self._acks)
        if self._server.sync is Sync.EVERY_SECOND:
            self._wait_for_sync()
        # The connection may have been made anew meanwhile, by whoever uses it too: to a server that lost its end.
        if read_run_id(self._link) != run_id or tail() < through:
            raise StreamUnavailable(
                f"{self._address.url}: the server was restarted, or is another one, while events through ID {through} were to "
                "become durable: open the stream again"
            )
        return through

    def waits(self, acks: Acks) -> list[tuple[Any, ...]]:
        """The commands that wait until an event is as durable as the level asks for."""
        milliseconds = self._address.timeout_seconds * 500  # well before the connection counts as lost
        replicas = acks.replicas_needed(self._replicas)
        waits: list[tuple[Any, ...]] = [("WAIT", replicas, milliseconds)] if replicas else []
        if acks is not Acks.WRITE and self._server.sync is Sync.ASKED:
            waits.append(("WAITAOF", 1, 0, milliseconds))
        return waits

    def require_waited(self, answers: Sequence[Any], acks: Acks) -> None:
        for (command, wanted, *_), answer in zip(self.waits(acks) if answers else [], answers, strict=True):
            have = answer[0] if isinstance(answer, list) else answer
            if have < wanted:
                what = "of the replicas have it" if command == "WAIT" else "servers have it on the disk"
                raise StreamUnavailable(
                    f"{self._address.url}: the events are on the server, but {have} instead of {wanted} {what}: see whether the "
                    f"replicas are up; acks={acks.value} in the URL says how many it takes, and replicas=N how many there are"
                )

    def _wait_for_sync(self) -> None:
        """Return when the server has synced its file after now, as far as it lets that be seen."""
        url = self._address.url
        since, idle = time.monotonic(), 0
        while idle < 2:
            if self._closed.wait(_SYNC_POLL_SECONDS):
                raise StreamUnavailable(f"{url} is closed")
            info = parse_info(self._link.call("INFO", "persistence"))
            if info.get("aof_last_write_status", "ok") != "ok":
                raise StreamUnavailable(f"{url}: the server cannot write its append-only file: look at its disk")
            if not self._server.syncs_during_rewrites and any(info.get(name, "0") != "0" for name in _REWRITES):
                # Nothing is synced until it is over: the time counts from then.
                since, idle = time.monotonic(), 0
            elif info.get("aof_pending_bio_fsync", "0") != "0":
                idle = 0
            elif time.monotonic() - since > SYNCED_AFTER_SECONDS:
                idle += 1
