"""A process that ends exactly at one of its exchanges with a Redis server."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from stream_store.redis.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable


def run_and_kill(
    scenario: Callable[[Callable[[int], None]], None], at: int, *, halfway: bool
) -> tuple[bool, list[int]]:
    """Run `scenario` in a process that is killed before exchange `at`, or in the middle of what it sends.

    Sending and receiving are counted alike. Returns whether the process was killed (it may end before), and the
    numbers that were acknowledged to it.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _arm(at, halfway=halfway)
            scenario(lambda tail: os.write(write_end, b"%d\n" % tail))
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        acknowledged = [int(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the scenario failed by itself at exchange {at}: {status}"
    return killed, acknowledged


def _arm(at: int, *, halfway: bool) -> None:
    send, receive, seen = Link.send, Link.receive, 0

    # In the middle of an answer is the same as before it.
    counts_receiving = not halfway

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(link: Link, *given: Any) -> Any:
            nonlocal seen
            seen += 1 if given or counts_receiving else 0
            if seen == at and (given or counts_receiving):
                if halfway and given:
                    data = b"".join(bytes(part) for part in given[0])
                    send(link, [data[: len(data) // 2]])
                os.kill(os.getpid(), signal.SIGKILL)
            return act(link, *given)

        return wrapped

    Link.send, Link.receive = counted(send), counted(receive)  # type: ignore[method-assign]
