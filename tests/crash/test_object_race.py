"""Relays racing on one prefix, with merges and trims going on: real processes, made slow where it is dangerous."""

from __future__ import annotations

from pathlib import Path

from stream_store import check, open_stream
from tests.crash.object_process import DEADLINE_SECONDS, follow, merge_on, race, run, trim_on
from tests.crash.stream_events import assert_chained

LAST = 600


def test_racing_relays_with_merges_and_trims_never_interleave(folder: Path) -> None:
    url = f"object+file://{folder}/stream?merge_objects=7&merge_bytes=20000"
    open_stream(url, "write").close()
    writers = [1, 2, 3]
    parties = [run(race, url, number, LAST, str(folder / f"writer{number}")) for number in writers]
    parties += [run(merge_on, url, LAST), run(merge_on, url, LAST), run(trim_on, url, LAST)]
    parties += [run(follow, url, LAST, str(folder / "reader"))]
    for party in parties:
        party.join(DEADLINE_SECONDS)
        assert party.exitcode == 0
    appended = sorted(
        (int(prev_id), int(last_id), int(number))
        for writer in writers
        for prev_id, last_id, number in map(str.split, (folder / f"writer{writer}").read_text().splitlines())
    )
    assert len({number for *_, number in appended}) > 1, "only one of the relays got through: no race"
    # What was acknowledged to all of them is one chain: nothing twice, nothing between, nothing missing.
    reached = 0
    for prev_id, last_id, _ in appended:
        assert prev_id == reached
        reached = last_id
    with open_stream(url) as stream:
        assert stream.tail() == reached
        kept = stream.info().trimmed_through
        assert kept > 0
        batches = list(stream.read(kept))
        assert_chained(batches, kept)
        writer_of = {
            event_id: number for prev_id, last_id, number in appended for event_id in range(prev_id + 1, last_id + 1)
        }
        for part in batches:
            for event in part.rows.to_pylist():
                if event["data"]:
                    assert f'"w{writer_of[event["id"]]}"' in event["data"]
        expected = [
            event_id
            for prev_id, last_id, number in appended
            for event_id in range(prev_id + 1 + number % 2, last_id + 1)
            if event_id > kept
        ]
        assert [event_id for part in batches for event_id in part.ids.to_pylist()] == expected
    found = check(url)
    assert found.ok, found.damage
    # The reader saw a chain that only trimming has cut.
    seen = 0
    ends = {0, *(last_id for _, last_id, _ in appended)}
    for first, last_id, _ in map(str.split, (folder / "reader").read_text().splitlines()):
        assert first == "trimmed" or int(first) == seen
        seen = int(last_id)
        assert seen in ends
    assert seen == reached or seen >= LAST
