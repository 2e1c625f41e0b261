"""The world of the model: a database with writers, an out table, and a stream.

A set of IDs is an integer with one bit an ID, so that a state is small and hashes fast.
Each function returns what one party may do next, one atomic interaction a step; nobody
here knows the relay. What the steps promise is what the databases promise (DESIGN.md
section 5): the lock is taken before an ID is drawn, a commit makes all rows of the
transaction visible at one moment, and only after that the lock is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

# VISIBLE: committed, the lock not yet released. RELEASED: the other way round, which no
# database does, only a mutant of one.
IDLE, HOLDING, VISIBLE, PREPARED, RELEASED = "idle", "holding", "visible", "prepared", "released"

Dialect = Literal["postgresql", "mysql", "mariadb", "sqlite"]


@dataclass(frozen=True)
class Bounds:
    """How much of everything one exploration allows. Each field multiplies the states."""

    dialect: Dialect
    sessions: int
    # Transactions that each session runs, one after the other.
    transactions: int
    # IDs that the sequence gives out at most, and a transaction draws at most.
    ids: int
    ids_per_transaction: int = 1
    # Two-phase commit: a transaction may prepare, and its client may leave.
    prepares: bool = False
    # nextval and INSERT are two steps; else they are one.
    split_insert: bool = False
    # The server crashes this many times; unflushed draws of the sequence come again.
    restarts: int = 0
    relays: int = 1
    # A relay may crash at any step, any number of times.
    crashes: bool = False
    cleaner: bool = False
    # The stream goes back to an earlier durable state, once.
    tail_loss: bool = False
    # Appends are written first and durable later; a power loss drops what is not durable.
    power_loss: bool = False
    # Rows that one read returns at most, and how many of them come in one part.
    read_limit: int | None = None
    part_rows: int | None = None
    # The relay reads on while what it handed over waits to be appended.
    pipelined: bool = False
    # `list` the holders, hold a `barrier`, or `both`.
    fence: Literal["list", "barrier", "both"] = "list"
    # One relay at a time can open the stream for writing, as with file://.
    exclusive: bool = False
    # A listing looks at one session after the other instead of at all of them at once.
    torn_listing: bool = False
    # Mark who began after the relay's round was opened, to prove that nobody waits for them.
    watch_newcomers: bool = False


@dataclass(frozen=True)
class Promises:
    """What the fence relies on; a mutant breaks one of them."""

    visible_before_release: bool = True


class Session(NamedTuple):
    """A client's session, in one of its transactions or between two."""

    phase: str = IDLE
    # Transactions begun so far, this one included.
    begun: int = 0
    # Drawn by this transaction, and of these the ones it has inserted rows for.
    drawn: int = 0
    inserted: int = 0
    newcomer: bool = False
    # The client left after XA PREPARE (MySQL); the session begins no more.
    left: bool = False


class Prepared(NamedTuple):
    """A prepared transaction that belongs to no session any more."""

    key: str
    inserted: int
    phase: str = HOLDING
    newcomer: bool = False


