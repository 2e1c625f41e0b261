"""A span: the piece of a stream that one commit, one task or one query reads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_store import Stream


@dataclass(frozen=True, slots=True)
class Span:
    """The events with after < id <= through."""

    after: int
    through: int


def next_span(stream: Stream, after: int, rows_max: int, tail: int | None = None) -> Span | None:
    """The piece that follows `after`, of at most `rows_max` events; None when there is no event.

    `tail` is where to stop, when that was decided before. IDs are counted from the next event
    on, so a jump of a million dead or lost IDs is one step. `Trimmed` when the events that
    follow `after` are no longer there.
    """
    last = stream.tail() if tail is None else tail
    batch = next(stream.read(after, last), None)
    return Span(after, min(batch.first_id + rows_max - 1, last)) if batch else None


def split(stream: Stream, span: Span, pieces: int) -> list[Span]:
    """The span in at most so many pieces of about the same size, cut where frames end."""
    if span.after >= span.through:
        return []
    cuts = stream.cuts(span.after, span.through)
    left_bytes = sum(cut.size_bytes for cut in cuts)
    spans: list[Span] = []
    after, size_bytes = span.after, 0
    for cut, following in itertools.pairwise(cuts):
        size_bytes += cut.size_bytes
        pieces_left = pieces - len(spans)
        # Where the cut is nearest to a fair share of what is left: a large unit makes its own
        # piece too large, and the others share the rest.
        if pieces_left > 1 and (size_bytes + following.size_bytes / 2) * pieces_left > left_bytes:
            spans.append(Span(after, cut.id))
            after, left_bytes, size_bytes = cut.id, left_bytes - size_bytes, 0
    return [*spans, Span(after, span.through)]
