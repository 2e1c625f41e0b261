"""Where a stream on Kafka ends, decided from what its topics show."""

from __future__ import annotations

import pytest

from outbox.errors import StreamCorrupt, TailLost
from stream_store.kafka.state import Place, Seen, State, require_kept, tail_of, trimmed_of
from stream_store.kafka.topics import FOREVER, Topic, judge

URL = "kafka://broker/t"


def tail(low: int, end: int, last: Place | None = None, **state: object) -> int:
    return tail_of(Seen(low, end, last), State("s", **state), URL)


def test_events_say_where_the_stream_ends():
    assert tail(0, 9, Place(42, 41, 7)) == 42
    assert tail(5, 9, Place(42, 41, 7), tail=99, end_offset=50) == 42, (
        "the topic has lost its end, and that is its tail"
    )


def test_lost_range_behind_the_last_event_is_the_tail():
    assert tail(0, 9, Place(42, 41, 7), lost=((42, 50), (50, 60))) == 60
    assert tail(0, 9, Place(61, 60, 7), lost=((42, 50), (50, 60))) == 61


def test_stream_without_an_event_begins_where_it_was_told():
    assert tail(0, 0) == 0
    assert tail(0, 4) == 0, "aborted transactions are no events"
    assert tail(0, 0, begin=500, tail=500) == 500


def test_topic_whose_events_were_all_deleted_ends_where_the_companion_says():
    assert tail(9, 9, None, tail=42, end_offset=8) == 42


def test_empty_topic_that_ends_before_what_it_had_is_lost_not_new():
    with pytest.raises(TailLost, match="made anew"):
        tail(5, 5, None, tail=42, end_offset=8)


def test_topic_made_anew_under_a_writer_that_went_on_is_lost():
    """Three events and a marker, then made anew: the next ten are at offset 0."""
    state = State("s", tail=13, end_offset=14)
    with pytest.raises(TailLost, match="made anew under its writer"):
        require_kept(Seen(0, 11, Place(13, 12, 9)), state, URL)
    require_kept(Seen(0, 15, Place(13, 12, 13)), state, URL)
    require_kept(Seen(0, 4, Place(3, 2, 2)), state, URL)  # has lost its end, which is its tail
    require_kept(Seen(4, 15, None), state, URL)


def trimmed(low: int, end: int, first: Place | None, last: Place | None, **state: object) -> int:
    return trimmed_of(Seen(low, end, last), first, State("s", **state), URL)


def test_first_event_says_through_which_id_nothing_is_held():
    first = Place(43, 42, 5)
    assert trimmed(0, 9, None, first) == 0
    assert trimmed(5, 9, first, first) == 42
    assert trimmed(5, 9, first, first, lost=((30, 42),)) == 30, "what was lost was not trimmed"
    assert trimmed(9, 9, None, None, tail=50, end_offset=8) == 50
    assert trimmed(0, 0, None, None, begin=500, tail=500) == 500


def test_state_comes_back_as_it_was():
    state = State("s", "o", "/shop", 3, True, ((5, 9), (20, 30)), 31, 77)
    assert State.decode(state.encode(), "here") == state
    for value in (None, b"", b"{}", b'{"format": 1}', b"[]"):
        with pytest.raises(StreamCorrupt, match="here"):
            State.decode(value, "here")
    with pytest.raises(StreamCorrupt, match="later version"):
        State.decode(b'{"format": 2}', "here")


GOOD = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "2"}
COMPANION = Topic("t.outbox", 2, 3, {"cleanup.policy": "compact"})


def remarks(partitions: int = 1, replicas: int = 3, companion: Topic = COMPANION, **settings: str) -> dict[str, str]:
    given = {**GOOD, **{name.replace("_", "."): value for name, value in settings.items()}}
    found = judge(Topic("t", partitions, replicas, given), companion)
    return {remark.name: remark.level for remark in found if remark.level != "ok"}


def test_settings_that_fit_are_not_worth_a_word():
    assert remarks() == {}


@pytest.mark.parametrize(
    ("settings", "name", "level"),
    [
        ({"partitions": 2}, "kafka-partitions", "error"),
        ({"cleanup_policy": "compact"}, "kafka-cleanup", "error"),
        ({"cleanup_policy": "compact,delete"}, "kafka-cleanup", "error"),
        ({"message_timestamp_type": "LogAppendTime"}, "kafka-timestamps", "error"),
        ({"message_timestamp_after_max_ms": "3600000"}, "kafka-timestamps", "error"),
        ({"min_insync_replicas": "4"}, "kafka-replicas", "error"),
        ({"replicas": 1, "min_insync_replicas": "1"}, "kafka-replicas", "warning"),
        ({"min_insync_replicas": "1"}, "kafka-replicas", "warning"),
        ({"unclean_leader_election_enable": "true"}, "kafka-unclean-election", "warning"),
        ({"retention_ms": "604800000"}, "kafka-retention", "warning"),
        ({"retention_bytes": "1000000"}, "kafka-retention", "warning"),
        ({"max_message_bytes": "1048588"}, "kafka-message-size", "warning"),
        ({"companion": Topic("t.outbox", 1, 3, {"cleanup.policy": "compact"})}, "kafka-companion", "error"),
        ({"companion": Topic("t.outbox", 2, 3, {"cleanup.policy": "delete"})}, "kafka-companion", "error"),
        ({"companion": Topic("t.outbox", 2, 3, None)}, "kafka-settings", "warning"),
    ],
)
def test_settings_that_endanger_the_stream_are_named(settings, name, level):
    assert remarks(**settings) == {name: level}


def test_times_without_a_limit_are_fine():
    assert remarks(message_timestamp_after_max_ms=FOREVER) == {}
