"""The options of a MySQL or MariaDB URL. What is not known is refused: a slip in a TLS option must not pass for none."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from outbox.errors import UsageError

KNOWN = (
    "charset",
    "connect_timeout",
    "read_timeout",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "ssl_mode",
    "unix_socket",
)
# As MySQL's own programs name them.
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
CONNECT_TIMEOUT_SECONDS = 10.0
_YEAR_SECONDS = 31_536_000


@dataclass(frozen=True, slots=True)
class MysqlOptions:
    """What stands behind the `?` of a URL, and what holds where it says nothing."""

    unix_socket: str | None = None
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    # None: a statement may take its time.
    read_timeout_seconds: float | None = None
    ssl_mode: str = "PREFERRED"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    @classmethod
    def parse(cls, query: str) -> MysqlOptions:
        pairs = [
            # MySQL's own programs, and the URLs that hosts hand out, write ssl-mode.
            (name.replace("-", "_").lower(), value)
            for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True)
        ]
        given = dict(pairs)
        unknown = sorted(set(given) - set(KNOWN))
        if unknown:
            raise UsageError(
                f"the MySQL URL has an unknown option {', '.join(unknown)}: known are {', '.join(KNOWN)} "
                f"(ssl_mode is one of {', '.join(SSL_MODES)})"
            )
        if len(given) < len(pairs) or not all(given.values()):
            raise UsageError("an option of the MySQL URL has no value, or stands there twice: give each one once")
        if given.get("charset", "utf8mb4").lower() != "utf8mb4":
            raise UsageError(
                f"charset={given['charset']}: events are Unicode text, and nothing but utf8mb4 carries all of it; "
                "leave the option out"
            )
        files: dict[str, str] = {name: given[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in given}
        return cls(
            unix_socket=given.get("unix_socket"),
            connect_timeout_seconds=_seconds(given, "connect_timeout") or CONNECT_TIMEOUT_SECONDS,
            read_timeout_seconds=_seconds(given, "read_timeout"),
            ssl_mode=_ssl_mode(given, files),
            **files,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the address alone leads to the server: no socket, no TLS that has to be, no limit of ours."""
        return (
            self.unix_socket is None
            and self.read_timeout_seconds is None
            and self.ssl_mode in ("DISABLED", "PREFERRED")
        )


def _seconds(given: dict[str, str], name: str) -> float | None:
    if name not in given:
        return None
    try:
        seconds = float(given[name])
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _YEAR_SECONDS:
        raise UsageError(f"{name}={given[name]} is no number of seconds: give one above 0, such as {name}=30")
    return seconds


def _ssl_mode(given: dict[str, str], files: dict[str, str]) -> str:
    """The mode, and a refusal of files that it would not look at."""
    # A CA is there to be verified against, as in MySQL's own programs; PyMySQL would not.
    implied = "VERIFY_CA" if "ssl_ca" in files else "REQUIRED" if files else "PREFERRED"
    mode = given.get("ssl_mode", implied).replace("-", "_").upper()
    if mode not in SSL_MODES:
        raise UsageError(f"ssl_mode={given['ssl_mode']} is unknown: use one of {', '.join(SSL_MODES)}")
    if mode in ("DISABLED", "PREFERRED") and files:
        raise UsageError(
            f"ssl_mode={mode} makes no use of {', '.join(files)}: use REQUIRED, VERIFY_CA or VERIFY_IDENTITY"
        )
    if mode == "REQUIRED" and "ssl_ca" in files:
        raise UsageError("ssl_mode=REQUIRED verifies nothing by ssl_ca: use VERIFY_CA or VERIFY_IDENTITY")
    if mode == "VERIFY_CA" and "ssl_ca" not in files:
        raise UsageError(
            "ssl_mode=VERIFY_CA needs ssl_ca, the file of the authority to trust; VERIFY_IDENTITY can do without, by "
            "the system's own authorities"
        )
    if "ssl_key" in files and "ssl_cert" not in files:
        raise UsageError("ssl_key without ssl_cert: a client's key goes with its certificate")
    return mode
