"""The file stream: a folder that one process writes and any number of processes read."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox.errors import StreamMissing, UsageError, WrongPartner
from stream_store.file import disk, readers, requests
from stream_store.file.frame import encode_events, encode_lost
from stream_store.file.identity import has_identity, read_identity
from stream_store.file.lock import WriterLock
from stream_store.file.mark import settled_mark
from stream_store.file.reader import Reader, published_mark
from stream_store.file.recovery import create_stream
from stream_store.file.writer import Writer
from stream_store.outcome import judge, require_sound, require_unused
from stream_store.redaction import id_set
from stream_store.stream import Appended, Outcome, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from outbox.batch import EventBatch
    from stream_store.file.mark import Mark
    from stream_store.readers import Kind
    from stream_store.readers import Reader as KnownReader
    from stream_store.stream import Cut

SEGMENT_BYTES = 64 * 1024 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FileStream:
    """A stream in a folder. Its methods may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        *,
        writing: bool = False,
        create: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        asking: bool = False,
        relaxed: bool = False,
    ) -> None:
        # `asking`: open for reading; what is to be trimmed or erased is asked of the process that writes.
        self.folder = folder.absolute()
        self.url = self.folder.as_uri()
        self._writer: Writer | None = None
        self._clerk: requests.Clerk | None = None
        self._asks = asking
        self._lock = threading.RLock()
        if writing:
            self._open_writer(create=create, segment_bytes=segment_bytes, relaxed=relaxed)
        with disk.reporting("opening", self.folder):
            self._identity = self._writer.identity if self._writer else read_identity(self.folder)
        self.stream_id = self._identity.stream_id
        self._reader = Reader(self.folder, self._identity.uuid, self._position)
        if self._writer is not None:
            self._clerk = requests.Clerk(self.folder, self._do)

    def _position(self) -> Mark:
        """How far the stream is durable: the writer knows, a reader looks at what it published."""
        return self._writer.mark if self._writer else published_mark(self.folder, self._identity.uuid)

    def _open_writer(self, *, create: bool, segment_bytes: int, relaxed: bool) -> None:
        if not has_identity(self.folder) and not create:
            raise StreamMissing(f"there is no stream in {self.folder}")
        with disk.reporting("making", self.folder):
            disk.make_folder(self.folder)
            lock = WriterLock(self.folder)
        try:
            if not has_identity(self.folder):
                create_stream(self.folder)
            self._writer = Writer(self.folder, lock, read_identity(self.folder), segment_bytes, relaxed=relaxed)
        finally:
            if self._writer is None:
                lock.release()

    def info(self) -> StreamInfo:
        with disk.reporting("reading", self.folder):
            identity = read_identity(self.folder)
            self._require_same(identity.stream_id)
            segments, size_bytes = self._reader.size_bytes()
        return StreamInfo(
            url=self.url,
            stream_id=identity.stream_id,
            outbox_id=identity.outbox_id,
            source=identity.source,
            tail=self.tail(),
            trimmed_through=identity.trimmed_through,
            lost=identity.lost,
            segments=segments,
            size_bytes=size_bytes,
            compacted=identity.compacted,
        )

    def bind(self, outbox_id: str, source: str) -> None:
        with self._lock:
            writer = self._writing("bind")
            bound = writer.identity.outbox_id
            if bound not in (None, outbox_id):
                raise WrongPartner(
                    f"{self.url} is bound to outbox {bound} (source {writer.identity.source}), not to {outbox_id} "
                    f"(source {source}): give each outbox a stream of its own"
                )
            if (bound, writer.identity.source) != (outbox_id, source):
                writer.change_identity(replace(writer.identity, outbox_id=outbox_id, source=source))

    def begin(self, through: int, *, compacted: bool = False) -> None:
        with self._lock:
            writer = self._writing("begin")
            require_unused(self.info())
            writer.begin(through, compacted=compacted)

    def tail(self) -> int:
        with disk.reporting("reading", self.folder):
            return self._position().tail

    def append(self, batch: EventBatch) -> Appended:
        require_sound(batch)
        with self._lock:
            writer = self._writing("append")
            result = judge(batch, writer.mark.tail, writer.identity.trimmed_through, self._reader.table)
            if result.outcome is Outcome.APPENDED:
                writer.append(partial(encode_events, batch))
            return result

    def settle(self) -> int:
        if self._writer is None:
            with disk.reporting("reading", self.folder):
                mark = settled_mark(self.folder, self._identity.uuid)
                return mark.tail if mark else 0
        with self._lock:
            return self._writer.settle()

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        return self._reader.read(after, through)

    def cuts(self, after: int, through: int) -> list[Cut]:
        return self._reader.cuts(after, through)

    def find(self, time: datetime) -> int:
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: events have, so give the time with one")
        return self._reader.find((time - _EPOCH) // timedelta(microseconds=1))

    def lose(self, through: int) -> None:
        with self._lock:
            writer = self._writing("lose")
            tail = writer.mark.tail
            if through > tail:
                writer.append(partial(encode_lost, tail, through), durably=True)
                # A crash before this line: recovery finds the frame and adds the range.
                writer.change_identity(writer.identity.with_lost(((tail, through),)))

    def trim(self, through: int) -> None:
        if self._asks:
            requests.ask(self.folder, {"do": "trim", "through": through})
            return
        with self._lock:
            self._writing("trim").trim(through)

    def redact(self, ids: Sequence[int]) -> int:
        if self._asks:
            return requests.ask(self.folder, {"do": "redact", "ids": list(ids)})
        with self._lock:
            return self._writing("redact").redact(id_set(ids))

    def report(self, kind: Kind, name: str, through: int) -> None:
        readers.report(self.folder, kind, name, through)

    def readers(self) -> list[KnownReader]:
        return readers.readers(self.folder)

    def forget(self, kind: Kind, name: str) -> None:
        readers.forget(self.folder, kind, name)

    def _do(self, request: dict[str, Any]) -> int:
        """What another process asks for (requests.py)."""
        if request["do"] == "redact":
            return self.redact(request["ids"])
        if request["do"] == "trim":
            self.trim(int(request["through"]))
            return self.info().trimmed_through
        raise UsageError(f"a stream cannot be asked to {request['do']}")

    def close(self) -> None:
        # Before the lock, which a request that is being done holds.
        if self._clerk is not None:
            self._clerk.close()
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _writing(self, action: str) -> Writer:
        if self._writer is None:
            raise UsageError(f"{self.url} is open for reading: open it for writing to {action}")
        return self._writer

    def _require_same(self, stream_id: str) -> None:
        if stream_id != self.stream_id:
            raise WrongPartner(f"{self.url} was stream {self.stream_id} when it was opened and is {stream_id} now")
