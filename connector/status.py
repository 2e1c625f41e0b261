"""Where an outbox stands: out table, stream, leader, and who holds it back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from connector.options import RelayOptions
from connector.sources import open_source
from outbox.database import Session
from outbox.errors import OutboxError, Unsupported
from outbox.info import read_info
from stream_store import open_stream

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl
    from outbox.names import OutTable
    from stream_store.stream import StreamInfo

# Rows are counted this far: a status must not take minutes on a large backlog.
COUNTED_ROWS_MAX = 1_000_000


@dataclass
class Status:
    """What `outbox status` shows; the fields are a contract of `--json`."""

    outbox: str
    database: str
    source: str
    outbox_id: str
    last_id_drawn: int
    deleted_through: int
    relayed_through: int
    leader: str | None
    leader_alive: bool
    # Rows that are not in the stream yet, as far as they are visible.
    rows_waiting: int = 0
    rows_waiting_is_exact: bool = True
    oldest_waiting_seconds: float | None = None
    # The lowest row at or below `deleted_through`, where there must be none: the relay stops at it.
    late_id: int | None = None
    # The ID that a transaction in flight keeps the stream from passing.
    held_at: int | None = None
    blockers: list[str] = field(default_factory=list)
    stream: str | None = None
    stream_id: str | None = None
    stream_tail: int | None = None
    stream_trimmed_through: int | None = None
    stream_segments: int | None = None
    stream_size_bytes: int | None = None
    problems: list[str] = field(default_factory=list)


def status(url: DatabaseUrl, table: OutTable, stream_url: str | None) -> Status:
    """Look at everything once, without disturbing a relay."""
    with Session(url, table, application="outbox status") as session:
        info = read_info(session)
        result = Status(
            outbox=str(table),
            database=str(url),
            source=info.source,
            outbox_id=info.outbox_id,
            last_id_drawn=0,
            deleted_through=info.deleted_through,
            relayed_through=info.relayed_through,
            leader=info.leader,
            leader_alive=info.leader is not None and (info.lease_seconds_left or 0) > 0,
        )
        tail = max(info.relayed_through, info.deleted_through)
        facts = None if stream_url is None else _look_at_stream(result, stream_url)
        # After the tail, which a relay may have moved meanwhile.
        result.last_id_drawn = int(session.row("standing")[0])
        if facts is not None:
            tail = facts.tail
            if info.stream_id not in (None, facts.stream_id):
                result.problems.append(f"the out table is bound to another stream, {info.stream_id}")
            if tail < info.deleted_through:
                result.problems.append(
                    f"TAIL_LOST: the stream ends at {tail}, rows through {info.deleted_through} were deleted"
                )
            if result.last_id_drawn < tail:
                result.problems.append(f"the sequence stands at {result.last_id_drawn}, below the stream's tail {tail}")
        _look_for_late_rows(result, session)
        rows, first_waiting, oldest_seconds = session.row("waiting", tail=tail, limit_rows=COUNTED_ROWS_MAX + 1)
        result.rows_waiting = min(int(rows), COUNTED_ROWS_MAX)
        result.rows_waiting_is_exact = rows <= COUNTED_ROWS_MAX
        result.oldest_waiting_seconds = None if oldest_seconds is None else float(oldest_seconds)
    if first_waiting is not None and first_waiting > tail + 1:
        _name_blockers(result, RelayOptions(url, table, stream_url or ""), tail)
    return result


def _look_at_stream(result: Status, stream_url: str) -> StreamInfo | None:
    result.stream = stream_url
    try:
        with contextlib.closing(open_stream(stream_url)) as stream:
            facts = stream.info()
    except OutboxError as error:
        result.problems.append(str(error))
        return None
    result.stream_id = facts.stream_id
    result.stream_tail = facts.tail
    result.stream_trimmed_through = facts.trimmed_through
    result.stream_segments = facts.segments
    result.stream_size_bytes = facts.size_bytes
    if facts.outbox_id not in (None, result.outbox_id):
        result.problems.append(f"the stream belongs to another outbox, {facts.outbox_id}")
    return facts


def _look_for_late_rows(result: Status, session: Session) -> None:
    """One look at the front of the primary key. Rows and `deleted_through`, which was read before,
    move in one transaction: a relay that cleans up meanwhile leaves none behind."""
    late = session.value("late_id", deleted_through=result.deleted_through)
    if late is not None:
        result.late_id = int(late)
        result.problems.append(
            f"LATE: row {late} lies at or below {result.deleted_through}, through which every row was relayed and deleted; "
            "the relay stops at it, `outbox rebase --dry-run` shows how such rows get new IDs"
        )


def _name_blockers(result: Status, options: RelayOptions, tail: int) -> None:
    """Rows are visible behind a gap: whoever holds the lock now may be what keeps it open."""
    source = open_source(options)
    try:
        source.open()
        holders = source.holders()
        blockers = source.blockers(holders.sessions | holders.prepared)
    except Unsupported as error:
        result.problems.append(str(error))
        return
    finally:
        source.close()
    if "unlisted" in holders.sessions:
        result.held_at = tail + 1
        result.blockers = [
            "perhaps a transaction in flight: who holds locks cannot be listed here (see `outbox check`)"
        ]
    elif blockers:
        result.held_at = tail + 1
        result.blockers = [str(blocker) for blocker in blockers]
