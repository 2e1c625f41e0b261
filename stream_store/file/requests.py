"""`requests/`: what others ask of the process that writes the stream.

Only the writer may trim or erase, and a relay writes for as long as it runs. So a command leaves
its wish as a file, and the writer does it between two appends:

    requests/<number>.json     asked
    requests/<number>.doing    taken up: a writer that dies meanwhile leaves it to the next one
    requests/<number>.done     done, and what came of it; whoever asked removes it

To do a thing twice does no harm: neither a trim nor an erasure changes anything then. A trim that
nobody waits for any more is refused: it was decided by where readers stood when it was asked for.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outbox import errors
from outbox.errors import OutboxError, StreamLocked, StreamUnavailable
from stream_store.file import disk
from stream_store.file.lock import WriterLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Do = Callable[[dict[str, Any]], int]

REQUESTS_NAME = "requests"
ASKED, DOING, DONE = ".json", ".doing", ".done"
LOOK_SECONDS = 0.5
ANSWER_SECONDS = 30.0
OLD_ANSWER_SECONDS = 3600.0
_POLL_SECONDS = 0.05

log = logging.getLogger(__name__)


def ask(folder: Path, request: dict[str, Any], patience_seconds: float | None = None) -> int:
    """Have the writer of a stream do something; what it answers.

    `StreamLocked` when it does not take the request up, which is taken back then, and
    `StreamUnavailable` when it dies while it does it.
    """
    patience_seconds = ANSWER_SECONDS if patience_seconds is None else patience_seconds
    request = {**request, "until": time.time() + patience_seconds}
    asked = folder / REQUESTS_NAME / f"{uuid4().hex}{ASKED}"
    done = asked.with_suffix(DONE)
    with disk.reporting("writing", asked):
        disk.make_folder(asked.parent)
        os.close(disk.replace(asked, [json.dumps(request).encode()]))
    try:
        _await(folder, asked, patience_seconds)
    except BaseException:
        # Also when we are interrupted: nobody waits for it.
        asked.unlink(missing_ok=True)
        raise
    answer = json.loads(done.read_bytes())
    done.unlink(missing_ok=True)
    if "error" in answer:
        raise _error(answer)
    return int(answer["answer"])


def _await(folder: Path, asked: Path, patience_seconds: float) -> None:
    """Wait until a request is done."""
    done, doing = asked.with_suffix(DONE), asked.with_suffix(DOING)
    deadline = time.monotonic() + patience_seconds
    while not done.exists():
        if time.monotonic() > deadline:
            # Taken back, unless it is being done at this moment: then its end is waited for.
            with suppress(FileNotFoundError):
                asked.unlink()
                raise StreamLocked(
                    f"{folder} is open for writing in another process, which has not done what was asked of it in "
                    f"{patience_seconds:.0f} s: it is stopped, or an older program. Nothing was changed; try again, or "
                    "stop it first: nothing is lost meanwhile, rows wait in the out table"
                )
            if doing.exists() and _has_no_writer(folder) and not done.exists():
                raise StreamUnavailable(
                    f"the process that wrote {folder} has ended while it did what was asked of it: run the command again, "
                    "which does the rest"
                )
            if not doing.exists() and not done.exists():
                raise StreamUnavailable(f"{asked} is gone and nobody has answered it: try again")
        time.sleep(_POLL_SECONDS)


def _has_no_writer(folder: Path) -> bool:
    try:
        WriterLock(folder).release()
    except (StreamLocked, OSError):
        return False
    return True


def _error(answer: dict[str, Any]) -> OutboxError:
    """The writer's error, as what it was there."""
    kind = getattr(errors, str(answer.get("kind")), OutboxError)
    is_ours = isinstance(kind, type) and issubclass(kind, OutboxError)
    return (kind if is_ours else OutboxError)(answer["error"])


class Clerk:
    """Looks for requests beside the appends, in a thread of its own, for as long as a stream is open for writing."""

    def __init__(self, folder: Path, do: Do) -> None:
        self._folder = folder / REQUESTS_NAME
        # Weak: a stream that nobody holds any more gives its lock back, and the thread ends with it.
        self._do = weakref.WeakMethod(do)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="outbox-requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        # A request may close the stream, as any other error does: then this is the thread itself.
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        self._forget_old_answers()
        while not self._over.wait(LOOK_SECONDS) and self._do() is not None:
            try:
                self._look()
            except Exception:
                log.warning("the requests in %s cannot be read", self._folder, exc_info=True)

    def _forget_old_answers(self) -> None:
        """Whoever asked was killed, or the answer was written twice by two writers."""
        with suppress(OSError):
            for path in self._folder.glob(f"*{DONE}"):
                if time.time() - path.stat().st_mtime > OLD_ANSWER_SECONDS:
                    path.unlink(missing_ok=True)

    def _look(self) -> None:
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - twice a second, and mostly there is nothing
        except FileNotFoundError:
            return
        for path in [self._folder / name for name in names if name.endswith((ASKED, DOING))]:
            if self._over.is_set():
                return
            doing = path.with_suffix(DOING)
            try:
                disk.rename(path, doing)
            except FileNotFoundError:
                continue  # taken back
            self._answer(doing)

    def _answer(self, doing: Path) -> None:
        try:
            do = self._do()
            if do is None:
                return  # left to the next writer
            request = json.loads(doing.read_bytes())
            _require_timely(request)
            answer: dict[str, Any] = {"answer": do(request)}
        except (OutboxError, ValueError, KeyError, TypeError) as error:
            log.warning("what was asked in %s was not done: %s", doing, error)
            answer = {"error": str(error), "kind": type(error).__name__}
        os.close(disk.replace(doing.with_suffix(DONE), [json.dumps(answer).encode()]))
        disk.remove(doing)


def _require_timely(request: dict[str, Any]) -> None:
    """An erasure is wanted whenever it comes; a trim was decided by where the readers stood then."""
    if request["do"] == "trim" and time.time() > float(request.get("until", 0.0)):
        raise StreamUnavailable(
            f"a trim through ID {request.get('through')} was asked for so long ago that nobody waits for it: ask again"
        )
