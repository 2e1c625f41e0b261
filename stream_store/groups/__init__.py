"""Consumer groups: members that share the events of a stream, on any backend (docs/groups.md)."""

from stream_store.groups.delivery import BatchDelivery, Delivery
from stream_store.groups.group import Group, GroupStatus, list_groups
from stream_store.groups.habits import Habits
from stream_store.groups.member import Membership
from stream_store.groups.state import DeadLetter, Order, Preference, Settings

__all__ = [
    "Group",
    "Delivery",
    "BatchDelivery",
    "Habits",
    "Membership",
    "Order",
    "Preference",
    "Settings",
    "GroupStatus",
    "DeadLetter",
    "list_groups",
]
