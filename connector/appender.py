"""The appender: makes batches durable in the stream while the relay reads on."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from connector.cleaner import AppendedRange, ranges
from connector.start import refusal
from outbox.batch import EventBatch, concatenate
from stream_store.stream import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.source import Rows
    from stream_store.stream import Stream

# Batches that wait here have been read and not yet appended: with what is being read and
# written, these bound the relay's memory.
QUEUE_BATCHES_MAX = 2
# What has gathered during one fsync goes into the next frame together, until it is this large.
# More would only be copied: the fsync is paid for by then.
GATHER_BYTES = 4 * 2**20
# So few rows are appended by whoever brings them, when nothing else is under way.
AT_ONCE_ROWS = 32


class Appender:
    """Appends in a thread of its own, or at once when there is little; a refused batch ends it with its error."""

    def __init__(self, stream: Stream, keep: Callable[[AppendedRange], None], note: Callable[[int], None]) -> None:
        self._stream = stream
        self._keep = keep
        self._note = note
        self._queue: queue.Queue[tuple[EventBatch, list[AppendedRange]] | None] = queue.Queue(QUEUE_BATCHES_MAX)
        self._thread = threading.Thread(target=self._work, name="appender", daemon=True)
        self._failure: BaseException | None = None
        self.rows_appended = 0

    def start(self) -> None:
        self._thread.start()

    def take(self, tail: int, rows: Rows) -> int:
        """Hand over rows that follow `tail`; returns the last ID handed over."""
        item = (EventBatch(tail, rows.events), list(ranges(tail, rows)))
        if rows.events.num_rows <= AT_ONCE_ROWS and not self._queue.unfinished_tasks:
            # Nothing is under way: waking the thread would take as long as the append itself.
            self.check()
            self._append(*item)
            return item[0].last_id
        while True:
            self.check()
            try:
                self._queue.put(item, timeout=0.5)
            except queue.Full:
                continue
            return item[0].last_id

    def check(self) -> None:
        """Raise what ended the appender, if anything did."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Append what was handed over, then end."""
        while self._thread.is_alive():
            try:
                self._queue.put(None, timeout=0.5)
            except queue.Full:
                continue
            self._thread.join()

    def _work(self) -> None:
        try:
            over = False
            while not over:
                item = self._queue.get()
                if item is None:
                    return
                batches, known = [item[0]], list(item[1])
                size_bytes = item[0].nbytes
                while size_bytes < GATHER_BYTES:
                    try:
                        more = self._queue.get_nowait()
                    except queue.Empty:
                        break
                    if more is None:
                        over = True
                        break
                    batches.append(more[0])
                    known += more[1]
                    size_bytes += more[0].nbytes
                self._append(concatenate(batches), known)
                for _ in batches:
                    self._queue.task_done()
        except BaseException as error:
            self._failure = error

    def _append(self, batch: EventBatch, known: list[AppendedRange]) -> None:
        answer = self._stream.append(batch)
        if answer.outcome not in (Outcome.APPENDED, Outcome.DUPLICATE):
            raise refusal(answer)
        self.rows_appended += len(batch)
        self._note(answer.tail)
        for appended in known:
            self._keep(appended)
