"""Pieces of a stream: no event twice, none left out, and no walk through dead IDs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from outbox.errors import Trimmed
from spark_sink.spans import Span, next_span, split
from stream_store import open_stream
from tests.crash.stream_events import batch, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stream_store import Stream

_names = itertools.count()


@pytest.fixture
def stream() -> Iterator[Stream]:
    with open_stream(f"memory://spans-{next(_names)}", "write") as opened:
        yield opened


def fill(stream: Stream, frames: int, rows: int = 10) -> None:
    first = stream.tail() + 1
    for start in range(first, first + frames * rows, rows):
        stream.append(batch(range(start, start + rows)))


def walk(stream: Stream, rows_max: int, tail: int | None = None) -> list[Span]:
    spans: list[Span] = []
    while span := next_span(stream, spans[-1].through if spans else 0, rows_max, tail):
        spans.append(span)
    return spans


def test_spans_follow_each_other_to_the_tail(stream):
    fill(stream, 10)
    assert walk(stream, 30) == [Span(0, 30), Span(30, 60), Span(60, 90), Span(90, 100)]
    assert walk(stream, 1000) == [Span(0, 100)]
    assert walk(stream, 40, tail=50) == [Span(0, 40), Span(40, 50)]


def test_nothing_new_is_no_span(stream):
    assert next_span(stream, 0, 10) is None
    fill(stream, 1)
    assert next_span(stream, 10, 10) is None
    assert next_span(stream, 10, 10, tail=10) is None
    assert next_span(stream, 12, 10) is None


def test_dead_and_lost_ranges_are_one_step(stream):
    fill(stream, 1)
    stream.append(batch([50_000_000, 50_000_001, 50_000_002], prev_id=10))
    stream.lose(90_000_000)
    stream.append(batch([90_000_001]))
    spans = walk(stream, 10)
    assert spans == [Span(0, 10), Span(10, 50_000_009), Span(50_000_009, 90_000_001)]
    assert [ids_of(stream.read(span.after, span.through)) for span in spans][1:] == [
        [50_000_000, 50_000_001, 50_000_002],
        [90_000_001],
    ]


def test_lost_tail_is_nothing_to_read(stream):
    fill(stream, 1)
    stream.lose(1000)
    assert next_span(stream, 10, 10) is None
    assert next_span(stream, 0, 500) == Span(0, 500)


def test_trimmed_start_is_an_error_that_names_where_to_go_on(stream):
    fill(stream, 10)
    stream.trim(50)
    with pytest.raises(Trimmed, match="read from ID 51"):
        next_span(stream, 30, 10)
    assert next_span(stream, 50, 10) == Span(50, 60)


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 7, 10, 50])
def test_split_covers_the_span_in_pieces_of_about_the_same_size(stream, pieces):
    fill(stream, 10)
    spans = split(stream, Span(5, 98), pieces)
    assert min(pieces, 10) - 1 <= len(spans) <= pieces
    assert (spans[0].after, spans[-1].through) == (5, 98)
    assert all(before.through == after.after for before, after in itertools.pairwise(spans))
    assert all(span.through % 10 == 0 for span in spans[:-1])
    assert max(span.through - span.after for span in spans) <= -(-10 // min(pieces, 10)) * 10


def test_split_gives_a_large_frame_a_piece_of_its_own_and_shares_the_rest(stream):
    stream.append(batch(range(1, 1001)))
    fill(stream, 10, rows=100)
    assert split(stream, Span(0, 2000), 3) == [Span(0, 1000), Span(1000, 1500), Span(1500, 2000)]


def test_split_of_nothing_is_nothing_and_beyond_the_tail_stays_asked_for(stream):
    fill(stream, 1)
    assert split(stream, Span(4, 4), 3) == []
    assert split(stream, Span(0, 30), 1) == [Span(0, 30)]
    assert split(stream, Span(20, 30), 3) == [Span(20, 30)]


def test_file_streams_are_split_by_their_index(tmp_path):
    with open_stream(f"file://{tmp_path}/stream?segment_bytes=200000", "write") as stream:
        for start in range(1, 20_000, 1000):
            stream.append(batch(range(start, start + 1000)))
        spans = split(stream, Span(0, 20_000), 4)
        assert len(spans) == 4
        assert max(span.through - span.after for span in spans) <= 6000
        assert [event for span in spans for event in ids_of(stream.read(span.after, span.through))] == list(
            range(1, 20_001)
        )
