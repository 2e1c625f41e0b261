"""The file stream between processes: one writer that may be killed or stopped, and readers beside it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outbox.errors import StreamLocked, Trimmed
from stream_store import Outcome, check, open_stream
from stream_store.file.segment import list_segments
from tests.crash.stream_events import batch, ids_of

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.stream_process", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def url(tmp_path) -> str:
    return f"file://{tmp_path}/s?segment_bytes=30000"


@pytest.fixture
def holder(url):
    """A process that holds the writer lock."""
    process = start("hold", url)
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_second_writer_is_told_who_holds_the_lock(url, holder):
    with pytest.raises(StreamLocked, match=f"process {holder.pid} on host {socket.gethostname()}"):
        open_stream(url, "write")
    holder.communicate("\n")
    open_stream(url, "write").close()


def test_stopped_writer_keeps_the_lock_and_the_message_says_what_it_takes(url, holder):
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(StreamLocked, match=f"stopped.*kill -CONT {holder.pid}.*kill -KILL {holder.pid}"):
        open_stream(url, "write")
    holder.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, holder.pid, os.WCONTINUED | os.WNOWAIT)
    with pytest.raises(StreamLocked, match="this one waits"):
        open_stream(url, "write")


def test_killed_writer_frees_the_lock(url, holder):
    holder.kill()
    holder.wait()
    open_stream(url, "write").close()


def test_stopped_writer_does_not_stop_readers(url, holder):
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    assert list(open_stream(url).read(0)) == []


def test_readers_in_other_processes_see_whole_frames_in_order(url):
    """Through rolls, tidying and writers that come and go."""
    last = 6000
    readers = [start("follow", url, str(last)) for _ in range(2)]
    tail = 0
    while tail < last:
        with open_stream(url, "write") as stream:
            for _ in range(150):
                answer = stream.append(batch(range(tail + 1, tail + 2 + tail % 17)))
                assert answer.outcome is Outcome.APPENDED
                tail = answer.tail
    for reader in readers:
        output, errors = reader.communicate(timeout=60)
        assert int(output or 0) >= last, errors


def test_writer_killed_again_and_again_under_readers_loses_nothing(url):
    last = 4000
    reader = start("follow", url, str(last))
    chance = random.Random(7)
    acknowledged = 0
    while acknowledged < last:
        writer = start("append", url)
        reported = int(writer.stdout.readline())
        assert reported >= acknowledged
        for _ in range(chance.randrange(40, 400)):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        rest = writer.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    output, errors = reader.communicate(timeout=60)
    assert int(output or 0) >= last, errors
    with open_stream(url, "write") as stream:
        assert stream.tail() >= acknowledged
        assert ids_of(stream.read(0)) == list(range(1, stream.tail() + 1))
    assert check(url).ok


def test_trim_beside_a_reader_is_an_error_or_the_whole_rest(url, tmp_path):
    with open_stream(url, "write") as stream:
        tail = 0
        while len(list_segments(tmp_path / "s")) < 6:
            tail = stream.append(batch(range(tail + 1, tail + 21))).tail
        reader = open_stream(url)
        batches = reader.read(0)
        first = next(batches)
        stream.trim(tail)
        kept = stream.info().trimmed_through
        assert kept > first.last_id
        with pytest.raises(Trimmed, match=str(kept)):
            list(batches)
        assert first.ids.to_pylist()[0] == 1  # what was handed out stays readable
        assert ids_of(reader.read(kept)) == list(range(kept + 1, tail + 1))
