"""Erasing content. An entry cannot be changed, so the stream is copied without it, and the copy takes its place.

The copy is made in steps that keep nobody waiting, and the last step puts it in place: what was
appended meanwhile is in it. A crash leaves the stream as it was, and a copy that the next try removes. Each try has keys of its own, named by
its token; only the one whose token the info hash has goes on, and only while its copy is whole so far.
The server's files hold the old content until they are written anew, which is asked for at the end.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outbox.errors import OutboxError, StaleTail, StreamUnavailable
from stream_store.redaction import REDACTED_CONTENT_TYPE
from stream_store.redis.scripts import ERASE, TAKE
from stream_store.redis.server import parse_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stream_store.redis.address import Keys
    from stream_store.redis.link import Link
    from stream_store.redis.server import Server

STEP_ENTRIES = 1_000
REWRITE_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.05
_TRIES_MAX = 100


def with_content(link: Link, keys: Keys, ids: Sequence[int]) -> list[int]:
    """Those of the IDs whose events are in the stream with their content."""
    found = []
    for start in range(0, len(ids), STEP_ENTRIES):
        some = ids[start : start + STEP_ENTRIES]
        answers = link.calls([("XRANGE", keys.events, f"{number}-0", f"{number}-0") for number in some])
        for number, entries in zip(some, answers, strict=True):
            if entries:
                fields = entries[0][1]
                values = dict(zip(fields[::2], fields[1::2], strict=True))
                is_marked = values.get(b"datacontenttype") == REDACTED_CONTENT_TYPE.encode()
                if not is_marked or any(values.get(name) is not None for name in (b"data", b"data_bytes", b"headers")):
                    found.append(number)
    return found


def erase(link: Link, keys: Keys, ids: Sequence[int], url: str) -> None:
    """Put the stream in its place without the content of these events."""
    token = str(uuid4())
    _, chosen = keys.erasing(token)
    take_over(link, keys, token, url)
    try:
        for start in range(0, len(ids), STEP_ENTRIES):
            link.call("SADD", chosen, *(f"{number}-0" for number in ids[start : start + STEP_ENTRIES]))
        begin = "-"
        while begin:
            begin = copy_step(link, keys, token, begin, url)
    except BaseException:
        # The memory of the copy is given back, if the server still listens.
        with suppress(OutboxError):
            _step(link, keys, token, "")
        raise


def take_over(link: Link, keys: Keys, token: str, url: str) -> None:
    """Make the token the one that erases, and give back the memory of the one before, who may have died."""
    for _ in range(_TRIES_MAX):
        before = (link.call("HGET", keys.info, "erasing") or b"").decode("utf-8", "replace")
        if link.run(TAKE, [keys.info, *keys.erasing(before)], before, token) == 1:
            return
    raise StaleTail(f"other processes begin to erase events of {url} all the time: try again when they are done")


def copy_step(link: Link, keys: Keys, token: str, begin: str, url: str) -> str:
    """Copy the next entries; where to go on, or nothing when the copy is in place."""
    answer = _step(link, keys, token, begin)
    if answer[0] == -1:
        raise StaleTail(f"another process has begun to erase events of {url}: try again when it is done")
    if answer[0] == -2:
        raise StaleTail(f"somebody has removed entries of {url} while they were copied: nothing was changed; try again")
    return f"({answer[1].decode()}" if answer[0] == 1 else ""


def _step(link: Link, keys: Keys, token: str, begin: str) -> Any:
    return link.run(
        ERASE,
        [keys.events, keys.info, *keys.erasing(token)],
        token,
        begin,
        STEP_ENTRIES,
        REDACTED_CONTENT_TYPE,
    )


def scrub(link: Link, keys: Keys, server: Server, url: str) -> None:
    """Have the server write its files anew, so that they no longer hold what was erased."""
    try:
        if server.aof_enabled:
            _rewrite(link, "BGREWRITEAOF", ("aof_rewrite_in_progress", "aof_rewrite_scheduled"))
        if server.saves != "":
            _rewrite(link, "BGSAVE", ("rdb_bgsave_in_progress",))
    except StreamUnavailable as error:
        raise StreamUnavailable(
            f"the content is erased from {url}, but the server's files still hold it: run BGREWRITEAOF and BGSAVE there, "
            f"or this command again ({error})"
        ) from error
    link.call("HDEL", keys.info, "unscrubbed")


def _rewrite(link: Link, command: str, running: tuple[str, ...]) -> None:
    """Run a rewrite to its end. One that was under way may have begun before the content was erased."""
    deadline = time.monotonic() + REWRITE_SECONDS_MAX
    _wait_until_idle(link, ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"), deadline)
    link.call(command)
    _wait_until_idle(link, running, deadline)


def _wait_until_idle(link: Link, running: tuple[str, ...], deadline: float) -> None:
    while True:
        info = parse_info(link.call("INFO", "persistence"))
        if all(info.get(name, "0") == "0" for name in running):
            return
        if time.monotonic() > deadline:
            raise StreamUnavailable(f"{running[0]} has been set for {REWRITE_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
