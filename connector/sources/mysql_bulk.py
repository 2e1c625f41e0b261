"""Backlogs of MySQL and MariaDB through connectorx: six times as fast as PyMySQL, with a connection for each read."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlunsplit

from outbox.mysql_connection import PROBE_COUNT, PROBE_INTERVAL_SECONDS, VANISHED_TIMEOUT_SECONDS
from outbox.mysql_options import MysqlOptions

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl

# Each read leaves three idle threads of connectorx's pool behind for 30 seconds (run on 0.4.6):
# with many reads of a few thousand rows they are thousands, until the system gives no more.
LINGER_SECONDS = 31.0
READS_MAX = 100


class Allowance:
    """So many reads within so many seconds, for all the relays of this process."""

    def __init__(self, reads: int, seconds: float) -> None:
        self._reads = reads
        self._seconds = seconds
        self._taken: deque[float] = deque()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether one more read is fine now; it counts from here on."""
        now = time.monotonic()
        with self._lock:
            while self._taken and self._taken[0] <= now - self._seconds:
                self._taken.popleft()
            if len(self._taken) >= self._reads:
                return False
            self._taken.append(now)
            return True


ALLOWANCE = Allowance(READS_MAX, LINGER_SECONDS)


def read_arrow(url: DatabaseUrl, sql: str) -> Any:
    """The rows of a statement as an Arrow table. Whatever goes wrong is a RuntimeError, as connectorx has it."""
    import connectorx

    try:
        return connectorx.read_sql(bulk_address(url), sql, return_type="arrow", protocol="binary")
    except BaseException as error:
        # A panic in Rust, for want of a thread for one, is made to end the process: not for this.
        if type(error).__name__ == "PanicException":
            raise RuntimeError(str(error)) from error
        raise


def bulk_address(url: DatabaseUrl) -> str:
    """The URL as connectorx takes it: it must end with its server too, and by itself sends no keepalives at all."""
    host = url.parts.hostname or "localhost"
    host = f"[{host}]" if ":" in host else host
    address = f"{quote(url.username, safe='')}:{quote(url.password, safe='')}@{host}:{url.parts.port or 3306}"
    options = {
        "tcp_connect_timeout_ms": round(MysqlOptions.parse(url.parts.query).connect_timeout_seconds * 1000),
        "tcp_keepalive_time_ms": VANISHED_TIMEOUT_SECONDS * 1000,
    }
    if sys.platform == "linux":  # elsewhere it refuses to know these
        options |= {
            "tcp_keepalive_probe_interval_secs": PROBE_INTERVAL_SECONDS,
            "tcp_keepalive_probe_count": PROBE_COUNT,
            "tcp_user_timeout_ms": VANISHED_TIMEOUT_SECONDS * 1000,
        }
    return urlunsplit(("mysql", address, "/" + quote(url.database, safe=""), urlencode(options), ""))
