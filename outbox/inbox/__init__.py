"""The inbox: events of a stream, consumed exactly once into the consumer's own database."""

from outbox.inbox.inbox import Inbox
from outbox.inbox.schema import install

__all__ = ["Inbox", "install"]
