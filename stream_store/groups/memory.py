"""The state of ephemeral groups: in this process, for its threads, and gone with it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outbox.errors import GroupMissing, UsageError
from stream_store.groups import decision
from stream_store.groups.state import State
from stream_store.groups.store import EPHEMERAL, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from stream_store.groups.state import DeadLetter, Settings
    from stream_store.groups.store import Change, Settlement


@dataclass(slots=True)
class _Kept:
    stream_id: str
    name: str
    state: State
    letters: dict[int, DeadLetter] = field(default_factory=dict)


_groups: dict[int, _Kept] = {}
_lock = threading.RLock()


class MemoryStore:
    """Groups in a process-wide registry."""

    place = EPHEMERAL

    def create(self, stream_id: str, name: str, settings: Settings, head: int) -> int | None:
        with _lock:
            if self.find(stream_id, name) is not None:
                return None
            group_id = next(tokens())
            _groups[group_id] = _Kept(stream_id, name, State(settings, head))
            return group_id

    def find(self, stream_id: str, name: str) -> int | None:
        with _lock:
            return next((i for i, kept in _groups.items() if (kept.stream_id, kept.name) == (stream_id, name)), None)

    def names(self, stream_id: str) -> list[str]:
        with _lock:
            return sorted(kept.name for kept in _groups.values() if kept.stream_id == stream_id)

    def transact(self, group_id: int, decide: Callable[[State, int], Change]) -> Any:
        with _lock:
            kept = self._kept(group_id)
            now_us = _now_us()
            change = decide(kept.state, now_us)
            kept.state = change.state
            for event_id in change.letters_gone:
                kept.letters.pop(event_id, None)
            for letter in change.letters:
                kept.letters[letter.id] = replace(letter, recorded_us=now_us)
            return change.answer

    def settle(self, group_id: int, settlements: Sequence[Settlement]) -> list[int]:
        with _lock:
            kept = self._kept(group_id)
            late = []
            for each in settlements:
                settled = decision.settle(kept.state, each.token, each.left)
                if settled is None:
                    late.append(each.token)
                else:
                    kept.state = settled
            return late

    def settle_within(self, connection: Any, group_id: int, token: int) -> bool:  # noqa: ARG002
        raise UsageError("an ephemeral group keeps its state in memory, where no transaction reaches it: use ack()")

    def beat(self, group_id: int, member: str) -> bool:
        with _lock:
            kept = self._kept(group_id)
            now_us = _now_us()
            if all(each.name != member for each in kept.state.members):
                return False
            beaten = (
                replace(each, expires_us=now_us + each.lease_us) if each.name == member else each
                for each in kept.state.members
            )
            kept.state = replace(kept.state, members=tuple(beaten))
            return True

    def letters(self, group_id: int, ids: Collection[int] | None = None, limit: int | None = None) -> list[DeadLetter]:
        with _lock:
            letters = self._kept(group_id).letters
            chosen = sorted(letters if ids is None else set(ids) & set(letters))
            return [letters[event_id] for event_id in chosen[:limit]]

    def count_letters(self, group_id: int) -> int:
        with _lock:
            return len(self._kept(group_id).letters)

    def delete(self, group_id: int) -> None:
        with _lock:
            _groups.pop(group_id, None)

    def close(self) -> None:
        """What other threads use stays."""

    def _kept(self, group_id: int) -> _Kept:
        if group_id not in _groups:
            raise GroupMissing("the ephemeral group was deleted meanwhile: make it again")
        return _groups[group_id]


def _now_us() -> int:
    # Monotonic: nobody outside this process sees these times.
    return time.monotonic_ns() // 1000
