"""The names of the objects.

IDs and numbers are written with leading zeros and cut into groups of three digits, a folder
each: in no folder are there more than a thousand names, so the highest of all is found with
one listing of one page per group, however many objects there are.
"""

from __future__ import annotations

from uuid import uuid4

IDENTITY = "stream.json"
BOND = "outbox.json"
PROBE = "probe"
BATCHES = "batches"
STATES = "states"
MERGED = "merged"
READERS = "readers"

# 2**63 has 19 digits. A thousand million changes of state are more than a stream will see.
_ID_DIGITS, _NUMBER_DIGITS = 19, 9
_GROUP_DIGITS = 3


def batch_name(prev_id: int) -> str:
    """Where the batch that follows an ID is, and any other that claims to follow it would be."""
    return f"{BATCHES}/{_grouped(prev_id, _ID_DIGITS)}"


def state_name(number: int) -> str:
    return f"{STATES}/{_grouped(number, _NUMBER_DIGITS)}"


def number_of(name: str) -> int:
    """The ID or the number that a name of a batch or a state stands for."""
    return int("".join(name.split("/")[1:]))


def new_merged_name(state_number: int) -> str:
    """A name that nobody else has, for an object that this state is to name and no other can."""
    return f"{MERGED}/{state_number:0{_NUMBER_DIGITS}d}-{uuid4().hex}"


def meant_for(merged_name: str) -> int:
    """The number of the one state that can have made this merged object count."""
    return int(merged_name.removeprefix(f"{MERGED}/").partition("-")[0])


def _grouped(number: int, digits: int) -> str:
    text = f"{number:0{digits}d}"
    first = len(text) % _GROUP_DIGITS or _GROUP_DIGITS
    # The odd digits join the first group: 9223/372/036/854/775/807.
    start = first + _GROUP_DIGITS if first < _GROUP_DIGITS else first
    return "/".join([text[:start], *(text[at : at + _GROUP_DIGITS] for at in range(start, digits, _GROUP_DIGITS))])
