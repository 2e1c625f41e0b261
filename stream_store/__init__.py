"""Streams of events: one protocol, one module per backend, opened by URL; and consumer groups on them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stream_store.stream import Appended, Cut, Damage, Outcome, Stream, StreamCheck, StreamInfo
from stream_store.url import StreamUrl, check, open_stream, open_to_maintain

if TYPE_CHECKING:
    from stream_store.groups import BatchDelivery, Delivery, Group, GroupStatus, list_groups

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
    "Group",
    "GroupStatus",
    "Delivery",
    "BatchDelivery",
    "list_groups",
]

# Groups bring database drivers' plumbing and Arrow: loaded when one of them is first used.
_OF_GROUPS = {"Group", "GroupStatus", "Delivery", "BatchDelivery", "list_groups"}


def __getattr__(name: str) -> Any:
    if name in _OF_GROUPS:
        return getattr(import_module("stream_store.groups"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
