"""Opening a stream by its URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

from outbox.errors import StreamLocked, UsageError
from stream_store.secrecy import is_secret, shown_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream_store.kafka.address import Address
    from stream_store.stream import Stream, StreamCheck

Mode = Literal["read", "write"]
# Their place is a path or a name, and has no user in it.
_PLAIN = ("file", "memory", "object+file")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """A stream's URL in its parts; `place` is a path or a name."""

    scheme: str
    place: str = field(repr=False)
    options: dict[str, str] = field(repr=False)
    # As the URL spells them: percent-encoded in whichever way.
    spelled_secrets: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> StreamUrl:
        """`file:///abs/path`, `file://relative/path`, `file:path`, `s3://bucket/prefix`, `memory://name`, with ?options."""
        scheme, colon, rest = url.partition(":")
        if not colon or "/" in scheme:
            # Not shown: whatever it is, there may be a password in it.
            raise UsageError("what was given is not a stream URL: write file:///path/of/a/folder")
        place, _, query = rest.partition("?")
        raw = place.removeprefix("//")
        place = unquote(raw)
        if not place:
            raise UsageError("the stream URL names no place: write file:///path/of/a/folder")
        named = {
            text for name, _, text in (pair.partition("=") for pair in query.split("&")) if is_secret(unquote(name))
        }
        # A password with a question mark in it, which should have been encoded.
        cut = rest.removeprefix("//") if "@" in query and "@" not in raw else raw
        spelled = frozenset(text for text in (_password_in(cut), *named) if text)
        return cls(scheme.lower(), place, dict(parse_qsl(query, keep_blank_values=True)), spelled)

    @property
    def folder(self) -> Path:
        return Path(self.place.removeprefix("localhost") if self.place.startswith("localhost/") else self.place)

    def number(self, name: str, default: int) -> int:
        text = self.options.get(name, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"{name}={text} in the stream URL is not a whole number above 0")
        return int(text)

    @property
    def secrets(self) -> set[str]:
        """What must never be printed of the URL: its password, and options that are one."""
        named = {text for name, text in self.options.items() if is_secret(name)}
        return {text for text in {_password_in(self.place), *named, *self.spelled_secrets} if text}

    @property
    def shown(self) -> str:
        """The URL as it may be shown: without a user, and without what options may keep secret."""
        if self.scheme in _PLAIN:
            place = self.place
        else:
            _, at, behind = self.place.rpartition("@")
            place = ("***@" if at else "") + behind
        options = "&".join(shown_option(name, value) for name, value in self.options.items())
        return f"{self.scheme}://{place}{'?' if options else ''}{options}"

    def require_options(self, *known: str) -> None:
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise UsageError(f"{self.scheme}:// knows no option {unknown[0]!r}; known: {', '.join(known) or 'none'}")


def without_secrets(url: str) -> str:
    """The URL as it may be shown, also when it is none."""
    try:
        parsed = StreamUrl.parse(url)
    except UsageError:
        # Perhaps a password is all that is wrong with it.
        return "***" if "@" in url else url
    if "@" in url.partition("?")[2]:
        # Perhaps a password with a question mark in it: nobody can tell where it ends.
        return f"{parsed.scheme}://***"
    return parsed.shown


def _password_in(place: str) -> str:
    """The password of user:password@host/…; '' when there is none."""
    user, at, _ = place.rpartition("@")
    return user.partition(":")[2] if at else ""


def open_stream(url: str, mode: Mode = "read", *, create: bool = True) -> Stream:
    """The stream at a URL. Opened for writing it is made when it is not there, unless `create` is false.

    One writer at a time for a folder and in memory: `StreamLocked` names the other. In an object store
    there may be several, and compare-and-set keeps them apart. Any number of readers.
    """
    if mode not in ("read", "write"):
        raise UsageError(f"a stream is opened to read or to write, not to {mode!r}")
    parsed = StreamUrl.parse(url)
    return _look_up(_OPENERS, parsed)(parsed, mode, create)


def open_to_maintain(url: str) -> Stream:
    """The stream for `trim` and `redact`, also while another process writes it.

    Where only one process can write, and one does, it is asked to do it. Everywhere else this is
    a stream opened for writing.
    """
    parsed = StreamUrl.parse(url)
    try:
        return _look_up(_OPENERS, parsed)(parsed, "write", False)
    except StreamLocked:
        if parsed.scheme != "file":
            raise
        from stream_store.file.stream import FileStream

        return FileStream(parsed.folder, asking=True)


