"""Opening a stream by its URL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

from outbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream_store.stream import Stream, StreamCheck

Mode = Literal["read", "write"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """A stream's URL in its parts; `place` is a path or a name."""

    scheme: str
    place: str
    options: dict[str, str]

    @classmethod
    def parse(cls, url: str) -> StreamUrl:
        """`file:///abs/path`, `file://relative/path`, `file:path`, `s3://bucket/prefix`, `memory://name`, with ?options."""
        scheme, colon, rest = url.partition(":")
        if not colon or "/" in scheme:
            raise UsageError(f"{url!r} is not a stream URL: write file:///path/of/a/folder")
        place, _, query = rest.partition("?")
        place = unquote(place.removeprefix("//"))
        if not place:
            raise UsageError(f"{url!r} names no place: write {scheme}:///path/of/a/folder")
        return cls(scheme.lower(), place, dict(parse_qsl(query, keep_blank_values=True)))

    @property
    def folder(self) -> Path:
        return Path(self.place.removeprefix("localhost") if self.place.startswith("localhost/") else self.place)

    def number(self, name: str, default: int) -> int:
        text = self.options.get(name, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"{name}={text} in the stream URL is not a whole number above 0")
        return int(text)

    def require_options(self, *known: str) -> None:
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise UsageError(f"{self.scheme}:// knows no option {unknown[0]!r}; known: {', '.join(known) or 'none'}")


def open_stream(url: str, mode: Mode = "read", *, create: bool = True) -> Stream:
    """The stream at a URL. Opened for writing it is made when it is not there, unless `create` is false.

    One writer at a time for a folder and in memory: `StreamLocked` names the other. In an object store
    there may be several, and compare-and-set keeps them apart. Any number of readers.
    """
    if mode not in ("read", "write"):
        raise UsageError(f"a stream is opened to read or to write, not to {mode!r}")
    parsed = StreamUrl.parse(url)
    return _look_up(_OPENERS, parsed)(parsed, mode, create)


def check(url: str | Path) -> StreamCheck:
    """Read every frame of the stream at a URL or in a folder, and report what cannot be read."""
    text = str(url)
    parsed = StreamUrl.parse(text) if ":" in text and not isinstance(url, Path) else StreamUrl("file", text, {})
    return _look_up(_CHECKERS, parsed)(parsed)


def _open_file(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    from stream_store.file.stream import SEGMENT_BYTES, FileStream

    url.require_options("segment_bytes")
    segment_bytes = url.number("segment_bytes", SEGMENT_BYTES)
    return FileStream(url.folder, writing=mode == "write", create=create, segment_bytes=segment_bytes)


def _open_memory(url: StreamUrl, mode: Mode, create: bool) -> Stream:
    from stream_store.memory import MemoryStream

    url.require_options()
    return MemoryStream(url.place, writing=mode == "write", create=create)


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


def _check_memory(url: StreamUrl) -> StreamCheck:
    from stream_store.memory import MemoryStream

    with MemoryStream(url.place) as stream:
        return stream.check()


def _check_objects(url: StreamUrl) -> StreamCheck:
    from stream_store.objects.inspection import inspect
    from stream_store.objects.location import open_store

    return inspect(open_store(url, make=False))


_OBJECT_STORES = ("s3", "gs", "az", "object+file")
_OPENERS: dict[str, Callable[[StreamUrl, Mode, bool], Stream]] = {
    "file": _open_file,
    "memory": _open_memory,
    **dict.fromkeys(_OBJECT_STORES, _open_objects),
}
_CHECKERS: dict[str, Callable[[StreamUrl], StreamCheck]] = {
    "file": _check_file,
    "memory": _check_memory,
    **dict.fromkeys(_OBJECT_STORES, _check_objects),
}


def _look_up(table: dict[str, T], url: StreamUrl) -> T:
    if url.scheme not in table:
        raise UsageError(f"there is no stream of kind {url.scheme}://; known: {_known()}")
    return table[url.scheme]


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _OPENERS if scheme != "memory")
