"""Where a Redis stream is: `redis://user:password@host:port/db/name`, and the keys it uses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox.errors import UsageError
from stream_store.durability import Acks

if TYPE_CHECKING:
    from stream_store.url import StreamUrl

DEFAULT_PORT = 6379
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
OPTIONS = ("acks", "replicas", "timeout_seconds", *TLS_OPTIONS)
# Longer than any step of ours takes on a busy server. What takes longer counts as a lost connection.
TIMEOUT_SECONDS = 30
CONNECT_SECONDS = 5.0

# From the right: a password may hold anything, a name neither @ nor /.
_PLACE = re.compile(
    r"(?:(?P<user>[^:]*)(?::(?P<password>.*))?@)?(?P<host>\[[^\]]+\]|[^/@:\[\]]+)(?::(?P<port>\d{1,5}))?"
    r"/(?P<db>\d{1,4})/(?P<name>[^/@{}\s]+)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one stream. The braces keep them in one hash slot, so that one script may touch them all."""

    events: str
    info: str
    units: str
    readers: str

    @classmethod
    def of(cls, name: str) -> Keys:
        return cls(*(f"outbox:{{{name}}}:{part}" for part in ("events", "info", "units", "readers")))

    def erasing(self, token: str) -> tuple[str, str]:
        """While content is being erased under a token: the events without it, and the IDs it is erased from.

        Nobody else's have the same names, so whoever comes too late spoils only his own.
        """
        place = self.events.removesuffix("events")
        return f"{place}copy:{token}", f"{place}chosen:{token}"


@dataclass(frozen=True, slots=True)
class Address:
    """A stream's place, and how it is to be written. The password is never shown."""

    scheme: str
    host: str
    port: int
    db: int
    name: str
    acks: Acks
    # How many replicas the server is to have; None: as many as it has, or ever had, when the stream is opened.
    replicas: int | None
    timeout_seconds: int
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    tls: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: StreamUrl) -> Address:
        form = f"{url.scheme}://[user[:password]@]host[:port]/db/name"
        url.require_options(*OPTIONS)
        found = _PLACE.fullmatch(url.place)
        if found is None:
            raise UsageError(
                f"a Redis stream is {form}, such as {url.scheme}://localhost:6379/0/shop; the name holds no slash, no "
                "brace and no blank"
            )
        replicas = url.options.get("replicas")
        if replicas is not None and not replicas.isdecimal():
            raise UsageError(f"replicas={replicas} in the stream URL is not a whole number")
        return cls(
            scheme=url.scheme,
            host=found["host"].strip("[]"),
            port=int(found["port"] or DEFAULT_PORT),
            db=int(found["db"]),
            name=found["name"],
            acks=Acks.of(url.options),
            replicas=None if replicas is None else int(replicas),
            timeout_seconds=url.number("timeout_seconds", TIMEOUT_SECONDS),
            username=found["user"] or None,
            password=found["password"] or None,
            tls={name: text for name, text in url.options.items() if name in TLS_OPTIONS},
        )

    @property
    def url(self) -> str:
        """The URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.db}/{self.name}"

    @property
    def keys(self) -> Keys:
        return Keys.of(self.name)

    def connection_options(self) -> dict[str, Any]:
        """What the client library is told."""
        tls: dict[str, Any] = dict(self.tls)
        if "ssl_check_hostname" in tls:
            tls["ssl_check_hostname"] = tls["ssl_check_hostname"].lower() not in ("false", "no", "0")
        return {
            "host": self.host,
            "port": self.port,
            "db": self.db,
            "username": self.username,
            "password": self.password,
            "socket_timeout": float(self.timeout_seconds),
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_read_size": 1 << 18,
            "socket_keepalive": True,
            "client_name": "outbox",
            "protocol": 2,
            **(tls if self.scheme == "rediss" else {}),
        }
