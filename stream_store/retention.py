"""Retention: through which ID a stream may be trimmed, and who holds that back.

What is to go is a matter of age, bytes and count: an event that exceeds any of the limits may go.
What may go is held back by every known reader that has not come so far, and by the out table: a
stream is never trimmed past `deleted_through`, below which rows that are left over would be LATE.

A reader that is dead does not hold for ever. It is taken for dead when there has been something
to read for it, and it has not said anything, for `reader_max_age`. A reader that runs says
something every hour. How long there has been something is not known from the events, whose time is
that of their rows: after an outage of the relay, old ones arrive at once. So what trims by
itself counts from when it has itself seen the reader behind (`Watch`), and a command passes over
nobody unless its user says after how long.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stream_store.readers import Reader
    from stream_store.stream import Cut, Stream

READER_MAX_AGE = timedelta(days=7)
OUT_TABLE: Literal["out table"] = "out table"

_UNIT_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNIT_BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# How much of a stream is read at once when its last events are counted.
_COUNTED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """What a stream keeps. None: no limit of that kind."""

    keep_age: timedelta | None = None
    keep_bytes: int | None = None
    keep_count: int | None = None

    @classmethod
    def parse(cls, text: str) -> Policy:
        """`30d`, `50GB`, `1000000 events`, or several of them: `30d, 50GB`."""
        policy = cls()
        for part in re.split(r"\s*,\s*", text.strip()):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w+)", part)
            number, unit = (float(match[1]), match[2]) if match else (0.0, "")
            if unit in _UNIT_SECONDS:
                found = cls(keep_age=timedelta(seconds=number * _UNIT_SECONDS[unit]))
            elif unit.upper() in _UNIT_BYTES:
                found = cls(keep_bytes=int(number * _UNIT_BYTES[unit.upper()]))
            elif unit in ("event", "events"):
                found = cls(keep_count=int(number))
            else:
                raise UsageError(f"{part!r} says not what to keep: write an age (30d), a size (50GB) or 1000000 events")
            policy = policy.joined(found)
        return policy

    def joined(self, other: Policy) -> Policy:
        for mine, theirs in zip(self._limits(), other._limits(), strict=True):
            if mine is not None and theirs is not None:
                raise UsageError("a limit of one kind is given twice: say each once")
        age, size_bytes, count = (
            mine if theirs is None else theirs for mine, theirs in zip(self._limits(), other._limits(), strict=True)
        )
        return Policy(age, size_bytes, count)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return any(limit is not None for limit in self._limits())

    def _limits(self) -> tuple[timedelta | None, int | None, int | None]:
        return self.keep_age, self.keep_bytes, self.keep_count


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody for whom what lies above an ID is kept."""

    # table, group, or the out table, through which rows were deleted.
    kind: str
    name: str
    through: int
    # How long nothing was heard of a reader for which there is something to read.
    silent_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Through which ID to trim; the fields are a contract of `--json`."""

    # What the limits alone would have trimmed through.
    wanted: int
    through: int
    trimmed_through: int
    # Who keeps it from going as far as wanted, the furthest behind first.
    held_by: tuple[Hold, ...]
    # Readers that have been silent for too long, and count no more.
    passed_over: tuple[Hold, ...]


class Watch:
    """Since when this process has seen each reader behind the tail. For one that looks often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}

    def look(self, readers: Iterable[Reader], tail: int) -> None:
        now = self._clock()
        behind = [(reader.kind, reader.name) for reader in readers if reader.through < tail]
        self._since = {key: self._since.get(key, now) for key in behind}

    def bounded(self, hold: Hold) -> Hold:
        """The hold with no longer a silence than was seen."""
        now = self._clock()
        seen_seconds = now - self._since.get((hold.kind, hold.name), now)
        return replace(hold, silent_seconds=min(hold.silent_seconds or 0.0, seen_seconds))


def choose(
    wanted: int, trimmed_through: int, holds: Iterable[Hold], max_silence: timedelta | None, *, force: bool
) -> Choice:
    """Decide how far a trim that is wanted through an ID may go.

    `max_silence` None: no reader is too silent. `force` ignores readers, and never the out table.
    """
    silent_seconds_max = float("inf") if max_silence is None else max_silence.total_seconds()
    in_the_way = sorted((hold for hold in holds if hold.through < wanted), key=lambda hold: (hold.through, hold.name))
    dead = [hold for hold in in_the_way if force or (hold.silent_seconds or 0) > silent_seconds_max]
    passed_over = tuple(hold for hold in dead if hold.kind != OUT_TABLE)
    held_by = tuple(hold for hold in in_the_way if hold not in passed_over)
    allowed = min((hold.through for hold in held_by), default=wanted)
    return Choice(wanted, max(trimmed_through, min(wanted, allowed)), trimmed_through, held_by, passed_over)


