"""`kafka://[user:password@]host:port[,host:port]/topic?option=value`: who is asked for which topic, and how.

Options with a dot in their name go to the client as they are (librdkafka's configuration properties, such
as `sasl.mechanism` or `ssl.ca.location`), and so do variables OUTBOX_KAFKA_*: OUTBOX_KAFKA_SASL_PASSWORD is
`sasl.password`. The URL comes before the variables. Secrets are never part of a stream's printed URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.errors import UsageError
from stream_store.secrecy import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stream_store.url import StreamUrl

PREFIX = "OUTBOX_KAFKA_"
DEFAULT_PORT = 9092
# Kafka's own limit is 249; the companion's name must fit too.
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,240}")
# What the guarantee rests on is not for anybody to change.
OURS = frozenset(
    (
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "isolation.level",
        "metadata.broker.list",
        "transactional.id",
    )
)
REPLICATION = "replication_factor"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the stream is, and what every client of it is set up with."""

    servers: str
    topic: str
    # Of librdkafka. May hold secrets.
    options: dict[str, str]
    replication_factor: int | None = None

    @classmethod
    def parse(cls, url: StreamUrl, environ: Mapping[str, str] = os.environ) -> Address:
        place, slash, topic = url.place.rpartition("/")
        if not slash or not place or not TOPIC.fullmatch(topic):
            raise UsageError(
                "a stream on Kafka is named by kafka://host:port/topic, with a topic of 1 to 240 letters, digits, dots, "
                "dashes and underscores"
            )
        credentials, at, hosts = place.rpartition("@")
        options = {
            name.removeprefix(PREFIX).lower().replace("_", "."): value
            for name, value in environ.items()
            if name.startswith(PREFIX) and value
        }
        if at:
            user, _, password = credentials.partition(":")
            options |= {"sasl.username": user} | ({"sasl.password": password} if password else {})
            options.setdefault("sasl.mechanism", "PLAIN")
            # A password does not travel in the clear unless somebody says so.
            options.setdefault("security.protocol", "SASL_SSL")
        given = dict(url.options)
        factor = url.number(REPLICATION, 1) if given.pop(REPLICATION, None) else None
        if given.pop("acks", "all") != "all":
            raise UsageError("kafka:// writes in transactions, which need acks=all: leave the option out")
        for name in given:
            if "." not in name and name != "debug":
                raise UsageError(
                    f"kafka:// knows no option {name!r}; known: acks, {REPLICATION}, and librdkafka's properties, whose names "
                    "have dots"
                )
        options |= given
        for name in options:
            if name in OURS:
                raise UsageError(f"{name} is set by the stream itself: leave it out of the URL and of {PREFIX}*")
        servers = ",".join(host if _has_port(host) else f"{host}:{DEFAULT_PORT}" for host in hosts.split(",") if host)
        return cls(servers, topic, options, factor)

    @property
    def url(self) -> str:
        """The stream's name for people: without options, and so without secrets."""
        return f"kafka://{self.servers}/{self.topic}"

    @property
    def companion(self) -> str:
        """The compacted topic that says who the stream is and how far its readers are."""
        return f"{self.topic}.outbox"

    @property
    def transactional_id(self) -> str:
        """One per topic: whoever opens it last has fenced out every other writer, of whichever outbox.

        The outbox's own ID would do less: a relay left over from before the topic was made anew, or
        one of another outbox, would have a different one, and its transaction could land in here.
        """
        return f"outbox.{self.topic}"

    def without_secrets(self, text: str) -> str:
        """A message of the client, with whatever secret it repeats taken out."""
        for name, value in self.options.items():
            if is_secret(name) and value:
                text = text.replace(value, "***")
        return text


def _has_port(host: str) -> bool:
    return re.search(r":\d+$", host) is not None
