"""The options of `format("outbox")`, read from the texts that Spark hands over."""

from __future__ import annotations

import glob
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outbox.errors import StreamMissing, UsageError
from spark_sink.ddl import schema_from_ddl
from stream_store import StreamUrl
from stream_store.file.identity import has_identity
from stream_store.place import EARLIEST, LATEST, parse_place, require_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

KNOWN = ("stream", "from", "to", "types", "schema", "columns", "maxRowsPerBatch", "pieces", "pushdown")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how."""

    streams: tuple[str, ...]
    start: str = EARLIEST
    end: str | None = None
    types: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    columns: tuple[str, ...] | None = None
    rows_max: int | None = None
    pieces: int | None = None
    pushdown: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options by Spark's rules: names in any case, all values texts."""
        given = {name.lower(): text for name, text in options.items() if text is not None}
        # `load(URL)` puts its argument here.
        path = given.pop("path", None)
        known = {name.lower(): name for name in KNOWN}
        for name in given:
            if name not in known:
                raise UsageError(f'format("outbox") has no option {name!r}; it has {", ".join(KNOWN)}')
        stream = given.get("stream", path)
        if stream is None or (path is not None and path != stream):
            raise UsageError(
                'format("outbox") needs the stream to read, once: .option("stream", "file:///path/of/a/stream")'
            )
        columns = _words(given.get("columns", ""))
        start, end = given.get("from", EARLIEST).strip(), given.get("to", LATEST).strip()
        if start not in (EARLIEST, LATEST):
            parse_place(start, "from", words=f", {EARLIEST}, {LATEST}")
        if end != LATEST:
            parse_place(end, "to", words=f", {LATEST}")
            require_order(start, end, ("from", "to"))
        return cls(
            streams=_urls(stream),
            start=start,
            end=None if end == LATEST else end,
            types=_words(given.get("types", "")),
            schema=schema_from_ddl(given["schema"]) if given.get("schema") else None,
            columns=columns or None,
            rows_max=_number("maxRowsPerBatch", given.get("maxrowsperbatch")),
            pieces=_number("pieces", given.get("pieces")),
            pushdown=_flag("pushdown", given.get("pushdown", "false")),
        )

    @property
    def has_several(self) -> bool:
        """Whether events need a column that says where they are from: also when a glob matches one stream."""
        return len(self.streams) > 1 or any(_is_glob(url) for url in self.streams)

    def expanded(self) -> list[str]:
        """The streams that there are now, globs resolved, each once."""
        found: list[str] = []
        for url in self.streams:
            places = _matches(url) if _is_glob(url) else [url]
            if not places:
                raise StreamMissing(f"no stream matches {url}")
            found += [place for place in places if place not in found]
        return found


def _urls(text: str) -> tuple[str, ...]:
    """One URL, several with commas between them, or a JSON list of them."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the option stream looks like a JSON list and is none: {error}") from None
        if not all(isinstance(url, str) for url in found):
            raise UsageError("the option stream is a JSON list, but not of texts")
        urls = tuple(found)
    else:
        urls = tuple(part.strip() for part in text.split(",") if part.strip())
    if not urls:
        raise UsageError("the option stream names no stream")
    for url in urls:
        scheme = StreamUrl.parse(url).scheme
        if scheme == "memory":
            raise UsageError(f"{url} lives in one process, and Spark reads in others: use a file:// stream")
        if _is_glob(url) and scheme != "file":
            raise UsageError(f"{url} is a pattern, and only file:// streams can be looked up by one")
    return urls


def _is_glob(url: str) -> bool:
    # Not `?`, which begins the options of a URL.
    return "*" in url.partition("?")[0]


def _matches(url: str) -> list[str]:
    folder = StreamUrl.parse(url).folder.absolute()
    found = glob.glob(str(folder), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    return sorted(Path(place).as_uri() for place in found if has_identity(Path(place)))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"the option {name} is {text!r}, not a whole number above 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"the option {name} is {text!r}, not true or false")
    return text.strip().lower() == "true"
