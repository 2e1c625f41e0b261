"""The inbox as an application sees it: a handler, and events that take effect exactly once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import tenacity

from outbox.errors import OutboxError, Transient, UsageError
from outbox.inbox import parking
from outbox.inbox.connections import is_passing, open_database
from outbox.inbox.consumption import Consumption, Limits
from outbox.inbox.ledger import Ledger
from outbox.inbox.reading import Readable, Reading
from outbox.inbox.schema import INBOX, read_identity
from outbox.names import OutTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox.event import Event
    from outbox.inbox.connections import Work
    from outbox.inbox.consumption import BatchHandler
    from outbox.inbox.parking import Parked, Standing

log = logging.getLogger(__name__)

Handler = Callable[[Any, "Event"], object]
Start = str | int | datetime

CONSUMER_CHARACTERS_MAX = 200
ONCE_PATIENCE_SECONDS = 60.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 10.0


class Inbox:
    """Events of streams, taken into the consumer's own database: each one's effects exactly once.

        inbox = Inbox(engine, consumer="billing")
        with open_stream("file:///var/lib/outbox/shop") as stream:
            inbox.run(stream, handle)

        def handle(connection, event):           # a SQLAlchemy Connection, in a transaction
            connection.execute(insert(invoices).values(order=event.subject))
            outbox.emit(connection, type="invoice.made", subject=event.subject)

    The handler's effects and the consumer's position commit in one transaction, which the inbox
    begins and ends. `database` is an Engine, a sessionmaker (the handler then gets a Session) or
    a function that opens a connection of psycopg, PyMySQL or sqlite3.

    Any number of processes may run the same consumer: one takes events at a time, the others
    take over. One instance serves one thread.
    """

    def __init__(
        self,
        database: Any,
        consumer: str,
        *,
        table: OutTable | str = INBOX,
        batch_events: int = 100,
        tries: int = 3,
        retry_seconds: float = 0.5,
        parked_max: int = 10_000,
        start: Start = "earliest",
        poll_seconds: float = 0.25,
        report: bool = True,
    ) -> None:
        """
        `batch_events`: the most events in one transaction. `tries`: how often an event that
        fails is tried before it is parked, `retry_seconds` after the first time and twice as
        long after each other. `parked_max`: the most parked events of a stream; one more stops the
        consumer. `start`: where a consumer that is new to a stream begins: "earliest",
        "latest", an ID or a time, itself included. `report`: make the consumer known to the
        stream, so that retention waits for it.
        """
        if (
            not consumer.isprintable()
            or consumer != consumer.strip()
            or not 0 < len(consumer) <= CONSUMER_CHARACTERS_MAX
        ):
            raise UsageError(
                f"{consumer!r} cannot name a consumer: use 1 to {CONSUMER_CHARACTERS_MAX} printable characters, "
                "without spaces around them"
            )
        for name, value in (("batch_events", batch_events), ("tries", tries), ("parked_max", parked_max)):
            if value < 1:
                raise UsageError(f"{name} is {value}: it is at least 1")
        self.consumer = consumer
        self.table = OutTable.parse(table) if isinstance(table, str) else table
        self._database = open_database(database, self.table)
        self._limits = Limits(batch_events, tries, retry_seconds, parked_max)
        self._start = start
        self._poll_seconds = poll_seconds
        self._report = report

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.consumer!r}, {str(self.table)!r})"

    def run(
        self,
        streams: Readable | Sequence[Readable],
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        once: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Take events as they come, until `stop` is set; with `once` until every stream is at its tail.

        `handler(connection, event)` is called for each event, or `batch_handler(connection, events)`
        for those of one transaction. Several streams take turns; each has its own position.

        What passes (the database is away, a deadlock, a handler that raises `Transient`) is tried
        again without being counted; any other error of a handler counts as a try of its event.
        `Terminal` errors, also a handler's own, end the run: a person has to look.
        """
        handle = _batched(handler, batch_handler)
        stop = stop or threading.Event()
        patience = tenacity.stop_after_delay(ONCE_PATIENCE_SECONDS) if once else tenacity.stop_never
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_exponential(RETRY_SECONDS_MIN, max=RETRY_SECONDS_MAX, min=RETRY_SECONDS_MIN),
            stop=tenacity.stop_any(tenacity.stop_when_event_set(stop), patience),
            sleep=tenacity.sleep_using_event(stop),
            before_sleep=self._begin_anew,
            reraise=True,
        )
        opened = list(streams) if isinstance(streams, Sequence) else [streams]
        consumptions: list[Consumption | None] = [None] * len(opened)
        try:
            while not stop.is_set():
                waits: list[float | None] = []
                for position, stream in enumerate(opened):
                    consumption = consumptions[position]
                    if consumption is None:
                        consumption = consumptions[position] = retrying(self._begin, stream, handle)
                    waits.append(None if consumption is None else retrying(_step, consumption))
                if once and all(wait is None for wait in waits):
                    return
                if not any(wait == 0 for wait in waits):
                    stop.wait(min([self._poll_seconds, *(wait for wait in waits if wait is not None)]))
        finally:
            for consumption in consumptions:
                if consumption is not None:
                    with contextlib.suppress(Exception):  # the next report says as much
                        consumption.close()
            self._database.close()

    def parked(self, *, outbox_id: str | None = None, subject: str | None = None, limit: int = 100) -> list[Parked]:
        """Events that wait for a person, or behind one that does, by ID."""
        with self._transaction() as work:
            return parking.find(work, self.consumer, outbox_id=outbox_id, subject=subject, limit=limit)

    def redrive(
        self,
        ids: Sequence[int] = (),
        *,
        outbox_id: str | None = None,
        subject: str | None = None,
        everything: bool = False,
    ) -> int:
        """Have parked events taken up again, in order per subject, by whoever runs the consumer; how many failed ones."""
        with self._transaction() as work:
            choice = parking.Choice(tuple(ids), subject, everything, outbox_id)
            return parking.redrive(work, self.consumer, choice)

    def drop(
        self,
        ids: Sequence[int] = (),
        *,
        outbox_id: str | None = None,
        subject: str | None = None,
        everything: bool = False,
    ) -> int:
        """Decide that parked events never take effect; those behind them go on. How many."""
        with self._transaction() as work:
            choice = parking.Choice(tuple(ids), subject, everything, outbox_id)
            return parking.drop(work, self.consumer, choice)

    def status(self) -> list[Standing]:
        """Where the consumer stands in each stream."""
        with self._transaction() as work:
            return parking.standings(work, self.consumer)

    def close(self) -> None:
        """Let go of the connection; the inbox can still be used."""
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Work]:
        work = self._database.begin()
        try:
            read_identity(work, self.table)
            yield work
            work.commit()
        except BaseException:
            work.rollback()
            raise
        finally:
            self._database.close()

    def _begin(self, stream: Readable, handler: BatchHandler) -> Consumption | None:
        """A place in the stream; None while nobody has bound it yet, and so nothing is in it."""
        reading = Reading(stream)
        with self._transaction() as work:
            inbox_id = read_identity(work, self.table)
        if reading.outbox_id is None:
            return None
        consumption = Consumption(
            stream,
            reading,
            Ledger(self.consumer, reading.outbox_id),
            self._database,
            handler,
            self._limits,
            known_as=known_as(self.consumer, inbox_id) if self._report else None,
        )
        consumption.begin(_began_after(stream, self._start))
        return consumption

    def _begin_anew(self, attempt: tenacity.RetryCallState) -> None:
        """After an error that passes: another connection, and nothing remembered."""
        error = attempt.outcome.exception() if attempt.outcome else None
        log.warning("trying again in %.1f s: %s", attempt.upcoming_sleep, error)
        if attempt.args and isinstance(attempt.args[0], Consumption):
            attempt.args[0].forget_connection()
        self._database.close()


