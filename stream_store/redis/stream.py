"""The Redis stream. Any number of processes may write it: the append script makes that harmless.

An append is durable when it is acknowledged, but for `acks=write`, and for servers before 7.2 with
`appendfsync everysec`, which cannot be asked to sync: there it is a second or two later. Rows are
deleted through what `settle` answers, whatever the server.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis.exceptions import NoScriptError, ResponseError

from outbox.errors import StaleTail, StreamCorrupt, StreamMissing, StreamUnavailable, UsageError, WrongPartner
from stream_store.outcome import judge, require_sound, require_unused
from stream_store.readers import Reader as KnownReader
from stream_store.redaction import id_set
from stream_store.redis import erasing
from stream_store.redis.encoding import Part, parts
from stream_store.redis.facts import FORMAT, encode_lost, read_facts
from stream_store.redis.link import Link
from stream_store.redis.reader import Reader
from stream_store.redis.refusal import as_ours
from stream_store.redis.scripts import APPEND, CHANGE, CREATE, TRIM
from stream_store.redis.server import read_run_id, read_server, require_fit
from stream_store.redis.settling import Settling
from stream_store.stream import Appended, Outcome, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from outbox.batch import EventBatch
    from stream_store.readers import Kind
    from stream_store.redis.address import Address
    from stream_store.redis.decoding import Entry
    from stream_store.redis.facts import Facts
    from stream_store.stream import Cut

log = logging.getLogger(__name__)

# While the server runs one part, the next is on its way.
PARTS_IN_FLIGHT = 2
UNIT_ROWS = 1_000
UNIT_BYTES = 1 << 20
# Removed in one step.
TRIM_IDS = 100_000
_TRIES_MAX = 100


class RedisStream:
    """A stream on a Redis server. Its methods may be called from several threads."""

    def __init__(self, address: Address, *, writing: bool = False, create: bool = True) -> None:
        self.url = address.url
        self._address = address
        self._keys = address.keys
        self._writes = writing
        self._closed = threading.Event()
        self._broken: str | None = None
        self._run_id: str | None = None
        # Appends have a connection of their own: a long wait in `settle` must not hold them up.
        self._appending, self._link = Link(address), Link(address)
        self._lock = threading.RLock()
        self._reader = Reader(address, self.facts)
        try:
            self._link.open()
            self._server = read_server(self._link)
            self.stream_id = self._open(create=create)
            if writing:
                # Now, not with the first append: a server that is restarted until then is to be noticed.
                self._appending.open()
                self._run_id = read_run_id(self._appending)
        except BaseException:
            self.close()
            raise

    def _open(self, *, create: bool) -> str:
        facts = read_facts(self._link, self._keys, self.url, None)
        replicas = self._count_replicas(facts.replicas if facts else 0)
        self._settling = Settling(self._link, self._address, self._server, replicas, self._closed)
        if self._writes:
            require_fit(self._server, self._address.acks, replicas, self.url)
            if not self._settling.can_settle:
                log.warning(
                    "%s: the server keeps nothing on a disk and has no replica, so no row is deleted from the out table: "
                    "set appendonly yes and appendfsync always",
                    self.url,
                )
        if facts is not None:
            if self._writes and replicas != facts.replicas:
                self._link.call("HSET", self._keys.info, "replicas", replicas)
            return facts.stream_id
        if not (self._writes and create):
            raise StreamMissing(f"there is no stream at {self.url}")
        made = self._link.run(CREATE, [self._keys.events, self._keys.info], str(uuid4()), FORMAT)
        if not made:
            raise StreamCorrupt(
                f"{self.url}: the keys {self._keys.events} and {self._keys.info} are in use, and are no stream of ours: "
                "choose another name, or remove them"
            )
        if replicas:
            self._link.call("HSET", self._keys.info, "replicas", replicas)
        return bytes(made).decode()

    def _count_replicas(self, recorded: int) -> int:
        """How many replicas are to have each event: never fewer than there once were, unless the URL says so."""
        if self._address.replicas is not None:
            return self._address.replicas
        return max(recorded, self._server.replicas)

    def facts(self) -> Facts:
        """The info hash now."""
        facts = read_facts(self._link, self._keys, self.url, self.stream_id)
        assert facts is not None, "a stream that is gone is an error"
        return facts

    def info(self) -> StreamInfo:
        facts = self.facts()
        size_bytes, units = self._link.calls([("MEMORY", "USAGE", self._keys.events), ("ZCARD", self._keys.units)])
        return StreamInfo(
            url=self.url,
            stream_id=facts.stream_id,
            outbox_id=facts.outbox_id,
            source=facts.source,
            tail=facts.tail,
            trimmed_through=facts.trimmed_through,
            lost=facts.lost,
            segments=units + 1,
            size_bytes=size_bytes or 0,
            compacted=facts.compacted,
        )

    def bind(self, outbox_id: str, source: str) -> None:
        self._writing("bind")
        for _ in range(_TRIES_MAX):
            facts = self.facts()
            if facts.outbox_id not in (None, outbox_id):
                raise WrongPartner(
                    f"{self.url} is bound to outbox {facts.outbox_id} (source {facts.source}), not to {outbox_id} "
                    f"(source {source}): give each outbox a stream of its own"
                )
            if (facts.outbox_id, facts.source) == (outbox_id, source):
                return
            if self._change({"outbox_id": facts.outbox_id or ""}, {"outbox_id": outbox_id, "source": source}):
                return
        raise self._busy()

    def begin(self, through: int, *, compacted: bool = False) -> None:
        self._writing("begin")
        require_unused(self.info())
        changes = {"tail": through, "trimmed_through": through, **({"compacted": 1} if compacted else {})}
        if not self._change({"tail": "0", "trimmed_through": "0", "lost": "", "compacted": ""}, changes):
            require_unused(self.info())
            raise self._busy()

    def tail(self) -> int:
        return self.facts().tail

    def append(self, batch: EventBatch) -> Appended:
        require_sound(batch)
        self._writing("append")
        with self._lock:
            if self._broken is not None:
                raise StreamUnavailable(f"{self.url} takes no more appends until it is opened again: {self._broken}")
            try:
                refused = self._send(batch)
            except BaseException as error:
                # Whether the server has run what was sent is unknown: opening the stream again finds out.
                self._broken = str(error) or type(error).__name__
                self._appending.close()
                raise
            if refused is None:
                return Appended(Outcome.APPENDED, batch.last_id)
            rest, tail, trimmed_through = refused
            if rest.prev_id == tail:
                # Another's events have taken the place of what this batch began with.
                return Appended(Outcome.STALE, tail)
            return judge(rest, tail, trimmed_through, self._reader.table)

    def _send(self, batch: EventBatch) -> tuple[EventBatch, int, int] | None:
        """Append part by part; what was refused, the tail and the trimmed range when a part was.

        A part that follows a refused one is refused too: only the first may follow what others have appended.
        """
        token = secrets.token_hex(8)
        waiting = deque(parts(batch))
        sent: deque[Part] = deque()
        waits = self._settling.waits(self._address.acks)
        refused: tuple[EventBatch, int, int] | None = None
        link = self._appending
        with link.lock:
            if link.refresh() and read_run_id(link) != self._run_id:
                raise StreamUnavailable(
                    f"{self.url}: the server was restarted, or is another one: the stream is opened again"
                )
            while waiting or sent:
                while waiting and len(sent) < PARTS_IN_FLIGHT and refused is None:
                    sent.append(waiting.popleft())
                    follows = "" if sent[-1].prev_id == batch.prev_id else token
                    link.send(self._packed(sent[-1], token, follows, [] if waiting else waits))
                if refused is not None and not sent:
                    break
                part = sent.popleft()
                answers = [link.receive() for _ in range(1 + (0 if waiting or sent else len(waits)))]
                if refused is not None:
                    continue
                if isinstance(answers[0], NoScriptError):
                    # It has not run, so what was sent behind it was refused.
                    self._drain(sent, waits if not waiting else [])
                    waiting.extendleft([*reversed(sent), part])
                    sent.clear()
                    link.load(APPEND)
                    continue
                refused = self._judged(answers, batch, part)
        return refused

    def _packed(
        self, part: Part, token: str, follows: str, waits: Sequence[tuple[Any, ...]]
    ) -> list[bytes | memoryview]:
        """The append script with a part's words, and what is to be waited for behind it."""
        link, keys = self._appending, self._keys
        words = (
            "EVALSHA", APPEND.sha, 3, keys.events, keys.info, keys.units,
            self.stream_id, part.prev_id, part.last_id, part.time_max_us, part.bytes, part.rows, UNIT_ROWS, UNIT_BYTES,
            token, follows,
        )  # fmt: skip
        head = b"".join(bytes(piece) for piece in link.pack(*words))
        # The number of words stands in front of them all: those of the events are still to come.
        count, _, rest = head.partition(b"\r\n")
        assert count == b"*%d" % len(words), count
        return [
            b"*%d\r\n" % (len(words) + part.words) + rest,
            part.payload,
            *(piece for wait in waits for piece in link.pack(*wait)),
        ]

    def _drain(self, sent: deque[Part], waits: Sequence[tuple[Any, ...]]) -> None:
        for _ in range(len(sent) + len(waits) if sent else 0):
            self._appending.receive()

    def _judged(self, answers: list[Any], batch: EventBatch, part: Part) -> tuple[EventBatch, int, int] | None:
        """None when the part is in the stream and as durable as it is to be."""
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise as_ours(answer, "appending to", self.url) from answer
        outcome, *more = answers[0]
        if outcome == -1:
            self.facts()  # says what has become of the stream
            raise StreamUnavailable(f"{self.url} was another stream for a moment")
        if outcome == 0:
            rest = batch.after(part.prev_id)
            assert rest is not None
            return rest, int(more[0]), int(more[1])
        self._settling.require_waited(answers[1:], self._address.acks)
        return None

    def settle(self) -> int:
        return self._settling.settle(lambda: self.facts().tail)

    def read(self, after: int, through: int | None = None) -> Iterator[EventBatch]:
        return self._reader.read(after, through)

    def entries(self, start: str, end: str, count: int) -> list[Entry]:
        """Entries as the server has them."""
        found: list[Entry] = self._link.call("XRANGE", self._keys.events, start, end, "COUNT", count)
        return found

    def cuts(self, after: int, through: int) -> list[Cut]:
        return self._reader.cuts(after, through)

    def find(self, time: datetime) -> int:
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: events have, so give the time with one")
        return self._reader.find(time)

    def lose(self, through: int) -> None:
        self._writing("lose")
        for _ in range(_TRIES_MAX):
            facts = self.facts()
            if through <= facts.tail:
                return
            lost = encode_lost((*facts.lost, (facts.tail, through)))
            expected = {"tail": facts.recorded_tail, "lost": facts.lost_json}
            if self._change(expected, {"tail": through, "lost": lost, "appending": ""}):
                return
        raise self._busy()

    def trim(self, through: int) -> None:
        self._writing("trim")
        while True:
            facts = self.facts()
            last = min(through, facts.tail)
            if last <= facts.trimmed_through:
                return
            first = self._link.call("XRANGE", self._keys.events, "-", "+", "COUNT", 1)
            step = min(last, int(first[0][0].split(b"-")[0]) + TRIM_IDS) if first else last
            keys = [self._keys.events, self._keys.info, self._keys.units]
            # Refused, another process has trimmed: look again.
            self._link.run(TRIM, keys, self.stream_id, facts.trimmed_through, max(step, facts.trimmed_through + 1))

    def redact(self, ids: Sequence[int]) -> int:
        self._writing("redact")
        chosen = erasing.with_content(self._link, self._keys, id_set(ids).to_pylist())
        if chosen:
            erasing.erase(self._link, self._keys, chosen, self.url)
        if self.facts().unscrubbed:
            erasing.scrub(self._link, self._keys, self._server, self.url)
        return len(chosen)

    def report(self, kind: Kind, name: str, through: int) -> None:
        said = {"through": through, "reported_at": datetime.now(UTC).isoformat()}
        self._link.call("HSET", self._keys.readers, f"{kind}:{name}", json.dumps(said))

    def readers(self) -> list[KnownReader]:
        words = self._link.call("HGETALL", self._keys.readers)
        return [_known(name, said, self.url) for name, said in zip(words[::2], words[1::2], strict=True)]

    def forget(self, kind: Kind, name: str) -> None:
        self._link.call("HDEL", self._keys.readers, f"{kind}:{name}")

    def close(self) -> None:
        self._closed.set()
        self._appending.close()
        self._link.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _change(self, expected: dict[str, Any], changes: dict[str, Any]) -> bool:
        """Change the info hash if it is still as it is expected to be."""
        expected = {"stream_id": self.stream_id, **expected}
        words = [word for pair in (*expected.items(), *changes.items()) for word in pair]
        return bool(self._link.run(CHANGE, [self._keys.events, self._keys.info], len(expected), *words) == 1)

    def _busy(self) -> StaleTail:
        return StaleTail(f"{self.url} changes faster than it can be changed here: another process writes it")

    def _writing(self, action: str) -> None:
        if not self._writes:
            raise UsageError(f"{self.url} is open for reading: open it for writing to {action}")
        if self._closed.is_set():
            raise StreamUnavailable(f"{self.url} is closed")


def _known(name: bytes, said: bytes, url: str) -> KnownReader:
    try:
        kind, _, text = name.decode().partition(":")
        found = json.loads(said)
        if kind not in ("table", "group"):
            raise ValueError(f"there are no readers of kind {kind!r}")
        reported_at = datetime.fromisoformat(found["reported_at"])
        return KnownReader("table" if kind == "table" else "group", text, int(found["through"]), reported_at)
    except (ValueError, KeyError, TypeError) as error:
        shown = name.decode("utf-8", "replace")
        raise StreamUnavailable(
            f"{url}: the report of reader {shown} cannot be read ({error}): its reader writes it again when it gets on"
        ) from error
