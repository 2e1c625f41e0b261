"""The supervisor: many relays in one process, each retried by what its errors say."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import structlog
import tenacity

from connector.relay import Relay
from outbox.database import is_connection_error
from outbox.errors import OutboxError, Transient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.options import RelayOptions

log: Any = structlog.get_logger()

ONCE_PATIENCE_SECONDS = 60.0
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 10.0


def is_transient(error: BaseException) -> bool:
    """Whether trying again from the start path can help."""
    return isinstance(error, Transient) or (not isinstance(error, OutboxError) and is_connection_error(error))


def run_relay(options: RelayOptions, stop: threading.Event, *, once: bool) -> None:
    """One relay, tried again after everything that passes, until it is done or told to stop."""

    def say(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("trying again", outbox=str(options.table), reason=str(error), attempt=state.attempt_number)

    def sleep(seconds: float) -> None:
        stop.wait(seconds)

    patience = tenacity.stop_after_delay(ONCE_PATIENCE_SECONDS) if once else tenacity.stop_never
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        wait=tenacity.wait_exponential_jitter(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX, jitter=RETRY_SECONDS_MIN),
        stop=tenacity.stop_any(tenacity.stop_when_event_set(stop), patience),
        sleep=sleep,
        before_sleep=say,
        reraise=True,
    )
    retrying(Relay(options, stop, once=once).run)


def run(relays: Sequence[RelayOptions], *, once: bool, stop: threading.Event) -> int:
    """Run all relays to their end; one that fails for good does not stop the others.

    Returns 0, or the exit code of the worst failure (4 before all others).
    """
    failures: list[BaseException] = []

    def work(options: RelayOptions) -> None:
        try:
            run_relay(options, stop, once=once)
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
    for thread in threads:
        while thread.is_alive():
            # Short joins, so that the main thread goes on handling signals.
            thread.join(timeout=0.2)
    codes = [75 if is_transient(error) else int(getattr(error, "exit_code", 1)) for error in failures]
    return 4 if 4 in codes else max(codes, default=0)
