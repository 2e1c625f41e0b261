"""Verification: proving that out table and stream agree and that every ID is accounted for."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from connector.comparison import NAMED_IDS_MAX, Comparison, Found, compare
from connector.options import RelayOptions
from connector.sources import open_source
from outbox.errors import StreamCorrupt
from stream_store import open_stream
from stream_store.redaction import is_redacted

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.source import Source
    from outbox.database import DatabaseUrl
    from outbox.info import Info
    from outbox.names import OutTable
    from stream_store.stream import Stream

    # What is being done, how far it is, and how far it goes.
    Progress = Callable[[str, int, int], None]


@dataclass
class Verification:
    """What `outbox verify` found; the fields are a contract of `--json`.

    Every ID from 1 to the tail is an event, dead (recorded by the chain), trimmed, or
    recorded as lost by `outbox rebase`: events + dead + trimmed + recorded_lost = tail. What
    is missing in that sum, because the stream is damaged, is `unread`.
    """

    ok: bool = False
    # The out table that the stream was held against; None when only the stream was read.
    out_table: str | None = None
    # Rows of the out table at or below the tail that the stream does not have, and IDs behind the
    # tail whose rows were deleted (TAIL_LOST): which of them were dead, only the stream knew.
    lost: int = 0
    lost_ids: list[int] = field(default_factory=list)
    # IDs that stand in the stream more than once, or out of order.
    duplicated: int = 0
    duplicated_ids: list[int] = field(default_factory=list)
    # Rows whose event in the stream has other content.
    conflicting: int = 0
    conflicting_ids: list[int] = field(default_factory=list)
    tail: int = 0
    events: int = 0
    dead: int = 0
    trimmed: int = 0
    recorded_lost: int = 0
    # Of the events, those whose content was erased; and rows of the out table that still hold it.
    redacted: int = 0
    unredacted_rows: int = 0
    unredacted_ids: list[int] = field(default_factory=list)
    # Made by compaction: what it left out counts as dead.
    compacted: bool = False
    # IDs through the tail that could not be read: the stream is damaged.
    unread: int = 0
    # Rows that the relay has not appended yet, and rows already appended but not deleted.
    rows_pending: int = 0
    rows_kept: int = 0
    last_id_drawn: int = 0
    deleted_through: int = 0
    problems: list[str] = field(default_factory=list)
    # What is not wrong, and yet somebody should know it.
    warnings: list[str] = field(default_factory=list)


def verify(url: DatabaseUrl, table: OutTable, stream_url: str, progress: Progress | None = None) -> Verification:
    """Read the whole stream and the whole out table once; a relay may go on meanwhile."""
    source = open_source(RelayOptions(url, table, stream_url))
    with contextlib.closing(source), contextlib.closing(open_stream(stream_url)) as stream:
        source.open()
        result = Verification(out_table=str(table))
        info = source.info()
        # In this order: while a relay goes on, deleted_through <= tail <= last ID drawn holds for
        # what was read at different moments only if the larger was read later.
        result.deleted_through = source.standing().deleted_through
        result.tail = stream.tail()
        result.last_id_drawn = source.standing().drawn
        _check_partners(result, info, stream, source.server_id())
        _check_standing(result)
        _count_lost(result, source)
        _walk(result, stream, progress)

        def compared(at: int) -> None:
            if progress is not None:
                progress("comparing the out table", at, result.tail)

        try:
            _take(result, compare(source, stream, through=result.tail, progress=compared))
        except StreamCorrupt as error:
            if str(error) not in result.problems:
                result.problems.append(str(error))
        late = source.late_id(result.deleted_through)
        if late is not None:
            result.problems.append(
                f"row {late} lies at or below {result.deleted_through}, where every row had been deleted"
            )
        result.rows_pending = _count_pending(source, result.tail, result.last_id_drawn)
    return _concluded(result)


def verify_stream(stream_url: str, progress: Progress | None = None) -> Verification:
    """Read the whole stream once: the chain unbroken, every ID accounted for. Says nothing of the out table."""
    with contextlib.closing(open_stream(stream_url)) as stream:
        result = Verification(tail=stream.tail())
        _walk(result, stream, progress)
    return _concluded(result)


def _concluded(result: Verification) -> Verification:
    accounted = result.events + result.dead + result.trimmed + result.recorded_lost
    result.unread = max(0, result.tail - accounted)
    result.ok = not (result.lost or result.duplicated or result.conflicting or result.problems)
    return result


def _count_pending(source: Source, tail: int, drawn: int) -> int:
    """The visible rows behind the tail. Not through the end: writers go on meanwhile."""
    count, after = 0, tail
    while after < drawn:
        before = after
        for rows in source.read(after, 50_000, through=drawn):
            count += rows.events.num_rows
            after = int(rows.events.column(0)[-1].as_py())
        if after == before:
            break
    return count


def _check_partners(result: Verification, info: Info, stream: Stream, server_id: str) -> None:
    facts = stream.info()
    if facts.compacted:
        result.problems.append(
            f"{stream.url} was made by `outbox stream compact`: it leaves events out, and is no out table's stream; verify the "
            "live stream"
        )
    if info.stream_id != facts.stream_id or facts.outbox_id != info.outbox_id:
        result.problems.append(
            f"outbox {info.outbox_id} (bound to stream {info.stream_id}) and stream {facts.stream_id} "
            f"(bound to outbox {facts.outbox_id}) are not partners"
        )
    if info.server_id not in (None, server_id):
        result.problems.append(f"the database server changed: {info.server_id} before, {server_id} now")


def _check_standing(result: Verification) -> None:
    if result.deleted_through > result.tail:
        result.problems.append(
            f"TAIL_LOST: rows through {result.deleted_through} were deleted, the stream ends at {result.tail}: "
            "restore a newer copy of it, or run `outbox rebase` to record the loss"
        )
    if result.last_id_drawn < result.tail:
        result.problems.append(f"the sequence stands at {result.last_id_drawn}, below the stream's tail {result.tail}")


def _count_lost(result: Verification, source: Source) -> None:
    """Every ID that a stream which went back in time misses: what `outbox rebase` would record."""
    after, through = result.tail, result.deleted_through
    if after >= through:
        return
    # A late row in the middle of them is still there, and reported as such.
    result.lost = through - after - _count_pending(source, after, through)
    present = {
        row_id for rows in source.read(after, NAMED_IDS_MAX, through) for row_id in rows.events["id"].to_pylist()
    }
    named = range(after + 1, min(through, after + NAMED_IDS_MAX) + 1)
    result.lost_ids = [row_id for row_id in named if row_id not in present]


def _walk(result: Verification, stream: Stream, progress: Progress | None) -> None:
    """Every event of the stream: the chain unbroken, IDs strictly rising, every ID accounted for."""
    facts = stream.info()
    at = result.trimmed = facts.trimmed_through
    result.compacted = facts.compacted
    recorded_lost = dict(facts.lost)
    twice = Found()
    try:
        for batch in stream.read(at, result.tail):
            while batch.prev_id != at and at in recorded_lost:
                result.recorded_lost += recorded_lost[at] - at
                at = recorded_lost[at]
            if batch.prev_id != at:
                result.problems.append(f"the chain is broken: event {batch.first_id} follows {batch.prev_id}, not {at}")
            ids = batch.ids
            if len(ids) > 1:
                twice.add(ids[1:].filter(pc.less_equal(ids[1:], ids[:-1])))
            if batch.first_id <= at:
                twice.add(ids[:1])
            result.events += len(batch)
            result.redacted += pc.sum(is_redacted(batch.rows)).as_py()
            result.dead += batch.last_id - batch.prev_id - len(batch)
            at = batch.last_id
            if progress is not None:
                progress("reading the stream", at, result.tail)
    except StreamCorrupt as error:
        result.problems.append(str(error))
        return
    while at in recorded_lost:
        result.recorded_lost += recorded_lost[at] - at
        at = recorded_lost[at]
    result.duplicated, result.duplicated_ids = twice.count, twice.ids
    accounted = result.trimmed + result.events + result.dead + result.recorded_lost
    if accounted != result.tail:
        result.problems.append(f"the IDs go through {result.tail}, accounted for are {accounted}")


def _take(result: Verification, comparison: Comparison) -> None:
    result.rows_kept = comparison.rows
    result.lost += comparison.missing.count
    result.lost_ids = (comparison.missing.ids + result.lost_ids)[:NAMED_IDS_MAX]
    result.conflicting, result.conflicting_ids = comparison.conflicting.count, comparison.conflicting.ids
    result.unredacted_rows, result.unredacted_ids = comparison.unredacted.count, comparison.unredacted.ids
    if result.unredacted_rows:
        named = ", ".join(str(number) for number in result.unredacted_ids[:10])
        result.warnings.append(
            f"{result.unredacted_rows} rows of the out table still hold what was redacted in the stream (IDs {named}"
            f"{', …' if result.unredacted_rows > 10 else ''}): they go when the relay deletes them"
        )