def known_as(consumer: str, inbox_id: str) -> str:
    """A consumer's name among a stream's readers; another database may have a consumer of the same name."""
    return f"inbox:{consumer}:{inbox_id[:8]}"


def _step(consumption: Consumption) -> float | None:
    return consumption.step()


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, Transient) or (not isinstance(error, OutboxError) and is_passing(error))


def _batched(handler: Handler | None, batch_handler: BatchHandler | None) -> BatchHandler:
    if (handler is None) == (batch_handler is None):
        raise UsageError("give a handler, for one event at a time, or a batch_handler, for those of a transaction")
    if batch_handler is not None:
        return batch_handler

    def handle_each(connection: Any, events: Sequence[Event]) -> None:
        assert handler is not None
        for event in events:
            handler(connection, event)

    return handle_each


def _began_after(stream: Readable, start: Start) -> int:
    """The ID behind which a new consumer begins."""
    info = stream.info()
    if start == "earliest":
        return info.trimmed_through
    if start == "latest":
        return info.tail
    if isinstance(start, datetime):
        after = stream.find(start) - 1
    elif isinstance(start, int):
        after = start - 1
    else:
        raise UsageError(f"start is {start!r}: it is earliest, latest, an ID or a datetime")
    if not 0 <= after <= info.tail:
        raise UsageError(
            f"{stream.url} ends at ID {info.tail}, and the consumer was to start at {after + 1}: choose another"
        )
    return max(after, info.trimmed_through)
