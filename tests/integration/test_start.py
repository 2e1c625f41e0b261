"""The start path, as far as it can be cut short."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from connector.options import DeleteAfter
from connector.sources import open_source
from connector.sources.session import open_session
from connector.start import start
from outbox.errors import Transient
from stream_store import open_stream
from tests.integration.relays import deleted_through, emit, installed, relay_once, stream_ids, table_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.cleaner import AppendedRange
    from connector.options import RelayOptions
    from connector.source import Source
    from outbox.database import Session
    from stream_store.stream import Stream


@pytest.fixture
def outbox(database_url: str, stream_url: str) -> RelayOptions:
    """An outbox with thirty rows that are in the stream and not deleted yet."""
    options = installed(database_url, stream_url)
    emit(options, 30)
    relay_once(replace(options, delete_after=DeleteAfter.parse("never")))
    return options


@contextlib.contextmanager
def leading(options: RelayOptions) -> Iterator[tuple[Source, Stream, Session]]:
    """What a relay that leads has open when it goes through the start path."""
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(contextlib.closing(open_stream(options.stream, "write")))
        source = stack.enter_context(contextlib.closing(open_source(options)))
        source.open()
        yield source, stream, stack.enter_context(open_session(options, "outbox test"))


def test_start_stops_between_two_batches_of_leftovers(outbox: RelayOptions):
    stop = threading.Event()
    kept: list[AppendedRange] = []

    def keep(offered: AppendedRange) -> None:
        kept.append(offered)
        if len(kept) == 2:
            stop.set()

    with leading(outbox) as (source, stream, session):
        with pytest.raises(Transient, match="told to stop while the rows through 30 were offered again, at 10"):
            start(source, stream, session, 5, keep, stop)
        assert [(offered.after, offered.through) for offered in kept] == [(0, 5), (5, 10)]
        # The next one offers all of them.
        kept.clear()
        assert start(source, stream, session, 5, kept.append, threading.Event()).tail == 30
        assert sum(offered.rows for offered in kept) == 30
    relay_once(outbox)
    assert stream_ids(outbox.stream) == list(range(1, 31))
    assert (table_ids(outbox), deleted_through(outbox)) == ([], 30)
