"""Streams of events: one protocol, one module per backend, opened by URL."""

from stream_store.stream import Appended, Cut, Damage, Outcome, Stream, StreamCheck, StreamInfo
from stream_store.url import StreamUrl, check, open_stream, open_to_maintain

__all__ = [
    "open_stream",
    "open_to_maintain",
    "check",
    "Stream",
    "StreamUrl",
    "StreamInfo",
    "StreamCheck",
    "Cut",
    "Damage",
    "Appended",
    "Outcome",
]