def check(url: str | Path) -> StreamCheck:
    """Read every frame of the stream at a URL or in a folder, and report what cannot be read."""
    text = str(url)
    parsed = StreamUrl.parse(text) if ":" in text and not isinstance(url, Path) else StreamUrl("file", text, {})
    return _look_up(_CHECKERS, parsed)(parsed)


def _open_file(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    from stream_store.durability import Acks
    from stream_store.file.stream import SEGMENT_BYTES, FileStream

    url.require_options("segment_bytes", "acks")
    return FileStream(
        url.folder,
        writing=mode == "write",
        create=create,
        segment_bytes=url.number("segment_bytes", SEGMENT_BYTES),
        # One disk is all the copies there are: `majority` and `all` mean the same here.
        relaxed=Acks.of(url.options) is Acks.WRITE,
    )


def _open_redis(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    _require_driver("redis", "redis")
    from stream_store.redis.address import Address
    from stream_store.redis.stream import RedisStream

    return RedisStream(Address.of(url), writing=mode == "write", create=create)


def _open_memory(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    from stream_store.memory import MemoryStream

    url.require_options()
    return MemoryStream(url.place, writing=mode == "write", create=create)


def _open_kafka(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    address = _kafka_address(url)
    from stream_store.kafka.stream import KafkaStream

    return KafkaStream(address, writing=mode == "write", create=create)


def _kafka_address(url: StreamUrl) -> Address:
    _require_driver("confluent_kafka", "kafka")
    from stream_store.kafka.address import Address

    return Address.parse(url)


def _open_objects(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    from stream_store.objects.changes import MERGE_BYTES, MERGE_OBJECTS
    from stream_store.objects.location import open_store
    from stream_store.objects.stream import ObjectStream

    writing = mode == "write"
    return ObjectStream(
        open_store(url, make=writing and create),
        writing=writing,
        create=create,
        merge_objects=url.number("merge_objects", MERGE_OBJECTS),
        merge_bytes=url.number("merge_bytes", MERGE_BYTES),
    )


def _check_file(url: StreamUrl) -> StreamCheck:
    from stream_store.file.inspection import inspect

    return inspect(url.folder)


def _check_redis(url: StreamUrl) -> StreamCheck:
    _require_driver("redis", "redis")
    from stream_store.redis.address import Address
    from stream_store.redis.inspection import inspect

    return inspect(Address.of(url))


def _check_memory(url: StreamUrl) -> StreamCheck:
    from stream_store.memory import MemoryStream

    with MemoryStream(url.place) as stream:
        return stream.check()


def _check_objects(url: StreamUrl) -> StreamCheck:
    from stream_store.objects.inspection import inspect
    from stream_store.objects.location import open_store

    return inspect(open_store(url, make=False))


def _check_kafka(url: StreamUrl) -> StreamCheck:
    address = _kafka_address(url)
    from stream_store.kafka.inspection import inspect

    return inspect(address)


_OBJECT_STORES = ("s3", "gs", "az", "object+file")
_OPENERS: dict[str, Callable[[StreamUrl, Mode, bool], Stream]] = {
    "file": _open_file,
    "kafka": _open_kafka,
    "memory": _open_memory,
    "redis": _open_redis,
    "rediss": _open_redis,
    **dict.fromkeys(_OBJECT_STORES, _open_objects),
}
_CHECKERS: dict[str, Callable[[StreamUrl], StreamCheck]] = {
    "file": _check_file,
    "kafka": _check_kafka,
    "memory": _check_memory,
    "redis": _check_redis,
    "rediss": _check_redis,
    **dict.fromkeys(_OBJECT_STORES, _check_objects),
}


def _require_driver(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise UsageError(f"{extra}:// needs a package that is not installed: pip install 'outbox-connector[{extra}]'")


def _look_up(table: dict[str, T], url: StreamUrl) -> T:
    if url.scheme not in table:
        raise UsageError(f"there is no stream of kind {url.scheme}://; known: {_known()}")
    return table[url.scheme]


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _OPENERS if scheme != "memory")
