"""The supervisor: many relays in one process, each retried by what its errors say."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog
import tenacity

from connector.relay import Relay
from outbox.database import is_connection_error, is_refusal, one_line
from outbox.errors import DatabaseUnavailable, OutboxError, SchemaError, Transient, Unsupported, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.options import RelayOptions

log: Any = structlog.get_logger()

ONCE_PATIENCE_SECONDS = 60.0
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 10.0
RETRY_RESET_SECONDS = 60.0
# A relay that failed for good is spoken of again and again while others live on in the process.
REMIND_SECONDS = 300.0


def is_transient(error: BaseException) -> bool:
    """Whether trying again from the start path can help."""
    return isinstance(error, Transient) or (not isinstance(error, OutboxError) and is_connection_error(error))


def run_relay(options: RelayOptions, stop: threading.Event, *, once: bool, alone: bool = True) -> None:
    """One relay, tried again after everything that passes, until it is done or told to stop.

    What nobody has foreseen ends a relay that runs alone, and the service manager starts it
    anew. Beside others it is tried again here: the process lives on, and so nobody else would.
    """
    tries = _Tries(options, stop, once=once)
    patience = tenacity.stop_after_delay(ONCE_PATIENCE_SECONDS) if once else tenacity.stop_never
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: is_transient(error) or not (alone or once or isinstance(error, OutboxError))
        ),
        wait=tries.wait_seconds,
        stop=tenacity.stop_any(tenacity.stop_when_event_set(stop), patience),
        sleep=tries.sleep,
        before_sleep=tries.say,
        reraise=True,
    )
    retrying(tries.run)


class _Tries:
    """The tries of one relay. One that went well for a while makes the next wait short again."""

    def __init__(self, options: RelayOptions, stop: threading.Event, *, once: bool) -> None:
        self._options = options
        self._stop = stop
        self._once = once
        self._in_a_row = 0
        self._has_led = False

    def run(self) -> None:
        started = time.monotonic()
        relay = Relay(self._options, self._stop, once=self._once)
        try:
            relay.run()
        except (UsageError, SchemaError) as error:
            # At first the user, the password or a name is wrong, or nothing is installed. Later
            # somebody is restoring the database or changing the password, and is not done yet.
            if not (self._has_led or relay.has_led):
                raise
            raise DatabaseUnavailable(str(error)) from error
        except Exception as error:
            if not is_refusal(error):
                raise
            raise Unsupported(
                f"{self._options.database} refuses a statement of the relay: {one_line(error)}. {self._advice()}"
            ) from error
        finally:
            self._has_led |= relay.has_led
            went_well = time.monotonic() - started > RETRY_RESET_SECONDS
            self._in_a_row = 1 if went_well else self._in_a_row + 1

    def _advice(self) -> str:
        if self._options.database.dialect == "sqlite":
            return (
                "The relay's user must be able to write the file and its folder: `outbox check` as that user says more"
            )
        return (
            "A privilege is missing (the table's owner grants it by `outbox init --grant-relay ROLE`), a policy hides "
            "rows, or it is a replica: `outbox check` as the relay's role says which"
        )

    def wait_seconds(self, _: tenacity.RetryCallState) -> float:
        longest: float = min(RETRY_SECONDS_MIN * 2 ** min(self._in_a_row - 1, 20), RETRY_SECONDS_MAX)
        # Jitter, so that many relays do not come back to one database at the same moment.
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def say(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        unforeseen = error if error is not None and not is_transient(error) else None
        log.warning(
            "trying again",
            outbox=str(self._options.table),
            reason=str(error),
            tries=self._in_a_row,
            **({"exc_info": unforeseen} if unforeseen else {}),
        )


def run(relays: Sequence[RelayOptions], *, once: bool, stop: threading.Event) -> int:
    """Run all relays to their end; one that fails for good does not stop the others.

    Returns 0, or the exit code of the worst failure (4 before all others).
    """
    failures: list[BaseException] = []

    def work(options: RelayOptions) -> None:
        try:
            run_relay(options, stop, once=once, alone=len(relays) == 1)
        except BaseException as error:
            if stop.is_set() and is_transient(error):
                return
            failures.append(error)
            code = getattr(error, "exit_code", 1)
            log.error(
                str(error) if isinstance(error, OutboxError) else f"{type(error).__name__}: {error}",
                outbox=str(options.table),
                kind=type(error).__name__,
                exit_code=code,
                exc_info=None if isinstance(error, OutboxError) else error,
            )

    threads = [threading.Thread(target=work, args=(options,), name=f"relay {options.table}") for options in relays]
    for thread in threads:
        thread.start()
    remind_at = time.monotonic() + REMIND_SECONDS
    while alive := [thread for thread in threads if thread.is_alive()]:
        # A signal interrupts the join; the timeout is for the reminder.
        alive[0].join(timeout=1.0)
        if failures and time.monotonic() >= remind_at:
            remind_at = time.monotonic() + REMIND_SECONDS
            log.error(
                f"{len(failures)} of {len(relays)} relays have ended for good", reasons=[str(f) for f in failures]
            )
    codes = [75 if is_transient(error) else int(getattr(error, "exit_code", 1)) for error in failures]
    return 4 if 4 in codes else max(codes, default=0)
