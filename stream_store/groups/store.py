"""Where groups keep their state: the seam between decisions and databases.

`transact` runs one decision with the group locked. Two statements do without the lock, because
their token or their member's row says all: acknowledging and the heartbeat.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outbox.errors import UsageError
from stream_store.url import StreamUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from stream_store.groups.state import DeadLetter, Lot, Settings, State

EPHEMERAL = "memory://"


@dataclass(frozen=True, slots=True)
class Change:
    """What a decision wants written, and its answer to whoever asked for it."""

    state: State
    answer: Any = None
    letters: tuple[DeadLetter, ...] = ()
    letters_gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """An acknowledgement: of the lot with this token, only `left` is outstanding still."""

    token: int
    left: Lot | None


class GroupStore(Protocol):
    """One suite of tests for all of them: `tests/contract/test_group_store.py`."""

    # Without a password, for messages.
    place: str

    def create(self, stream_id: str, name: str, settings: Settings, head: int) -> int | None:
        """Make a group and answer its ID; None when there is one of that name."""

    def find(self, stream_id: str, name: str) -> int | None: ...

    def names(self, stream_id: str) -> list[str]: ...

    def transact(self, group_id: int, decide: Callable[[State, int], Change]) -> Any:
        """Lock the group, decide by its state and the store's time in microseconds, write, and answer.

        `decide` may be called again when the database was away, and may ask for `letters`. `GroupMissing` when the group is gone.
        """

    def settle(self, group_id: int, settlements: Sequence[Settlement]) -> list[int]:
        """Acknowledge; the tokens that were not valid any more, of which nothing was."""

    def settle_within(self, connection: Any, group_id: int, token: int) -> bool:
        """Acknowledge a whole lot in a transaction of the caller's on the same database; False when it is too late."""

    def beat(self, group_id: int, member: str) -> bool:
        """Prolong a member's life by its lease; False when the group has given it up."""

    def letters(
        self, group_id: int, ids: Collection[int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]: ...

    def count_letters(self, group_id: int) -> int: ...

    def delete(self, group_id: int) -> None:
        """Forget a group with everything that belongs to it."""

    def close(self) -> None: ...


def tokens() -> Iterator[int]:
    """Numbers that nobody has had before, as far as 62 random bits go."""
    while True:
        yield secrets.randbits(62) + 1


def known_as(name: str, group_id: int) -> str:
    """A group's name among a stream's readers: another database may have a group of the same name."""
    return f"{name}:{group_id}"


def default_state(stream_url: str) -> str:
    """The state beside a stream of files; other streams are on other machines than their readers."""
    url = StreamUrl.parse(stream_url)
    if url.scheme != "file":
        raise UsageError(
            f"say where the groups of a {url.scheme}:// stream keep their state: a database that all members reach, "
            "such as postgresql://app@db/groups or sqlite:///groups.db (--state, OUTBOX_GROUP_STATE), or an ephemeral group"
        )
    folder = url.folder.absolute()
    return f"sqlite:///{folder.with_name(folder.name + '.groups.db')}"


def open_store(state_url: str, *, create: bool = True) -> GroupStore:
    """The store at a database URL, its tables made when they are not there and may be."""
    if state_url == EPHEMERAL:
        from stream_store.groups.memory import MemoryStore

        return MemoryStore()
    from stream_store.groups.sql import SqlStore

    return SqlStore(state_url, create=create)
