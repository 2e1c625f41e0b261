"""The relay: one out table into one stream, exactly once, in ID order.

Reading, appending and deleting overlap: the follower reads and decides, the appender makes
batches durable, the cleaner deletes what is safe, each over a session of its own.
"""

from __future__ import annotations

import contextlib
import gc
import time
from typing import TYPE_CHECKING, Any

import structlog

from connector.appender import Appender
from connector.cleaner import Cleaner
from connector.follower import Follower
from connector.lease import Lease, leader_name
from connector.retainer import Retainer
from connector.sources import open_source
from connector.sources.session import open_session
from connector.start import start
from outbox.errors import LeaseLost, StreamLocked
from stream_store import open_stream
from stream_store.readers import TABLE, lowest

if TYPE_CHECKING:
    import threading

    from connector.options import RelayOptions
    from stream_store.stream import Stream

log: Any = structlog.get_logger()

STANDBY_POLL_SECONDS = 0.5
# How long the clean-up may go on when the relay is told to stop, and when it is run once.
CLEANUP_SECONDS = 5.0
CLEANUP_ONCE_SECONDS = 600.0


class Relay:
    """One run from standby to the end; what fails, fails as `Transient` or `Terminal`."""

    def __init__(self, options: RelayOptions, stop: threading.Event, *, once: bool = False) -> None:
        self._options = options
        self._stop = stop
        self._once = once
        self._log = log.bind(outbox=str(options.table))
        # What the lease tells the lag view.
        self._relayed_through = 0
        self.has_led = False

    def run(self) -> None:
        """Stand by until the lease is ours, then lead until told to stop."""
        lease = Lease(self._options, leader_name())
        try:
            self._stand_by(lease)
            if self._stop.is_set():
                return
            lease.keep(lambda: self._relayed_through)
            with contextlib.closing(self._open_stream(lease)) as stream:
                self._lead(stream, lease)
        finally:
            lease.release(self._relayed_through)

    def _stand_by(self, lease: Lease) -> None:
        since, said = time.monotonic(), False
        while not self._stop.is_set() and not lease.take():
            if not said:
                self._log.info("standing by: another relay leads")
                said = True
            if self._once and time.monotonic() - since > 2 * self._options.lease_seconds:
                raise LeaseLost("another relay leads this outbox and is alive: --once has nothing to do")
            self._stop.wait(STANDBY_POLL_SECONDS)

    def _open_stream(self, lease: Lease) -> Stream:
        """The stream for writing; a leader that was stopped may hold its lock for a while yet."""
        since, said = time.monotonic(), False
        while True:
            try:
                return open_stream(self._options.stream, "write")
            except StreamLocked as error:
                lease.check()
                waited_seconds = time.monotonic() - since
                if self._stop.is_set() or (self._once and waited_seconds > 2 * self._options.lease_seconds):
                    raise
                if not said:
                    self._log.warning("waiting for the stream's writer lock", reason=str(error))
                    said = True
                self._stop.wait(STANDBY_POLL_SECONDS)

    def _lead(self, stream: Stream, lease: Lease) -> None:
        source = open_source(self._options)
        with contextlib.ExitStack() as stack:
            stack.callback(source.close)
            source.open()
            session = stack.enter_context(open_session(self._options, "outbox cleaner", hurried=True))
            source.ignore(session)
            cleaner = Cleaner(
                session, self._options.delete_after, lambda: lowest(stream.readers(), TABLE), stream.settle
            )
            started = start(source, stream, session, self._options.batch_rows, cleaner.take, self._stop)
            self._relayed_through = started.tail
            self.has_led = True
            # What is loaded by now stays: a collection that goes through it all takes 20 ms.
            gc.freeze()
            self._log.info("leading", tail=started.tail, stream=stream.url, leader=lease.leader)
            appender = Appender(stream, cleaner.take, self._note)
            follower = Follower(self._options, source, started, self._log)
            retainer = None
            if self._options.retain is not None:
                retainer = Retainer(stream, self._options.retain, lambda: cleaner.deleted_through, self._log)
            try:
                cleaner.start(started.standing.deleted_through)
                appender.start()
                if retainer is not None:
                    retainer.start()
                follower.run(appender, cleaner, lease, self._stop, once=self._once)
            finally:
                if retainer is not None:
                    retainer.finish()
                appender.finish()
                cleaner.finish(CLEANUP_ONCE_SECONDS if self._once else CLEANUP_SECONDS)
            appender.check()
            cleaner.check()
            self._log.info("done", tail=stream.tail(), appended=appender.rows_appended, deleted=cleaner.rows_deleted)

    def _note(self, tail: int) -> None:
        self._relayed_through = tail
