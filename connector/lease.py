"""Leadership: a lease in the info table, by the database's clock.

The lease is for efficiency: one relay works, others stand by. Safety does not rest on it:
whatever a relay that lost it still does, the append outcomes make harmless.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING

from connector.sources.session import open_session
from outbox.errors import DatabaseUnavailable, LeaseLost
from outbox.info import read_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.options import RelayOptions
    from outbox.database import Session


def leader_name() -> str:
    """Who we are, for people: host, process, and something that no other process has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Lease:
    """One relay's claim to lead; renewed by a thread of its own while held."""

    def __init__(self, options: RelayOptions, leader: str) -> None:
        self._options = options
        self.leader = leader
        self._session: Session | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: LeaseLost | None = None
        self.relayed_through = 0

    def take(self) -> bool:
        """Try once; False when another relay holds the lease."""
        if self._session is None:
            self._session = open_session(self._options, "outbox lease", hurried=True)
            # An out table that is missing or old is said so, before SQL fails on it.
            read_info(self._session)
        taken = self._session.change("lease_take", leader=self.leader, seconds=self._options.lease_seconds)
        return taken == 1

    def keep(self, relayed_through: Callable[[], int]) -> None:
        """Renew the lease in the background until `release`."""
        self._thread = threading.Thread(target=self._renew, args=(relayed_through,), name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise when another relay leads, or when we could not say that we are alive."""
        if self.lost is not None:
            raise self.lost

    def release(self, relayed_through: int) -> None:
        """Stop renewing and let the next one lead at once."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=self._options.lease_seconds)
            if self._thread.is_alive():
                return  # it waits for the database on that session: the lease runs out by itself
        if self._session is not None:
            try:
                self._session.change("lease_release", leader=self.leader, relayed_through=relayed_through)
            except Exception:  # the lease runs out by itself
                return
            finally:
                self._session.close()
                self._session = None

    def _renew(self, relayed_through: Callable[[], int]) -> None:
        renewed = time.monotonic()
        while not self._over.wait(self._options.lease_seconds / 3):
            try:
                if self._session is None:
                    self._session = open_session(self._options, "outbox lease", hurried=True)
                matched = self._session.change(
                    "lease_renew",
                    leader=self.leader,
                    seconds=self._options.lease_seconds,
                    relayed_through=relayed_through(),
                )
            except Exception as error:
                if self._session is not None:
                    self._session.close()
                    self._session = None
                if not isinstance(error, DatabaseUnavailable):
                    self.lost = LeaseLost(f"the lease cannot be renewed: {error}")
                    return
                if time.monotonic() - renewed > self._options.lease_seconds:
                    self.lost = LeaseLost(f"the lease has run out, the database does not answer: {error}")
                    return
                continue
            if matched == 0:
                self.lost = LeaseLost("another relay has taken the lease")
                return
            renewed = time.monotonic()
