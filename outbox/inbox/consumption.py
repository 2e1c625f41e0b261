"""One consumer of one stream: the loop from event to committed effect, a step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox.database import is_conflict, is_driver_error, one_line
from outbox.errors import DatabaseUnavailable, Terminal, TooManyParked, TransactionEnded, Transient, WrongPartner
from outbox.inbox.connections import has_failed_transaction, is_passing, root_of
from outbox.inbox.ledger import FAILED, WAITING, Ledger, Overtaken, State, error_text

if TYPE_CHECKING:
    from outbox.event import Event
    from outbox.inbox.connections import Database, Work
    from outbox.inbox.reading import Readable, Reading

log = logging.getLogger(__name__)

BatchHandler = Callable[[Any, Sequence["Event"]], object]

REPORT_SECONDS = 1.0
# Though nothing has moved: retention takes a reader for dead that has been silent for days (stream_store.readers).
REPORT_AGAIN_SECONDS = 3600.0
RETRY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much at once, how often, how long."""

    batch_events: int
    tries: int
    retry_seconds: float
    parked_max: int


class HandlerFailed(Exception):
    """The handler, or the database because of what it did, refused events. Nothing of it happened."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Consumption:
    """Takes the events of one stream, in the consumer's own transactions."""

    def __init__(
        self,
        stream: Readable,
        reading: Reading,
        ledger: Ledger,
        database: Database,
        handler: BatchHandler,
        limits: Limits,
        *,
        known_as: str | None,
    ) -> None:
        self._stream = stream
        self._reading = reading
        self._ledger = ledger
        self._database = database
        self._handler = handler
        self._limits = limits
        self._known_as = known_as
        self._state: State | None = None
        # After a batch has failed: how many of its events are still to be taken one by one.
        self._alone = 0
        self._may_be_ready = True
        self._not_before = 0.0
        self._reported: tuple[int, float] = (-1, 0.0)

    def begin(self, began_after: int) -> None:
        """Take a place in the ledger, and be known to the stream, before anything is read."""
        work = self._database.begin()
        try:
            others = work.query(
                "inbox_others_at",
                consumer=self._ledger.consumer,
                stream_url=self._reading.url,
                outbox_id=self._ledger.outbox_id,
            )
            if others:
                other, reached = others[0]
                raise WrongPartner(
                    f"{self._reading.url} is now the stream of outbox {self._ledger.outbox_id}; consumer "
                    f"{self._ledger.consumer} has read outbox {other} from there through ID {reached}. Name the stream that "
                    f"it has read; if the change is meant, run `outbox inbox forget --consumer {self._ledger.consumer} "
                    f"--outbox-id {other}` first"
                )
            self._ledger.begin(work, began_after, self._reading.url)
            work.commit()
        except BaseException as error:
            self._undo(work)
            _raise_if_unavailable(error)
            raise
        self._report(self._load().reached)

    def step(self) -> float | None:
        """Take the next events. 0 when there was something to do, seconds to wait, or None at the tail."""
        wait = self._not_before - time.monotonic()
        if wait > 0:
            return wait
        try:
            state = self._state or self._load()
            # Set again where the step succeeds: after any error the ledger is read anew.
            self._state = None
            events = self._ready(state)
            parked = bool(events)
            if not events:
                exact = state.reached > state.began_after
                events = self._reading.take(state.reached, self._events_max(state), exact=exact)
            if events:
                self._take(state, events, parked=parked)
                return 0.0
        except Overtaken:
            self._alone = 0
            return 0.0
        # Idle: what others do meanwhile is found out by reading the ledger again next time.
        self._report(state.reached)
        return None

    def close(self) -> None:
        """Say how far we came, where that is known."""
        if self._state is not None:
            self._report(self._state.reached)

    def forget_connection(self) -> None:
        """Begin anew: after an error nothing that we remember counts."""
        self._state = None
        self._database.close()

    def _load(self) -> State:
        work = self._database.begin()
        try:
            state = self._ledger.load(work)
        except BaseException as error:
            self._undo(work)
            _raise_if_unavailable(error)
            raise
        self._undo(work)
        if state is None:
            raise WrongPartner(
                f"the position of consumer {self._ledger.consumer} in outbox {self._ledger.outbox_id} is gone from the inbox: "
                "somebody has forgotten it. Start the consumer again where it is to begin"
            )
        self._state, self._may_be_ready = state, state.parked > 0
        return state

    def _ready(self, state: State) -> list[Event]:
        """Parked events that somebody wants redriven, or that have nothing in front of them any more."""
        if not self._may_be_ready:
            return []
        work = self._database.begin()
        try:
            events = self._ledger.ready(work, self._events_max(state))
        except BaseException as error:
            self._undo(work)
            _raise_if_unavailable(error)
            raise
        self._undo(work)
        self._may_be_ready = bool(events)
        return events

    def _events_max(self, state: State) -> int:
        return 1 if self._alone or state.failing_id is not None else self._limits.batch_events

    def _take(self, state: State, events: list[Event], *, parked: bool) -> None:
        """Events in one transaction; where that fails, one by one."""
        try:
            self._state = self._commit(state, events, parked=parked)
            self._alone = max(self._alone - len(events), 0)
        except HandlerFailed as failure:
            if len(events) > 1:
                log.warning(
                    "events %d to %d failed together, taking them one by one: %s",
                    events[0].id,
                    events[-1].id,
                    error_text(failure.error),
                )
                self._alone = len(events)
                self._state = state
            else:
                self._fail(state, events[0], failure.error, parked=parked)
        else:
            self._report(self._state.reached, often=False)

    def _commit(self, state: State, events: list[Event], *, parked: bool) -> State:
        """One transaction: claim, effects, ledger, commit."""
        waiting = [event for event in events if not parked and state.holds(event)]
        taken = [event for event in events if parked or not state.holds(event)] if waiting else events
        work = self._database.begin()
        try:
            after = self._ledger.claim(work, state)
            if waiting:
                self._refuse_too_many(after, len(waiting))
                after = self._ledger.park(work, after, waiting, WAITING, 0, None)
            if taken:
                self._handle(work, taken)
            if parked:
                self._ledger.unpark(work, taken)
            reached = state.reached if parked else events[-1].id
            after = self._ledger.move(work, after, reached, len(taken), self._reading.url)
            _commit(work)
        except HandlerFailed as failure:
            is_alive = self._undo(work)
            _raise_if_passing(failure.error, is_alive=is_alive)
            raise
        except BaseException as error:
            self._undo(work)
            _raise_if_unavailable(error)
            raise
        # Which subjects are free again is for the ledger to say.
        return after if not parked else self._load()

    def _handle(self, work: Work, events: Sequence[Event]) -> None:
        """Call the handler, and make sure that the transaction it was lent is still the same one.

        A savepoint ends with its transaction: where it is gone, the handler has committed or
        rolled back, and what it did before is no longer one with the position.
        """
        work.change("inbox_savepoint")
        try:
            self._handler(work.given, events)
            work.flush()
        except Exception as error:
            # The database itself ends a transaction that met a deadlock, a full disk or a broken connection.
            if not (is_driver_error(root_of(error)) and is_passing(error)):
                self._still_ours(work, "inbox_return", events)
            if isinstance(error, Transient | Terminal):
                raise
            raise HandlerFailed(error) from error
        self._still_ours(work, "inbox_release", events)

    def _still_ours(self, work: Work, name: str, events: Sequence[Event]) -> None:
        """Use the savepoint: it is gone when the handler has ended the transaction."""
        try:
            work.change(name)
        except Exception as error:
            if has_failed_transaction(error):
                raise HandlerFailed(error) from error
            if not work.is_closed and is_passing(error):
                raise
            # Not tried again: what the handler has committed by itself would be done twice.
            raise TransactionEnded(
                f"the handler has ended the transaction in which events {events[0].id} to {events[-1].id} were to be "
                "handled, so its effects and the position are no longer one. Commit and rollback are the inbox's: "
                "take them out of the handler; then look which of these events had their effects. Where the consumer does not "
                "start again for that, `outbox inbox resume` lets it"
            ) from error

    def _fail(self, state: State, event: Event, error: Exception, *, parked: bool) -> None:
        """Count a failed try, durably; park the event after the last one."""
        tries = 1 + (state.failing_tries if state.failing_id == event.id else 0)
        is_last = tries >= self._limits.tries
        text = error_text(error)
        log.warning("event %d failed, try %d of %d: %s", event.id, tries, self._limits.tries, text)
        work = self._database.begin()
        try:
            after = self._ledger.claim(work, state)
            if not is_last:
                after = self._ledger.fail(work, after, event.id, tries, text)
            else:
                if parked:
                    self._ledger.park_again(work, event, tries, text)
                else:
                    self._refuse_too_many(after, 1)
                    after = self._ledger.park(work, after, [event], FAILED, tries, text)
                reached = state.reached if parked else event.id
                after = self._ledger.move(work, after, reached, 0, self._reading.url)
            # Nothing of the handler is in here: an error is no failed try.
            work.commit()
        except BaseException as failure:
            self._undo(work)
            _raise_if_unavailable(failure)
            raise
        self._state = after
        if is_last:
            self._alone = max(self._alone - 1, 0)
            log.error("event %d is parked after %d tries: %s", event.id, tries, text)
        else:
            wait = min(self._limits.retry_seconds * 2 ** (tries - 1), RETRY_SECONDS_MAX)
            self._not_before = time.monotonic() + wait

    def _refuse_too_many(self, state: State, more: int) -> None:
        if state.parked + more > self._limits.parked_max:
            raise TooManyParked(
                f"{state.parked:,} events of consumer {self._ledger.consumer} are parked, failed or behind one that has, and "
                f"{self._limits.parked_max:,} is the limit: where many have failed, it is the handler's fault, not theirs. `outbox inbox parked` shows the errors; "
                "mend the handler, then `outbox inbox redrive`, or raise the limit"
            )

    def _undo(self, work: Work) -> bool:
        """Roll back; whether the connection is still good. One that is not is not used again."""
        is_alive = work.rollback()
        if not is_alive:
            self._database.close()
        return is_alive

    def _report(self, reached: int, *, often: bool = True) -> None:
        """Let the stream know how far we are, after the commit: what retention keeps for us may be too much, never too little."""
        last, at = self._reported
        now = time.monotonic()
        if self._known_as is None or (reached == last and now - at < REPORT_AGAIN_SECONDS):
            return
        if not (often or now - at >= REPORT_SECONDS):
            return
        self._stream.report("group", self._known_as, reached)
        self._reported = (reached, now)


def _commit(work: Work) -> None:
    try:
        work.commit()
    except Exception as error:
        if is_passing(error):
            # Whether it is committed is unknown; the ledger knows, and is read again.
            raise
        # A constraint that is checked at the end, a deferred emit: the fault of what was done.
        raise HandlerFailed(error) from error


def _raise_if_passing(error: Exception, *, is_alive: bool) -> None:
    """A failure that says nothing about the event: the connection broke, or another transaction was in the way."""
    if not is_alive or is_conflict(root_of(error)):
        raise DatabaseUnavailable(f"the inbox's database interrupted a handler: {one_line(error)}") from error


def _raise_if_unavailable(error: BaseException) -> None:
    """A connection's error as ours, which is tried again."""
    if isinstance(error, Exception) and is_passing(error):
        raise DatabaseUnavailable(f"the inbox's database does not answer: {one_line(error)}") from error
