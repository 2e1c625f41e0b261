"""What redaction leaves of an event, and which events it is asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import InvalidEvent
from outbox.row import Encoder
from stream_store.redaction import REDACTED_CONTENT_TYPE, between, count_content, id_set, is_redacted, redacted
from tests.crash.stream_events import batch


def test_erased_text_is_in_no_buffer_of_the_batch():
    rows = batch(range(1, 30), salt="a secret").rows
    erased = redacted(rows, id_set(range(1, 30)))
    assert b"secret" in rows.serialize().to_pybytes()
    assert b"secret" not in erased.serialize().to_pybytes()


@given(st.sets(st.integers(1, 25)), st.integers(0, 10))
def test_only_what_was_not_chosen_can_be_found_in_the_bytes(chosen, skipped):
    """Also of a slice of a larger batch, whose buffers hold more than its rows."""
    parts = [batch([number], salt=f"secret-{number}-").rows for number in range(1, 26)]
    rows = pa.concat_batches(parts).slice(skipped)
    content = redacted(rows, id_set(chosen)).serialize().to_pybytes()
    for event in rows.to_pylist():
        has_content = event["id"] not in chosen and (event["data"] or event["data_bytes"]) is not None
        assert (f"secret-{event['id']}-".encode() in content) == has_content, event


def test_only_the_chosen_rows_are_erased():
    rows = batch(range(1, 30), salt="a secret").rows
    erased = redacted(rows, id_set([4, 9]))
    assert [
        event_id for event_id, gone in zip(rows["id"].to_pylist(), is_redacted(erased).to_pylist(), strict=True) if gone
    ] == [4, 9]
    others = pa.array([event_id not in (4, 9) for event_id in range(1, 30)])
    assert erased.filter(others).equals(rows.filter(others))
    assert (count_content(rows, id_set([4, 9, 99])), count_content(erased, id_set([4, 5, 9]))) == (2, 1)


def test_event_that_only_says_it_is_redacted_is_not():
    """It would escape erasure, and differ from its row unnoticed."""
    rows = batch([1, 2], salt="a secret").rows
    at = rows.schema.get_field_index("datacontenttype")
    feigned = rows.set_column(
        at, rows.schema.field(at), pa.array([REDACTED_CONTENT_TYPE] * 2, rows.schema.field(at).type)
    )
    assert is_redacted(feigned).to_pylist() == [False, False]
    assert count_content(feigned, id_set([1])) == 1
    assert is_redacted(redacted(feigned, id_set([1]))).to_pylist() == [True, False]


@pytest.mark.parametrize("name", [REDACTED_CONTENT_TYPE, "Application/VND.outbox.redacted; charset=utf-8"])
def test_content_type_of_erased_events_cannot_be_emitted(name):
    with pytest.raises(InvalidEvent, match="choose another"):
        Encoder().encode("order.paid", data={"a": 1}, datacontenttype=name)


@given(st.lists(st.integers(1, 60)), st.integers(0, 60), st.integers(0, 60))
def test_ids_between_are_found_by_bisection(ids, after, through):
    found = between(id_set(ids), after, max(after, through)).to_pylist()
    assert found == sorted({each for each in ids if after < each <= through})
