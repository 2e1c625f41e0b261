"""Reading every object of a stream: `outbox stream check`. It may run beside relays and merges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from outbox.errors import StreamCorrupt
from stream_store.file.frame import seed_of
from stream_store.objects import layout
from stream_store.objects.chain import Chain
from stream_store.objects.identity import read_identity
from stream_store.objects.merged_object import decode_frame, decode_index
from stream_store.objects.state import States
from stream_store.redaction import is_redacted
from stream_store.stream import Damage, StreamCheck

if TYPE_CHECKING:
    from stream_store.file.frame import FrameHeader
    from stream_store.objects.chain import Unit
    from stream_store.objects.state import State
    from stream_store.objects.store import Store


@dataclass(slots=True)
class _Tally:
    reached: int
    frames: int = 0
    events: int = 0
    dead_ids: int = 0
    lost_ids: int = 0
    redacted: int = 0
    objects: int = 0
    size_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


def inspect(store: Store) -> StreamCheck:
    """What the prefix holds, and every object that cannot be read."""
    found = read_identity(store)
    seed = seed_of(found.uuid)
    states = States(store)
    chain = Chain(store, states, seed)
    try:
        look = chain.look()
    except StreamCorrupt as error:
        # Without the newest state or the last batch nothing else can be found.
        return _unreadable(store, found.stream_id, Damage(_named(str(error)), 0, str(error)))
    tally = _Tally(look.state.trimmed_through)
    state = look.state
    while tally.reached < look.tail:
        try:
            state, units = chain.units(tally.reached, look.tail)
        except StreamCorrupt as error:
            tally.damage.append(Damage(layout.batch_name(max(state.floor, tally.reached)), 0, str(error)))
            break
        if state.trimmed_through > tally.reached:
            tally = _Tally(state.trimmed_through)  # trimmed while we were reading: count again
            continue
        if _read_all(store, chain, state, units, seed, tally):
            break
    return StreamCheck(
        url=store.url,
        stream_id=found.stream_id,
        tail=look.tail,
        trimmed_through=state.trimmed_through,
        segments=tally.objects,
        frames=tally.frames,
        events=tally.events,
        dead_ids=tally.dead_ids,
        lost_ids=tally.lost_ids,
        size_bytes=tally.size_bytes,
        unacknowledged_bytes=_void_bytes(store, states.newest()),
        damage=tuple(tally.damage),
        redacted=tally.redacted,
        compacted=state.compacted,
    )


def _unreadable(store: Store, stream_id: str, damage: Damage) -> StreamCheck:
    return StreamCheck(store.url, stream_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, (damage,))


def _named(error: str) -> str:
    """The object that an error begins with."""
    return error.partition(" ")[0]


def _read_all(store: Store, chain: Chain, state: State, units: list[Unit], seed: int, tally: _Tally) -> bool:
    """Read these objects. False when one has vanished because the state has changed: look again then."""
    for unit in units:
        data = store.get(unit.name)
        if unit.merged is None and chain.floor() > unit.prev_id:
            return False  # merged or trimmed meanwhile: the name may be anyone's now
        if data is None:
            if chain.look().state.number != state.number:
                return False
            _damaged(tally, unit, 0, "the object is missing")
        else:
            _inspect(data, unit, seed, tally)
        tally.reached = unit.last_id
    return True


def _inspect(data: memoryview, unit: Unit, seed: int, tally: _Tally) -> None:
    tally.objects += 1
    tally.size_bytes += len(data)
    if len(data) != unit.size_bytes:
        _damaged(tally, unit, min(len(data), unit.size_bytes), f"it has {len(data)} bytes, not {unit.size_bytes}")
        return
    end = len(data) - (unit.merged.index_bytes if unit.merged else 0)
    offset, reached = 0, unit.prev_id
    try:
        if unit.merged is not None and unit.merged.index_bytes:
            decode_index(data[end:], unit.merged, seed)
        while offset < end:
            header, batch = decode_frame(data[:end], offset, offset, seed, unit.name)
            if header.prev_id != reached:
                _damaged(
                    tally,
                    unit,
                    offset,
                    f"the frame follows ID {header.prev_id}, what lies before it ends at ID {reached}",
                )
            if batch is not None and len(batch) > 1 and not pc.all(pc.less(batch.ids[:-1], batch.ids[1:])).as_py():
                _damaged(tally, unit, offset, f"the IDs {header.first_id} to {header.last_id} do not strictly increase")
            _count(tally, header)
            if batch is not None:
                tally.redacted += pc.sum(is_redacted(batch.rows)).as_py() or 0
            reached, offset = header.last_id, offset + header.frame_bytes
    except StreamCorrupt as error:
        _damaged(tally, unit, offset, str(error.__cause__ or error))
        return
    if reached != unit.last_id:
        _damaged(tally, unit, offset, f"it ends at ID {reached}, what follows it begins at ID {unit.last_id}")


def _count(tally: _Tally, header: FrameHeader) -> None:
    tally.frames += 1
    ids = header.last_id - header.prev_id
    if header.is_lost:
        tally.lost_ids += ids
    else:
        tally.events += header.events
        tally.dead_ids += ids - header.events


def _void_bytes(store: Store, state: State) -> int:
    """Objects that no state names: left by a crash, or by a relay that came too late. The next relay sweeps them."""
    named = {each.name for each in state.merged}
    void = [each for each in store.list(layout.BATCHES) if layout.number_of(each.name) < state.floor]
    void += [
        each
        for each in store.list(layout.MERGED)
        if each.name not in named and layout.meant_for(each.name) <= state.number
    ]
    return sum(each.size_bytes for each in void)


def _damaged(tally: _Tally, unit: Unit, offset: int, what: str) -> None:
    tally.damage.append(Damage(unit.name, offset, what))