def plan(
    stream: Stream,
    policy: Policy,
    *,
    deleted_through: int | None = None,
    reader_max_age: timedelta | None = READER_MAX_AGE,
    force: bool = False,
    now: datetime | None = None,
    watch: Watch | None = None,
) -> Choice:
    """What a policy trims of a stream now. Nothing is changed."""
    moment = now or datetime.now(UTC)
    wanted = wanted_through(stream, policy, moment)
    return plan_through(
        stream,
        wanted,
        deleted_through=deleted_through,
        reader_max_age=reader_max_age,
        force=force,
        now=moment,
        watch=watch,
    )


def plan_through(
    stream: Stream,
    wanted: int,
    *,
    deleted_through: int | None = None,
    reader_max_age: timedelta | None = READER_MAX_AGE,
    force: bool = False,
    now: datetime | None = None,
    watch: Watch | None = None,
) -> Choice:
    """The same for an ID that somebody named."""
    tail = stream.tail()
    wanted = min(wanted, tail)
    trimmed_through = stream.info().trimmed_through
    moment = now or datetime.now(UTC)
    readers = stream.readers()
    holds = [_hold(stream, reader, trimmed_through, moment) for reader in readers if reader.through < wanted]
    if watch is not None:
        watch.look(readers, tail)
        holds = [watch.bounded(hold) for hold in holds]
    if deleted_through is not None:
        holds.append(Hold(OUT_TABLE, "rows that are not deleted yet", deleted_through))
    return choose(wanted, trimmed_through, holds, reader_max_age, force=force)


def wanted_through(stream: Stream, policy: Policy, now: datetime) -> int:
    """The highest ID that exceeds one of the limits."""
    tail, trimmed_through = stream.tail(), stream.info().trimmed_through
    wanted = trimmed_through
    if policy.keep_age is not None:
        wanted = max(wanted, stream.find(now - policy.keep_age) - 1)
    if policy.keep_bytes is not None:
        wanted = max(wanted, beyond_bytes(stream.cuts(trimmed_through, tail), policy.keep_bytes))
    if policy.keep_count is not None:
        wanted = max(wanted, _beyond_count(stream, trimmed_through, tail, policy.keep_count))
    return min(wanted, tail)


def beyond_bytes(cuts: Sequence[Cut], keep_bytes: int) -> int:
    """The end of the newest unit that does not fit into so many bytes with all that follow it; 0 when all fit."""
    left = keep_bytes
    for cut in reversed(cuts):
        left -= cut.size_bytes
        if left < 0:
            return cut.id
    return 0


def _beyond_count(stream: Stream, trimmed_through: int, tail: int, keep_count: int) -> int:
    """The event before the newest so many; 0 when there are no more than these. Reads only them."""
    if keep_count == 0:
        return tail
    end, left = tail, keep_count
    for start in _starts(stream.cuts(trimmed_through, tail), trimmed_through):
        batches = list(stream.read(start, end))
        found = sum(len(batch) for batch in batches)
        if found > left:
            for batch in reversed(batches):
                if len(batch) > left:
                    return int(batch.ids[len(batch) - left - 1].as_py())
                left -= len(batch)
        left -= found
        end = start
        if left <= 0:
            return start if start > trimmed_through else 0
    return 0


def _starts(cuts: Sequence[Cut], begin: int) -> Iterator[int]:
    """Where to read from, backwards, in pieces of a bounded size."""
    size_bytes = 0
    starts = [begin, *(cut.id for cut in cuts[:-1])]
    for start, cut in zip(reversed(starts), reversed(cuts), strict=False):
        size_bytes += cut.size_bytes
        if size_bytes >= _COUNTED_BYTES or start == begin:
            yield start
            size_bytes = 0


def _hold(stream: Stream, reader: Reader, trimmed_through: int, now: datetime) -> Hold:
    """A reader that lies behind, and for how long it has been silent though there is something for it."""
    silent_since = reader.reported_at
    first = next(iter(stream.read(max(reader.through, trimmed_through))), None)
    if first is not None:
        silent_since = max(silent_since, first.rows.column("time")[0].as_py())
    return Hold(reader.kind, reader.name, reader.through, max(0.0, (now - silent_since).total_seconds()))
