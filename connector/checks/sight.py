"""The relay's own eyes: its source is opened as the relay opens it, and looks around."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, warning
from connector.options import RelayOptions
from connector.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding
    from connector.source import Blocker, Source


def look(subject: Subject) -> Iterator[Finding]:
    session = subject.session
    with contextlib.closing(open_source(RelayOptions(session.url, session.table, stream=""))) as source:
        try:
            source.open()
        except Exception as refusal:  # whatever stops a relay at its start is worth a finding
            yield error("relay-start", f"a relay would not start: {refusal}", "mend what it says, then check again")
            return
        if "unlisted" in source.holders().sessions:
            # Who holds the stream back cannot be known: another finding says so.
            yield ok("relay-start", "a relay would start, and settle missing IDs by a barrier")
            yield from server_identity(subject, source)
            return
        yield ok("relay-start", "a relay would start, and sees who holds the lock that comes before an ID")
        yield from server_identity(subject, source)
        yield from holders(subject, source)


def server_identity(subject: Subject, source: Source) -> Iterator[Finding]:
    known = subject.info.server_id if subject.info else None
    now = source.server_id()
    if known is None or known == now:
        yield ok("server-identity", f"the server is {now}" if known else "no relay has remembered the server yet")
    else:
        yield error(
            "server-identity",
            f"the server is not the one it was: {known} before, {now} now. After a failover or a restore events may be "
            "missing, or IDs be given out twice",
            f"{subject.command('verify')} --stream URL, then {subject.command('rebase')} --stream URL",
        )


def holders(subject: Subject, source: Source) -> Iterator[Finding]:
    held = [
        blocker
        for blocker in _blockers(source)
        if blocker.seconds is None or blocker.seconds >= subject.patience_seconds
    ]
    if any(blocker.seconds is None for blocker in held):
        # Of unknown age: worth a word only when it is still there a moment later.
        time.sleep(min(subject.patience_seconds, 1.0))
        still = {blocker.key for blocker in _blockers(source)}
        held = [blocker for blocker in held if blocker.key in still]
    for blocker in held:
        yield warning(
            "long-holder",
            f"{blocker} has emitted, or may have, and has not ended: the stream waits before its IDs until it does",
            _end(subject, blocker),
        )
    if not held:
        yield ok("long-holder", "no transaction holds the stream back for long")


def _blockers(source: Source) -> list[Blocker]:
    now = source.holders()
    return source.blockers(now.sessions | now.prepared)


def _end(subject: Subject, blocker: Blocker) -> str:
    postgresql = subject.session.dialect == "postgresql"
    if blocker.pid is None:
        return (
            "COMMIT PREPARED 'NAME', or ROLLBACK PREPARED 'NAME'"
            if postgresql
            else "XA RECOVER shows its name; XA COMMIT 'NAME', or XA ROLLBACK 'NAME'"
        )
    end = f"SELECT pg_terminate_backend({blocker.pid})" if postgresql else f"KILL {blocker.pid}"
    return f"{end}; and emit last in long transactions, or defer the emit to just before the commit"
