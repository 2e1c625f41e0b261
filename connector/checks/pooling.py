"""Whether a pooler stands in between that hands one server session to several clients.

Behind such a pooler a session's settings, its isolation and its locks belong to whoever is
next, and the relay would be blind. The proof needs no knowledge of the pooler: while other
sessions of ours each hold a transaction open, a session must stay the one it was. A pooler
that lends a session per transaction has lent ours to one of them, and answers with another
one, or lets us wait.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok
from outbox.database import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding

# Poolers lend the session that was used last first; a few more make sure of those that go round.
OTHER_SESSIONS = 3
ANSWER_SECONDS = 5.0


def look(subject: Subject) -> Iterator[Finding]:
    if shares_sessions(subject.session):
        yield error(
            "transaction-pooling",
            "a pooler in between hands one server session to several clients: settings and locks of the relay's session "
            "would be someone else's",
            "connect to the server directly, or through a pool in session mode (PgBouncer: pool_mode = session)",
        )
    else:
        yield ok("transaction-pooling", "a session stays the one it was")


def shares_sessions(session: Session) -> bool:
    """Whether the server session behind ours is lent to others while we hold it."""
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Session(session.url, session.table, application="outbox check"))
        identity = ours.row("check_mark", mark=mark)[0]
        for _ in range(OTHER_SESSIONS):
            other = stack.enter_context(Session(session.url, session.table, application="outbox check"))
            answer = _answer(other, "BEGIN")
            if answer is None:
                # Every session of the pool is lent to someone; a server itself does not let us wait.
                return True
            stack.callback(other.run, "ROLLBACK")
            if answer[0] == identity:
                return True
        answer = _answer(ours)
        return answer is None or answer != (identity, mark)


def _answer(session: Session, first: str | None = None) -> tuple[object, str] | None:
    """Which server session answers, and the mark it bears; None when none does in time."""
    answers: list[tuple[object, str] | Exception] = []

    def ask() -> None:
        try:
            if first:
                session.run(first)
            identity, mark = session.row("check_marked")
            answers.append((identity, _text(mark)))
        except Exception as refusal:  # handed to the waiting thread
            answers.append(refusal)

    # A thread of its own: a pooler may keep us waiting for minutes.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    if not answers:
        return None
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
