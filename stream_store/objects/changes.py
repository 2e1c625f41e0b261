"""Changes of state: merging, trimming, redacting. Each is: write what is new, make the next state, delete what is old.

In this order a crash anywhere leaves only objects that no state names and no reader looks at:
a merged object whose state was never made, or batches below the floor. `sweep` deletes them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outbox.batch import EventBatch
from outbox.errors import StreamCorrupt
from stream_store.file.frame import HEADER_BYTES
from stream_store.objects import layout
from stream_store.objects.chain import Unit
from stream_store.objects.merged_object import Builder, decode_head
from stream_store.objects.plan import is_large, plan_merge
from stream_store.objects.reader import Vanished
from stream_store.objects.state import Merged
from stream_store.redaction import is_redacted, redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stream_store.objects.chain import Chain
    from stream_store.objects.reader import Reader
    from stream_store.objects.state import State, States
    from stream_store.objects.store import Store

MERGE_OBJECTS = 256
MERGE_BYTES = 32 << 20
# One merge reads and deletes no more than this: whoever closes the stream waits for it.
_MERGED_AT_ONCE = 1000


class Changes:
    """Everything that raises the floor. One at a time in a process; between processes the next state decides."""

    def __init__(self, store: Store, states: States, chain: Chain, reader: Reader, seed: int, merge_bytes: int) -> None:
        self._store = store
        self._states = states
        self._chain = chain
        self._reader = reader
        self._seed = seed
        self._merge_bytes = merge_bytes
        self._lock = threading.Lock()

    def merge(self, objects_min: int = 1, spare: int = 0) -> bool:
        """Merge once, when there are so many batches beside the newest ones, which are spared. Whether it did."""
        with self._lock:
            return self._merge(objects_min, spare)

    def _merge(self, objects_min: int, spare: int) -> bool:
        look = self._chain.look()
        if look.tail == look.state.floor:
            return False
        state, batches = self._chain.units(look.state.floor, look.tail)
        batches = [unit for unit in batches if unit.merged is None]
        batches = batches[: len(batches) - spare][:_MERGED_AT_ONCE]
        if len(batches) < objects_min or not batches or batches[0].prev_id != state.floor:
            return False
        plan = plan_merge(state, batches, self._merge_bytes)
        written: list[Merged] = []
        try:
            for group in plan.groups:
                written.append(self._write(group, state.number + 1))
        except (Vanished, FileNotFoundError):
            # Somebody else has merged these meanwhile; or else they are lost, which a reader will say.
            self._discard(written)
            return False
        except StreamCorrupt:
            # Under a name that was freed meanwhile another batch may stand by now.
            self._discard(written)
            if self._chain.look().state.number == state.number:
                raise
            return False
        lost = [(unit.prev_id, unit.last_id) for unit in batches if unit.is_lost]
        merged = [*state.merged[: plan.kept], *written]
        if not self._commit(state.raised(batches[-1].last_id, merged, lost), written):
            return False
        self._delete_old([unit.name for unit in (*plan.absorbed, *batches)])
        return True

    def trim(self, through: int) -> None:
        """Forget the objects that end at or below an ID."""
        with self._lock:
            while True:
                look = self._chain.look()
                reached = min(through, look.tail)
                if reached <= look.state.trimmed_through:
                    return
                state, units = self._chain.units(look.state.trimmed_through, look.tail)
                gone = [unit for unit in units if unit.last_id <= reached]
                if not gone:
                    return
                last_id = gone[-1].last_id
                lost = [(unit.prev_id, unit.last_id) for unit in gone if unit.is_lost]
                if self._commit(state.trimmed(last_id, max(state.floor, last_id), lost), ()):
                    self._delete_old([unit.name for unit in gone])
                    return

    def begin(self, through: int, *, compacted: bool) -> None:
        """Raise the floor over the frame that a stream begins with; see `ObjectStream.begin`.

        Only from a state whose floor is 0: then the frame that was read under the name 0 is the one
        and only that was ever there.
        """
        with self._lock:
            while (state := self._chain.look().state).floor == 0 and (through or not state.compacted):
                begun = replace(state, compacted=compacted)
                begun = begun.trimmed(through, through) if through else begun.raised(0, state.merged)
                if self._commit(begun, ()) and through:
                    self._delete_old([layout.batch_name(0)])

    def redact(self, ids: Sequence[int]) -> int:
        """Erase the content of events, in every object that holds it; how many were newly erased."""
        with self._lock:
            look = self._chain.look()
            wanted = [each for each in sorted(set(ids)) if look.state.trimmed_through < each <= look.tail]
            if not wanted:
                return 0
            # A batch is never changed. What is still in one is merged first, and redacted there.
            while (before := self._chain.look().state).floor < wanted[-1]:
                if not self._merge(1, 0) and self._chain.look().state.number == before.number:
                    # Nothing was in our way, so something cannot be read: reading says what.
                    self._reader.table(before.floor + 1, wanted[-1])
            chosen = pa.array(wanted, pa.int64())
            erased = 0
            done: set[str] = set()
            while True:
                state = self._chain.look().state
                target = next((each for each in state.merged if each.name not in done and _holds(each, wanted)), None)
                if target is None:
                    break
                done.add(target.name)
                erased += self._redact(state, target, chosen, done)
            self._sweep()
            return erased

    def _redact(self, state: State, target: Merged, chosen: pa.Int64Array, done: set[str]) -> int:
        unit = Unit(target.prev_id, target.last_id, target.size_bytes, target.name, target)
        builder, erased = Builder(self._seed), 0
        try:
            for header, batch in self._reader.stored([unit], target.prev_id):
                if batch is None:
                    builder.add_lost(header.prev_id, header.last_id)
                    continue
                held = pc.is_in(batch.ids, value_set=chosen)
                erased += pc.sum(pc.and_(held, pc.invert(is_redacted(batch.rows)))).as_py() or 0
                # Taken row by row, so that no buffer keeps bytes of what was erased.
                rows = redacted(batch.rows, chosen).take(pa.array(range(len(batch)), pa.int64()))
                builder.add(EventBatch(batch.prev_id, rows))
        except Vanished:
            return 0  # merged again by somebody else, under another name: it comes round once more
        if not erased:
            return 0
        data, merged = builder.finish(layout.new_merged_name(state.number + 1))
        self._store.replace(merged.name, data)
        replaced = [merged if each.name == target.name else each for each in state.merged]
        if not self._commit(state.raised(state.floor, replaced), [merged]):
            done.discard(target.name)
            return 0
        done.add(merged.name)
        self._delete_old([target.name])
        return int(erased)

    def sweep(self) -> None:
        """Delete what a crash or a relay that came too late has left, and nobody looks at."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        state = self._states.newest()
        # Names below the floor are nobody's: whoever creates one finds the floor above it and gives way.
        first = self._store.first(layout.BATCHES)
        if first is not None and layout.number_of(first.name) < state.floor:
            listed = [each.name for each in self._store.list(layout.BATCHES)]
            self._store.delete([name for name in listed if layout.number_of(name) < state.floor])
        # A merged object counts from the one state on that it was written for, or never.
        named = {each.name for each in state.merged}
        listed = [each.name for each in self._store.list(layout.MERGED)]
        self._store.delete([name for name in listed if layout.meant_for(name) <= state.number and name not in named])

    def _write(self, group: Iterable[Unit], number: int) -> Merged:
        """One merged object of these objects, which no state names yet."""
        units = list(group)
        name = layout.new_merged_name(number)
        if len(units) == 1 and is_large(units[0], self._merge_bytes):
            return self._copy(units[0], name)
        builder = Builder(self._seed)
        for header, batch in self._reader.stored(units, units[0].prev_id):
            if batch is None:
                builder.add_lost(header.prev_id, header.last_id)
            else:
                builder.add(batch)
        data, merged = builder.finish(name)
        # Names are unique, so there is nothing to overwrite; whether it arrived, the state says.
        self._store.replace(name, data)
        return merged

    def _copy(self, unit: Unit, name: str) -> Merged:
        data = self._store.get_range(unit.name, 0, HEADER_BYTES)
        if data is None:
            raise Vanished(unit.name)
        header = decode_head(data, self._seed, unit.name)
        self._store.copy(unit.name, name)
        return Merged(name, unit.prev_id, unit.last_id, unit.size_bytes, 0, header.time_min_us, header.time_max_us)

    def _commit(self, state: State, written: Iterable[Merged]) -> bool:
        """Make a state the newest. When another was faster, what was written for it is of no use."""
        if self._states.commit(state):
            return True
        self._discard(written)
        return False

    def _discard(self, written: Iterable[Merged]) -> None:
        self._store.delete([each.name for each in written])

    def _delete_old(self, names: Sequence[str]) -> None:
        """What the newest state has made superfluous. Readers that were at it look again."""
        self._store.delete(names)
        self._chain.look()


def _holds(merged: Merged, wanted: list[int]) -> bool:
    return any(merged.prev_id < each <= merged.last_id for each in wanted)
