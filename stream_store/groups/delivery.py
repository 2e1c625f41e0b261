"""What a member is handed: one event, or a batch of them, to be acknowledged or given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType
    from typing import Any, Self

    from outbox.batch import EventBatch
    from outbox.event import Event
    from stream_store.groups.member import Membership
    from stream_store.groups.shelf import Rows
    from stream_store.groups.state import Lot

# A handler that fails at once would be called again at once.
RETRY_DELAY_SECONDS = 1.0


class Delivery:
    """One event. As a context manager it is acknowledged at the end, or given back by an exception.

    The exception is not passed on: it is the reason of the nack, and after the last try of the dead
    letter. `KeyboardInterrupt` and the like are passed on, and the event is given back untouched.
    """

    __slots__ = ("_membership", "event", "token", "tries")

    def __init__(self, membership: Membership, event: Event, lot: Lot) -> None:
        self._membership = membership
        self.event = event
        # How often the event was delivered, this time included, as far as the group can tell.
        self.tries = lot.tries
        self.token = lot.token

    def ack(self) -> None:
        """The event is done. Written with the acknowledgements of others, see `Membership.flush`."""
        self._membership.ack(self.token, self.event.id)

    def nack(self, reason: str = "refused", *, delay_seconds: float = RETRY_DELAY_SECONDS) -> None:
        """Deliver the event again, here or elsewhere, after a delay; or never, when this was its last try."""
        self._membership.nack(self.token, [self.event.id], reason, delay_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            return False
        self.nack(reason_of(error))
        return True

    def __repr__(self) -> str:
        return f"Delivery({self.event!r}, tries={self.tries})"


class BatchDelivery:
    """Some events, acknowledged in one statement. As a context manager like `Delivery`, all of them together.

    `batch` is in ID order. Between two of its events there may be others that a filter left out,
    or that another member has: only the stream itself proves that nothing is missing.
    """

    __slots__ = ("_membership", "batch", "rows", "source", "token", "tries")

    def __init__(self, membership: Membership, rows: Rows, lot: Lot, source: str) -> None:
        self._membership = membership
        # The same rows, each with the ID that it follows in the stream.
        self.rows = rows
        self.source = source
        self.batch: EventBatch = rows.batch()
        self.tries = lot.tries
        self.token = lot.token

    def __len__(self) -> int:
        return len(self.batch)

    def ack(self, ids: Collection[int] | None = None) -> bool:
        """All of it, or these events, are done. False when it came too late: the group has given them to others."""
        return self._membership.ack_batch(self.token, ids)

    def ack_within(self, connection: Any) -> None:
        """Acknowledge everything in the caller's transaction on the state database, which then holds exactly once.

        `connection` is a SQLAlchemy Connection or Session of the database that keeps the group's state. The
        acknowledgement commits or rolls back with the caller's own changes. `DeliveryLost` when others have it.
        """
        self._membership.ack_within(self.token, connection)

    def nack(
        self,
        ids: Collection[int] | None = None,
        reason: str = "refused",
        *,
        delay_seconds: float = RETRY_DELAY_SECONDS,
    ) -> bool:
        """Give all of it, or these events, back. What has to come after them in order comes back with them.

        False when it came too late.
        """
        return self._membership.nack(self.token, ids, reason, delay_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            return False
        self.nack(reason=reason_of(error))
        return True

    def __repr__(self) -> str:
        return f"BatchDelivery({self.batch.first_id} to {self.batch.last_id}, {len(self)} events, tries={self.tries})"


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
