"""Writing a stream folder: one process at a time, durable before it is acknowledged.

A write or sync that fails ends the writer for good. What is on the disk is then unknown, and
only opening the stream again (recovery.py) finds out. A sync that failed is never repeated
on the same file: the second one may say "done" for pages that never reached the disk.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from outbox.errors import StreamUnavailable, UsageError
from stream_store.file import disk, redact
from stream_store.file.frame import Frame, seed_of
from stream_store.file.identity import Identity, write_identity
from stream_store.file.mark import MARK_NAME, SETTLED_NAME, encode_mark
from stream_store.file.recovery import create_segment, recover, remove_segments
from stream_store.file.segment import ASIDE_NAME, SEGMENT_HEADER_BYTES, list_segments
from stream_store.file.tidy import Tidier
from stream_store.redaction import between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from stream_store.file.lock import WriterLock

log = logging.getLogger(__name__)


class Writer:
    """The writing half of a file stream; `identity` and `mark` are what is durable."""

    def __init__(
        self, folder: Path, lock: WriterLock, identity: Identity, segment_bytes: int, *, relaxed: bool = False
    ) -> None:
        self._folder = folder
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._pid = os.getpid()
        self._broken: str | None = None
        recovered = recover(folder, identity)
        self.identity = recovered.identity
        self._unsealed = recovered.unsealed
        self._inode = os.fstat(self._unsealed.fd).st_ino
        # What is durable; replaced whole, so that other threads see both of its parts change at once.
        self.mark = self._unsealed.mark
        self._stream_id = identity.uuid
        self._seed = seed_of(self._stream_id)
        self._mark_fd: int | None = None
        # With `acks=write` alone: appends are synced by `settle`, and this says how far.
        self._settled_fd: int | None = None
        self._settled = self.mark
        try:
            with disk.reporting("publishing in", folder):
                self._mark_fd = os.open(folder / MARK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._publish(durably=True)
                self._open_settled(relaxed=relaxed)
                disk.sync_folder(folder)
        except BaseException:
            self._close_files()
            raise
        self._tidier = Tidier(folder, identity.uuid)
        for prev_id in recovered.untidy:
            self._tidier.submit(prev_id)

    def append(self, encode: Callable[[int, int], Frame], *, durably: bool = False) -> None:
        """Write the frame that `encode` makes for an offset; return when it is durable.

        With `acks=write` that is left to `settle`, unless the caller insists.
        """
        self._require_usable()
        if self._unsealed.offset >= max(self._segment_bytes, SEGMENT_HEADER_BYTES + 1):
            with self._breaking("sealing"):
                self._roll()
        unsealed = self._unsealed
        frame = encode(unsealed.offset, self._seed)
        assert frame.header.prev_id == unsealed.tail, (frame.header.prev_id, unsealed.tail)
        with self._breaking("appending to"):
            disk.write(unsealed.fd, frame.parts, unsealed.offset)
            if durably or self._settled_fd is None:
                disk.sync(unsealed.fd)
            self._require_in_place()
            unsealed.index.add(unsealed.offset, frame.header)
            unsealed.offset += frame.header.frame_bytes
            self._publish()

    def settle(self) -> int:
        """Make everything that was appended durable; the ID through which it is."""
        if self._settled_fd is not None and self._settled != self.mark:
            self._require_usable()
            with self._breaking("syncing"):
                disk.sync(self._unsealed.fd)
                self._require_in_place()
                disk.publish(self._settled_fd, encode_mark(self.mark, self._stream_id))
                disk.sync(self._settled_fd)
                self._settled = self.mark
        return self.mark.tail

    def change_identity(self, identity: Identity) -> None:
        self._require_usable()
        with self._breaking("changing"):
            write_identity(self._folder, identity)
            self.identity = identity

    def trim(self, through: int) -> None:
        """Remove the sealed segments that end at or below `through`.

        stream.json says so first: what is missing and not recorded as trimmed is damage. A segment
        that is being written, and of which something is to go, is sealed: it goes when all of it may.
        """
        self._require_usable()
        if self._unsealed.prev_id < through and self._unsealed.tail > self._unsealed.prev_id:
            with self._breaking("sealing"):
                self._roll()
        ends = [end for end in list_segments(self._folder)[1:] if end <= through]
        if ends:
            self._tidier.wait()
            self.change_identity(replace(self.identity, trimmed_through=ends[-1]))
            with self._breaking("trimming"):
                remove_segments(self._folder, ends[-1])

    def begin(self, through: int, *, compacted: bool) -> None:
        """Let an empty stream begin behind an ID.

        The segment of that name comes first: a crash before stream.json says so leaves two empty
        ones, and recovery removes the second; after it, recovery removes the first.
        """
        self._require_usable()
        identity = replace(self.identity, trimmed_through=through, compacted=compacted)
        if not through:
            self.change_identity(identity)
            return
        with self._breaking("beginning"):
            first = self._unsealed
            try:
                self._unsealed = create_segment(self._folder, through, identity.uuid)
                self._inode = os.fstat(self._unsealed.fd).st_ino
                self.change_identity(identity)
                self._publish(durably=True)
            finally:
                if self._unsealed is not first:
                    os.close(first.fd)
            remove_segments(self._folder, through)

    def redact(self, ids: pa.Int64Array) -> int:
        """Erase these events from every file of the folder; how many had content until now."""
        self._require_usable()
        self._require_no_copies()
        stream_id = self.identity.uuid
        if len(between(ids, self._unsealed.prev_id, self._unsealed.tail)):
            # Readers go by offsets in the segment being written: only a sealed one may be put in place anew.
            with self._breaking("sealing"):
                self._roll()
        # What is being tidied is a second copy of the old content.
        self._tidier.wait()
        names = list_segments(self._folder)
        found = 0
        for name, end in pairwise(names):
            here = between(ids, name, end)
            count = redact.count(self._folder, name, stream_id, here) if len(here) else 0
            if count:
                with self._breaking("redacting"):
                    redact.rewrite(self._folder, name, stream_id, here)
                found += count
        return found

    def _require_no_copies(self) -> None:
        """Damaged segments that a repair has put aside may hold what is to be erased, and cannot be read for it."""
        aside = self._folder / ASIDE_NAME
        if aside.is_dir() and any(aside.iterdir()):
            raise UsageError(
                f"{aside} holds damaged segments that a repair has put aside, with their old content: look at them for the "
                "last time and remove the folder, then redact again"
            )

    def close(self) -> None:
        if self._mark_fd is None:
            return
        self._tidier.close()
        if self._broken is None:
            with suppress(StreamUnavailable):  # what is not durable then was not settled either
                self.settle()
            with suppress(OSError):  # the mark may be old: a writer that opens the stream publishes it anew
                disk.sync(self._mark_fd)
        self._close_files()

    def _roll(self) -> None:
        """Seal the segment, all of which is durable, and go on in a new one."""
        sealed = self._unsealed
        if self._settled_fd is not None:
            disk.sync(sealed.fd)
        self._unsealed = create_segment(self._folder, sealed.tail, self.identity.uuid)
        self._inode = os.fstat(self._unsealed.fd).st_ino
        os.close(sealed.fd)
        # Durable before the sealed segment may be put in place with other offsets (tidy.py).
        self._publish(durably=True)
        self._tidier.submit(sealed.prev_id)

    def _publish(self, *, durably: bool = False) -> None:
        assert self._mark_fd is not None
        self.mark = self._unsealed.mark
        disk.publish(self._mark_fd, encode_mark(self.mark, self._stream_id))
        if durably:
            disk.sync(self._mark_fd)

    def _open_settled(self, *, relaxed: bool) -> None:
        """Say that appends are no longer synced, before the first of them; or that they are again."""
        path = self._folder / SETTLED_NAME
        if relaxed:
            self._settled_fd = disk.replace(path, [encode_mark(self.mark, self._stream_id)])
        elif path.exists():
            disk.remove(path)

    def _require_in_place(self) -> None:
        """Refuse to acknowledge what went into a file that no longer has the segment's name."""
        path = self._unsealed.path
        try:
            in_place = path.stat().st_ino == self._inode
        except FileNotFoundError:
            in_place = False
        if not in_place:
            raise StreamUnavailable(
                f"{path} was removed or replaced while it was being written: the stream is opened again, and what it "
                "misses is then found by comparing it with the out table"
            )

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise StreamUnavailable(
                f"{self._folder} was opened by process {self._pid}: open it anew in a forked process"
            )
        if self._mark_fd is None:
            raise StreamUnavailable(f"{self._folder} is closed")
        if self._broken is not None:
            raise StreamUnavailable(f"{self._folder} takes no more appends until it is opened again: {self._broken}")

    @contextmanager
    def _breaking(self, action: str) -> Iterator[None]:
        """Whatever goes wrong inside, an interrupt too, leaves the disk in an unknown state."""
        try:
            with disk.reporting(action, self._unsealed.path):
                yield
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise

    def _close_files(self) -> None:
        for fd in (self._unsealed.fd, self._mark_fd, self._settled_fd):
            if fd is not None:
                # What was acknowledged is synced. NFS tells of the rest here, and it must not keep the lock.
                with suppress(OSError):
                    os.close(fd)
        self._mark_fd = self._settled_fd = None
        self._lock.release()
