"""The stream: there, whole, writable, and this outbox's own."""

from __future__ import annotations

import shlex
import tempfile
from typing import TYPE_CHECKING

from connector.checks import kafka, redis
from connector.checks.finding import Subject, error, ok, warning
from connector.checks.position import read_drawn
from outbox.errors import OutboxError, StreamMissing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector.checks.finding import Finding
    from outbox.info import Info
    from stream_store import StreamInfo, StreamUrl

OBJECT_STORES = ("s3", "gs", "az", "object+file")


def look(url: str, subject: Subject | None, delete_after: str) -> Iterator[Finding]:
    """`subject` is None when the database could not be looked at; then only the stream itself is."""
    from stream_store import StreamUrl, open_stream
    from stream_store.url import without_secrets

    info = subject.info if subject else None
    try:
        parsed = StreamUrl.parse(url)
        with open_stream(url) as stream:
            facts = stream.info()
    except StreamMissing:
        yield from missing(without_secrets(url), info, subject)
    except (OutboxError, OSError) as refusal:
        yield error(
            "stream",
            f"the stream cannot be opened: {refusal}",
            f"outbox stream check --stream {shlex.quote(without_secrets(url))} names the damage; correct the URL if it is wrong",
        )
        return
    else:
        yield ok("stream", f"the stream ends at {facts.tail}")
        if subject and info:
            yield from judge_bond(info, facts, subject)
            yield from judge_tail(info, facts.tail, read_drawn(subject), subject)
    if parsed.scheme == "file":
        yield from writable(parsed)
    elif parsed.scheme in ("redis", "rediss"):
        yield from redis.look(parsed, delete_after)
    elif parsed.scheme == "kafka":
        yield from kafka.look(parsed)
    elif parsed.scheme in OBJECT_STORES:
        yield from conditional_writes(parsed)
    yield from judge_copies(parsed.scheme, delete_after)


def missing(url: str, info: Info | None, subject: Subject | None) -> Iterator[Finding]:
    if info is None or info.stream_id is None or subject is None:
        yield ok("stream", f"there is no stream at {url} yet: the first relay makes it")
        return
    yield error(
        "stream",
        f"there is no stream at {url}, but this outbox is bound to stream {info.stream_id} and has deleted rows through "
        f"{info.deleted_through}",
        f"put the stream back, or correct the URL; when it is lost for good: {_rebase(subject, url)}",
    )


def judge_bond(info: Info, facts: StreamInfo, subject: Subject) -> Iterator[Finding]:
    """Each is bound to the other, or one of them not yet to anyone."""
    if facts.outbox_id not in (None, info.outbox_id):
        yield error(
            "bond",
            f"the stream belongs to outbox {facts.outbox_id} (source {facts.source}), this is outbox {info.outbox_id} "
            f"(source {info.source})",
            "give each outbox a stream of its own: another --stream URL",
        )
    elif info.stream_id not in (None, facts.stream_id):
        yield error(
            "bond",
            f"the outbox is bound to stream {info.stream_id}, this is stream {facts.stream_id}: its place was emptied or swapped",
            f"put the right stream back, or bind this one: {_rebase(subject, facts.url)}",
        )
    elif facts.outbox_id is None and info.stream_id is None:
        yield ok("bond", "outbox and stream are free: the first relay binds them to each other")
    else:
        yield ok("bond", "outbox and stream are bound to each other")


def judge_tail(info: Info, tail: int, drawn: int, subject: Subject) -> Iterator[Finding]:
    """`info` was read before the tail, and the sequence after it: each only grows."""
    if tail < info.deleted_through:
        yield error(
            "tail-lost",
            f"the stream ends at {tail}, but rows through {info.deleted_through} were in it and were deleted: "
            "it went back in time",
            f"restore a newer copy of the stream; when there is none: {_rebase(subject, 'URL')}",
        )
    elif drawn < tail:
        yield error(
            "sequence-reset",
            f"the sequence stands at {drawn}, but the stream has events through {tail}: the database was restored or "
            "truncated, and IDs would be given out twice",
            _rebase(subject, "URL"),
        )
    else:
        yield ok("tail-lost", "the stream has everything that was deleted")


def judge_copies(scheme: str, delete_after: str) -> Iterator[Finding]:
    if scheme == "memory":
        yield warning(
            "one-copy", "memory:// is gone with its process: it is for tests", "--stream file:///path/of/a/folder"
        )
    elif scheme == "file" and delete_after == "durable":
        yield warning(
            "one-copy",
            "file:// is one copy on one disk: once a row is in the stream it is deleted from the database, and that copy is all "
            "there is",
            "keep it on a mirrored or replicated volume, or keep the rows for longer: --delete-after materialized, 24h or never",
        )
    elif scheme == "object+file":
        yield warning(
            "one-copy",
            "object+file:// is for tests: what it acknowledges may still be lost when the machine loses power",
            "--stream file:///path/of/a/folder, or s3://, gs:// or az://",
        )
    elif scheme in OBJECT_STORES:
        yield ok(
            "one-copy",
            "an append is acknowledged once the store has it, and is as durable as the bucket: see that no lifecycle rule "
            "expires objects below the prefix; with versioning on, redacted events live on in old versions until a rule expires those",
        )


def conditional_writes(url: StreamUrl) -> Iterator[Finding]:
    """Try what two relays rely on, with an object that means nothing."""
    from stream_store.objects.identity import require_conditional_writes
    from stream_store.objects.location import open_store

    try:
        require_conditional_writes(open_store(url, make=True))
    except OutboxError as refusal:
        yield error(
            "stream-writable",
            f"the stream cannot be written: {refusal}",
            "let the relay's credentials read, write, list and delete below the prefix, in a store with conditional writes",
        )
    else:
        yield ok("stream-writable", "the store can be written, and refuses to create an object twice")


def writable(url: StreamUrl) -> Iterator[Finding]:
    folder = next(place for place in (url.folder.absolute(), *url.folder.absolute().parents) if place.exists())
    refusal = try_writing(folder)
    if refusal is None:
        yield ok("stream-writable", f"{folder} can be written")
    else:
        yield error(
            "stream-writable",
            f"{folder} cannot be written: {refusal}",
            "let the relay's user write there (chown), or choose another --stream URL",
        )


def try_writing(folder: Path) -> OSError | None:
    """Make a file without a name: permissions, a read-only disk and a full one all show."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as refusal:
        return refusal
    return None


def _rebase(subject: Subject, url: str) -> str:
    return f"{subject.command('rebase')} --stream {shlex.quote(url) if url != 'URL' else url} --dry-run"