class World(NamedTuple):
    """Everything outside of the relays' memory, and two ghosts that only the checks read."""

    sequence: int = 0
    rows: int = 0
    deleted_through: int = 0
    sessions: tuple[Session, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    restarts: int = 0
    stream: int = 0
    durable: int = 0
    # Ghosts: every row that was ever committed, and what the stream had and lost.
    committed: int = 0
    lost: int = 0
    tail_was_lost: bool = False


def ids_of(mask: int) -> list[int]:
    """The IDs of a set, ascending."""
    return [i for i in range(1, mask.bit_length()) if mask >> i & 1]


def through(last: int) -> int:
    """The set of all IDs up to `last`."""
    return (1 << (last + 1)) - 2


def highest(mask: int) -> int:
    """The highest ID of a set; 0 when it is empty."""
    return mask.bit_length() - 1 if mask else 0


def lowest(mask: int) -> int:
    """The lowest ID of a set that is not empty."""
    return (mask & -mask).bit_length() - 1


def transaction_key(bounds: Bounds, number: int, session: Session) -> str:
    """How the database names a session's transaction in its listing of locks."""
    if bounds.dialect == "mariadb":
        return f"thread{number}"
    return f"{number}/{session.begun}"


def in_flight(world: World) -> bool:
    """Whether any transaction has not ended."""
    return bool(world.prepared) or any(session.phase != IDLE for session in world.sessions)


def is_prepared(held: Session | Prepared) -> bool:
    """Whether a transaction is prepared, its client there or gone."""
    return isinstance(held, Prepared) or held.phase == PREPARED


def drawn_as_seen(bounds: Bounds, world: World) -> int:
    """The last ID drawn, as a query tells it. SQLite keeps its counter in a table, so it is
    transactional: what the writer in flight has drawn is not seen and comes again after a rollback."""
    if bounds.dialect == "sqlite":
        for session in world.sessions:
            if session.drawn and session.phase == HOLDING:
                return lowest(session.drawn) - 1
    return world.sequence


# What writers do.


def _with(world: World, number: int, session: Session, **changes: Any) -> World:
    sessions = (*world.sessions[:number], session, *world.sessions[number + 1 :])
    return world._replace(sessions=sessions, **changes)


def writer_steps(
    world: World, bounds: Bounds, promises: Promises, round_of: frozenset[str] | None
) -> Iterator[tuple[str, World]]:
    """Every step that a session or a prepared transaction can take now.

    `round_of` is whom the relay waits for, None when it has no round open.
    """
    for number, session in enumerate(world.sessions):
        for label, after in _session_steps(world, bounds, promises, number, session, round_of):
            yield f"session {number}: {label}", after
    for number, prepared in enumerate(world.prepared):
        others = world.prepared[:number] + world.prepared[number + 1 :]
        name = f"prepared {prepared.key}"
        if prepared.phase == VISIBLE:
            yield f"{name}: is released", world._replace(prepared=others)
            continue
        yield f"{name}: is rolled back", world._replace(prepared=others)
        waiting = (*world.prepared[:number], prepared._replace(phase=VISIBLE), *world.prepared[number + 1 :])
        shown = world.rows | prepared.inserted, world.committed | prepared.inserted
        yield (
            f"{name}: COMMIT PREPARED, {ids_of(prepared.inserted)} visible",
            world._replace(prepared=waiting, rows=shown[0], committed=shown[1]),
        )


def _session_steps(
    world: World, bounds: Bounds, promises: Promises, number: int, session: Session, round_of: frozenset[str] | None
) -> Iterator[tuple[str, World]]:
    ended = Session(begun=session.begun, left=session.left)
    if session.phase == IDLE:
        # Sessions are alike: without loss of generality they begin for the first time in order.
        in_order = session.begun or number == 0 or world.sessions[number - 1].begun
        alone = bounds.dialect != "sqlite" or not in_flight(world)
        if session.begun < bounds.transactions and not session.left and in_order and alone:
            begun = Session(HOLDING, session.begun + 1)
            if bounds.watch_newcomers and round_of is not None:
                begun = begun._replace(newcomer=transaction_key(bounds, number, begun) not in round_of)
            yield "begins and takes the lock", _with(world, number, begun)
    elif session.phase == VISIBLE:
        yield "releases its lock", _with(world, number, ended)
    elif session.phase == RELEASED:
        yield _show(world, number, session, ended)
    elif session.phase == PREPARED:
        yield from _xa_steps(world, bounds, promises, number, session)
    else:
        yield from _open_steps(world, bounds, promises, number, session)


def _open_steps(
    world: World, bounds: Bounds, promises: Promises, number: int, session: Session
) -> Iterator[tuple[str, World]]:
    ended = Session(begun=session.begun, left=session.left)
    pending = session.drawn & ~session.inserted
    if pending and bounds.split_insert and pending >> highest(session.drawn) & 1:
        inserted = session._replace(inserted=session.inserted | 1 << highest(session.drawn))
        yield f"inserts {highest(session.drawn)}", _with(world, number, inserted)
    if session.drawn.bit_count() < bounds.ids_per_transaction and world.sequence < bounds.ids:
        drawn = world.sequence + 1
        only = session._replace(drawn=session.drawn | 1 << drawn)
        # An ID without a row: nextval by hand, a savepoint rolled back, INSERT OR IGNORE.
        yield f"draws {drawn}", _with(world, number, only, sequence=drawn)
        if not bounds.split_insert:
            both = only._replace(inserted=session.inserted | 1 << drawn)
            yield f"draws and inserts {drawn}", _with(world, number, both, sequence=drawn)
    back = lowest(session.drawn) - 1 if bounds.dialect == "sqlite" and session.drawn else world.sequence
    yield "rolls back", _with(world, number, ended, sequence=back)
    if session.inserted:
        yield from _commit(world, promises, number, session)
        if bounds.prepares:
            key = f"{number}/{session.begun}"
            if bounds.dialect == "postgresql":
                detached = Prepared(key, session.inserted, newcomer=session.newcomer)
                yield (
                    "PREPARE TRANSACTION",
                    _with(world, number, ended, prepared=tuple(sorted((*world.prepared, detached)))),
                )
            else:
                yield "XA PREPARE", _with(world, number, session._replace(phase=PREPARED))


def _commit(world: World, promises: Promises, number: int, session: Session) -> Iterator[tuple[str, World]]:
    if promises.visible_before_release:
        yield _show(world, number, session, session._replace(phase=VISIBLE))
    else:
        yield "commits, its lock is released first", _with(world, number, session._replace(phase=RELEASED))


def _show(world: World, number: int, session: Session, after: Session) -> tuple[str, World]:
    rows, committed = world.rows | session.inserted, world.committed | session.inserted
    return f"commits, {ids_of(session.inserted)} visible", _with(world, number, after, rows=rows, committed=committed)


def _xa_steps(
    world: World, bounds: Bounds, promises: Promises, number: int, session: Session
) -> Iterator[tuple[str, World]]:
    """MySQL: the session cannot go on before its XA transaction is ended, by it or by its leaving."""
    yield "XA ROLLBACK", _with(world, number, Session(begun=session.begun))
    yield from _commit(world, promises, number, session)
    yield "client leaves, its metadata lock is dropped", leave(world, number, session)


def leave(world: World, number: int, session: Session) -> World:
    """A client with an XA-prepared transaction goes: the transaction stays, the lock does not."""
    detached = Prepared(f"{number}/{session.begun}", session.inserted, newcomer=session.newcomer)
    return _with(
        world, number, Session(begun=session.begun, left=True), prepared=tuple(sorted((*world.prepared, detached)))
    )


def restart_steps(world: World, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """The server crashes and comes back: what was open is gone, what was prepared is there,
    on PostgreSQL under another key, and draws that no durable record covers come again."""
    if world.restarts >= bounds.restarts:
        return
    after = world
    for number, session in enumerate(world.sessions):
        if session.phase == PREPARED:
            after = leave(after, number, session)
        else:
            after = _with(after, number, Session(begun=session.begun, left=session.left))
    kept = tuple(prepared for prepared in after.prepared if prepared.phase == HOLDING)
    if bounds.dialect == "postgresql":
        kept = tuple(prepared._replace(key="-1/" + prepared.key.removeprefix("-1/")) for prepared in kept)
    covered = world.committed
    for prepared in kept:
        covered |= prepared.inserted
    for sequence in range(highest(covered), world.sequence + 1):
        yield (
            f"server: crashes and restarts, sequence at {sequence}",
            after._replace(prepared=kept, sequence=sequence, restarts=world.restarts + 1),
        )


# What listings show.


def listed_sessions(world: World, bounds: Bounds, only: int | None = None) -> frozenset[str]:
    """The sessions that hold the lock, all of them or the one with a number."""
    return frozenset(
        transaction_key(bounds, number, session)
        for number, session in enumerate(world.sessions)
        if session.phase in (HOLDING, VISIBLE, PREPARED) and (only is None or only == number)
    )


def listed_prepared(world: World, bounds: Bounds) -> frozenset[str]:
    """The prepared transactions: in `pg_locks` under their old key, or by XA RECOVER."""
    apart = "" if bounds.dialect == "postgresql" else "xa:"
    connected = frozenset(
        f"{apart}{number}/{session.begun}" for number, session in enumerate(world.sessions) if session.phase == PREPARED
    )
    return connected | frozenset(apart + prepared.key for prepared in world.prepared)


# What happens to the stream.


def append(world: World, prev_id: int, batch: int) -> tuple[str, World]:
    """Append by compare-and-set on the tail, as `stream_store.outcome.judge` decides it."""
    tail = highest(world.stream)
    if prev_id == tail:
        assert lowest(batch) > tail, f"the stream would not increase: {ids_of(batch)} behind {tail}"
        return "APPENDED", world._replace(stream=world.stream | batch)
    if prev_id > tail:
        return "TAIL_LOST", world
    if highest(batch) > tail:
        return "STALE", world
    if batch & ~world.stream:
        return "LATE", world
    return "DUPLICATE", world


def stream_steps(world: World, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """The stream loses what it must not lose (once), or what it never said was durable."""
    if bounds.tail_loss and not world.tail_was_lost:
        for tail in [0, *ids_of(world.durable)][:-1]:
            kept = world.stream & through(tail)
            yield (
                f"stream: loses its tail, back to {tail}",
                world._replace(stream=kept, durable=kept, lost=world.stream & ~kept, tail_was_lost=True),
            )
    if bounds.power_loss and world.stream != world.durable:
        for tail in [highest(world.durable), *ids_of(world.stream & ~world.durable)][:-1]:
            kept = world.stream & through(tail)
            yield f"stream: power loss, back to {tail}", world._replace(stream=kept, durable=kept)
