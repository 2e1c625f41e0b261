"""The file stream against a plain list, through reopening, torn tails, damage, trimming and loss."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outbox.errors import StreamCorrupt, Trimmed
from stream_store import Outcome, check, open_stream
from stream_store.file.frame import encode_events, seed_of
from stream_store.file.segment import list_segments, segment_path
from stream_store.mending import from_copy as copied_from
from stream_store.mending import repair
from stream_store.redaction import REDACTED_CONTENT_TYPE
from tests.crash.stream_events import EPOCH, batch, ids_of, row, rows_of
from tests.crash.stream_faults import copy_folder


class FileStreamMachine(RuleBasedStateMachine):
    """`ids` is what the stream must hold; content and time follow from the ID."""

    @initialize(segment_bytes=st.sampled_from([1, 3000, 20_000]))
    def start(self, segment_bytes):
        # In memory where there is such a thing: thousands of syncs, and none of them needs a disk.
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="stream-machine-", dir=memory))
        self.folder = self.root / "s"
        self.url = f"file://{self.folder}?segment_bytes={segment_bytes}"
        self.ids: list[int] = []
        self.tail = 0
        self.trimmed = 0
        self.lost: list[tuple[int, int]] = []
        self.redacted: set[int] = set()
        self.stream = open_stream(self.url, "write")
        self.reader = open_stream(self.url)

    def teardown(self):
        if hasattr(self, "root"):
            self.stream.close()
            shutil.rmtree(self.root)

    def held(self) -> list[int]:
        return [event_id for event_id in self.ids if event_id > self.trimmed]

    @rule(steps=st.lists(st.integers(1, 4), min_size=1, max_size=12))
    def append(self, steps):
        ids, at = [], self.tail
        for step in steps:
            at += step
            ids.append(at)
        answer = self.stream.append(batch(ids, prev_id=self.tail))
        assert (answer.outcome, answer.tail) == (Outcome.APPENDED, ids[-1])
        self.ids += ids
        self.tail = ids[-1]

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def append_again(self, data):
        chosen = sorted(data.draw(st.sets(st.sampled_from(self.held()), min_size=1)))
        prev_id = data.draw(st.integers(0, chosen[0] - 1))
        assert self.stream.append(batch(chosen, prev_id=prev_id)).outcome is Outcome.DUPLICATE

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def append_other_content(self, data):
        chosen = data.draw(st.sampled_from(self.held()))
        answer = self.stream.append(batch([chosen], at=EPOCH - timedelta(days=1)))
        assert (answer.outcome, answer.at_id) == (Outcome.CONFLICT, chosen)

    @rule(data=st.data())
    def append_late(self, data):
        absent = sorted(set(range(1, self.tail + 1)) - set(self.held()))
        if absent:
            chosen = data.draw(st.sampled_from(absent))
            answer = self.stream.append(batch([chosen]))
            assert (answer.outcome, answer.at_id) == (Outcome.LATE, chosen)

    @precondition(lambda self: self.tail)
    @rule(data=st.data(), beyond=st.integers(1, 5))
    def append_stale(self, data, beyond):
        prev_id = data.draw(st.integers(0, self.tail - 1))
        answer = self.stream.append(batch([self.tail + beyond], prev_id=prev_id))
        assert (answer.outcome, answer.tail) == (Outcome.STALE, self.tail)

    @rule(ahead=st.integers(1, 100))
    def append_ahead(self, ahead):
        answer = self.stream.append(batch([self.tail + ahead + 1]))
        assert (answer.outcome, answer.tail) == (Outcome.TAIL_LOST, self.tail)

    @rule(count=st.integers(1, 9))
    def lose(self, count):
        self.stream.lose(self.tail + count)
        self.lost.append((self.tail, self.tail + count))
        self.tail += count

    @rule(data=st.data())
    def trim(self, data):
        through = data.draw(st.integers(0, self.tail + 3))
        self.stream.trim(through)
        trimmed = self.stream.info().trimmed_through
        assert self.trimmed <= trimmed <= max(through, self.trimmed)
        self.trimmed = trimmed

    @rule()
    def reopen(self):
        self.stream.close()
        self.stream = open_stream(self.url, "write")

    @rule(garbage=st.binary(min_size=1, max_size=300))
    def reopen_behind_garbage(self, garbage):
        self.stream.close()
        with segment_path(self.folder, list_segments(self.folder)[-1]).open("ab") as file:
            file.write(garbage)
        self.stream = open_stream(self.url, "write")

    @rule(share=st.floats(0, 1), zeros=st.booleans())
    def reopen_behind_a_torn_append(self, share, zeros):
        self.stream.close()
        path = segment_path(self.folder, list_segments(self.folder)[-1])
        seed = seed_of(UUID(self.stream.stream_id))
        frame = encode_events(batch([self.tail + 2], prev_id=self.tail), path.stat().st_size, seed)
        data = b"".join(bytes(memoryview(part)) for part in frame.parts)
        keep = min(int(len(data) * share), len(data) - 1)
        with path.open("ab") as file:
            file.write(data[:keep] + (bytes(len(data) - keep) if zeros else b""))
        whole = zeros and not any(data[keep:])
        self.stream = open_stream(self.url, "write")
        if whole:
            self.ids.append(self.tail + 2)
            self.tail += 2

    @rule()
    def reopen_behind_a_whole_append_that_was_not_acknowledged(self):
        self.stream.close()
        path = segment_path(self.folder, list_segments(self.folder)[-1])
        seed = seed_of(UUID(self.stream.stream_id))
        frame = encode_events(batch([self.tail + 1]), path.stat().st_size, seed)
        with path.open("ab") as file:
            file.writelines(bytes(memoryview(part)) for part in frame.parts)
        self.stream = open_stream(self.url, "write")
        self.tail += 1
        self.ids.append(self.tail)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def redact(self, data):
        chosen = data.draw(st.sets(st.sampled_from(self.held()), min_size=1))
        assert self.stream.redact([*chosen, self.tail + 1]) == len(chosen - self.redacted)
        self.redacted |= chosen

    @rule(data=st.data(), bit=st.integers(0, 7), from_copy=st.booleans())
    def damage_a_byte_and_repair_it(self, data, bit, from_copy):
        path = segment_path(self.folder, data.draw(st.sampled_from(list_segments(self.folder))))
        content = path.read_bytes()
        at = data.draw(st.integers(0, len(content) - 1))
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        self.stream.close()
        copy_folder(self.folder, self.root / "whole")
        path.write_bytes(damaged)
        found = check(self.url.partition("?")[0])
        assert not found.ok
        assert any(damage.file == str(path) and damage.offset <= at for damage in found.damage)
        reader = open_stream(self.url)
        try:
            list(reader.read(self.trimmed))
        except StreamCorrupt:
            pass
        else:
            assert int(path.stem) == self.tail, "only a segment without events may be damaged unseen by a reader"
        if path.name == segment_path(self.folder, list_segments(self.folder)[-1]).name:
            with pytest.raises(StreamCorrupt, match=path.name):
                open_stream(self.url, "write")
        if from_copy:
            with open_stream(f"file://{self.root}/whole") as whole:
                found = repair(self.url, copied_from(whole, None))
            assert found
            assert all(each.problem is None for each in found), found
            assert check(self.url.partition("?")[0]).ok
            # Nothing is redacted while it holds old content.
            shutil.rmtree(self.folder / "damaged")
        else:
            path.write_bytes(content)
        self.stream = open_stream(self.url, "write")

    @rule(data=st.data())
    def read_a_range(self, data):
        after = data.draw(st.integers(self.trimmed, self.tail + 2))
        through = data.draw(st.integers(after, self.tail + 3))
        for stream in (self.stream, self.reader):
            reached = None
            batches = list(stream.read(after, through))
            assert ids_of(batches) == [event_id for event_id in self.ids if after < event_id <= through]
            if batches:
                ends = [self.trimmed, *self.ids, *(end for _, end in self.lost)]
                assert batches[0].prev_id == max(end for end in ends if end < batches[0].first_id)
            for part in batches:
                if reached is not None and part.prev_id != reached:
                    assert any(part.prev_id == end and reached >= start for start, end in self.joined_lost())
                reached = part.last_id

    def joined_lost(self) -> list[tuple[int, int]]:
        joined: list[tuple[int, int]] = []
        for start, end in self.lost:
            joined.append((start, end))
            if len(joined) > 1 and joined[-2][1] == start:
                joined[-2:] = [(joined[-2][0], end)]
        return joined

    @precondition(lambda self: self.trimmed)
    @rule(data=st.data())
    def read_what_is_trimmed(self, data):
        after = data.draw(st.integers(0, self.trimmed - 1))
        if self.tail > after:
            for stream in (self.stream, self.reader):
                with pytest.raises(Trimmed):
                    stream.read(after)

    @rule(data=st.data())
    def find(self, data):
        wanted = data.draw(st.integers(0, self.tail + 2))
        expected = next((event_id for event_id in self.held() if event_id >= wanted), self.tail + 1)
        for stream in (self.stream, self.reader):
            assert stream.find(EPOCH + timedelta(seconds=wanted)) == expected

    @invariant()
    def nothing_is_lost_or_doubled(self):
        if not hasattr(self, "stream"):
            return
        gone = {"data": None, "data_bytes": None, "headers": None, "datacontenttype": REDACTED_CONTENT_TYPE}
        expected = [{**row(each), **(gone if each in self.redacted else {})} for each in self.held()]
        for stream in (self.stream, self.reader):
            assert stream.tail() == self.tail
            assert rows_of(stream.read(self.trimmed)) == expected
            assert list(stream.info().lost) == sorted(self.lost)


FileStreamMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFileStreamIsAList = FileStreamMachine.TestCase
