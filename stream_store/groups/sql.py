"""The state of durable groups in SQL: PostgreSQL, MySQL, MariaDB, SQLite.

The group's row is the lock. A decision reads lots and members behind it, and what it changed is
written as rows. Times are the database's own. The statements are in `sql/<dialect>/group.sql`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity

from outbox.database import DatabaseUrl, Session
from outbox.errors import DatabaseUnavailable, GroupMissing, Transient, UsageError
from outbox.names import OutTable
from outbox.queries import blocks, statements
from stream_store.groups.events_text import decode, encode
from stream_store.groups.state import DeadLetter, Lot, Member, Settings, State
from stream_store.groups.store import tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from stream_store.groups.store import Change, Settlement

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
ALL_ROWS = 2**31 - 1
REASON_CHARACTERS_MAX = 2000


class SqlStore:
    """One connection, which its threads use in turn, and which is made again when it breaks."""

    def __init__(self, url: str, *, create: bool = True, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._url = DatabaseUrl.parse(url)
        self.place = str(self._url)
        self._patience_seconds = patience_seconds
        self._lock = threading.RLock()
        self._session: Session | None = None
        # The session of a transaction that is being decided: what the decision asks for belongs to it.
        self._deciding: Session | None = None
        if not create and not self._is_there():
            raise GroupMissing(
                f"{self.place} has no groups: `outbox group create` makes one, --state names another place"
            )
        self._retried(self._install)

    def create(self, stream_id: str, name: str, settings: Settings, head: int) -> int | None:
        def run(session: Session) -> int | None:
            with session.transaction():
                if session.query("group_find", stream_id=stream_id, name=name):
                    return None
                group_id = next(tokens())
                session.change(
                    "group_create",
                    group_id=group_id,
                    stream_id=stream_id,
                    name=name,
                    settings=json.dumps(settings.to_json()),
                    head=head,
                )
                return group_id

        try:
            return self._retried(run)
        except DatabaseUnavailable:
            raise
        except Exception:
            # Two at once: the unique name lets one of them through.
            if self.find(stream_id, name) is None:
                raise
            return None

    def find(self, stream_id: str, name: str) -> int | None:
        rows = self._retried(lambda session: session.query("group_find", stream_id=stream_id, name=name))
        return int(rows[0][0]) if rows else None

    def names(self, stream_id: str) -> list[str]:
        return [str(row[0]) for row in self._retried(lambda session: session.query("group_names", stream_id=stream_id))]

    def transact(self, group_id: int, decide: Callable[[State, int], Change]) -> Any:
        def run(session: Session) -> Any:
            with session.transaction():
                before, now_us = self._load(session, group_id)
                self._deciding = session
                try:
                    change = decide(before, now_us)
                finally:
                    self._deciding = None
                _write(session, group_id, before, change)
                return change.answer

        return self._retried(run)

    def settle(self, group_id: int, settlements: Sequence[Settlement]) -> list[int]:
        if not settlements:
            return []

        attempts = 0

        def run(session: Session) -> list[int]:
            nonlocal attempts
            attempts += 1
            with session.transaction() if len(settlements) > 1 else contextlib.nullcontext():
                late = [each.token for each in settlements if not _settled(session, group_id, each)]
            if late and attempts > 1:
                raise Transient(
                    f"the connection to {self.place} broke while events were acknowledged, and they are not the member's any "
                    "more: whether they were acknowledged before, or given to others, is not known; if given, they "
                    "are delivered again"
                )
            return late

        return self._retried(run)

    def settle_within(self, connection: Any, group_id: int, token: int) -> bool:
        from sqlalchemy import text

        dialect = getattr(
            getattr(connection, "dialect", None) or getattr(connection.get_bind(), "dialect", None), "name", ""
        )
        if dialect.replace("mariadb", "mysql") != self._url.dialect:
            raise UsageError(
                f"ack_within works in the database of the group's state, {self.place}, and this connection is to {dialect}: "
                "use ack(), or keep the state where the effects are"
            )
        done = connection.execute(text(blocks(self._url.dialect)["group_ack"]), {"group_id": group_id, "token": token})
        return bool(done.rowcount)

    def beat(self, group_id: int, member: str) -> bool:
        return self._retried(lambda session: session.change("group_beat", group_id=group_id, member=member)) > 0

    def letters(self, group_id: int, ids: Collection[int] | None = None, limit: int | None = None) -> list[DeadLetter]:
        def run(session: Session) -> list[tuple[Any, ...]]:
            if ids is None:
                limit_rows = ALL_ROWS if limit is None else limit
                return session.query("group_letters", group_id=group_id, after=-1, limit_rows=limit_rows)
            near = [
                row
                for event_id in sorted(ids)
                for row in session.query("group_letters", group_id=group_id, after=event_id - 1, limit_rows=1)
                if row[0] == event_id
            ]
            return near[:limit]

        return [
            DeadLetter(int(event_id), int(tries), str(reason), str(event), int(recorded_us))
            for event_id, tries, reason, event, recorded_us in self._retried(run)
        ]

    def count_letters(self, group_id: int) -> int:
        return int(self._retried(lambda session: session.value("group_letters_count", group_id=group_id)))

    def delete(self, group_id: int) -> None:
        def run(session: Session) -> None:
            with session.transaction():
                # The lock first, so that no claim is in the middle of writing what is deleted here.
                session.query("group_lock", group_id=group_id)
                for name in ("group_delete_letters", "group_delete_lots", "group_delete_members", "group_delete"):
                    session.change(name, group_id=group_id)

        self._retried(run)

    def close(self) -> None:
        with self._lock:
            self._forget_session()

    def _load(self, session: Session, group_id: int) -> tuple[State, int]:
        found = session.query("group_lock", group_id=group_id)
        if not found:
            raise GroupMissing(
                f"the group was deleted from {self.place} meanwhile: `outbox group create` makes it again"
            )
        # Behind the group's lock, for which one may wait long; and before the members are read and locked.
        # Should we be stopped after that, nobody can beat, and a later time would make us take them for dead.
        now_us = int(session.value("group_now"))
        settings, head, paused, skipped = found[0]
        lots = []
        for token, events, member, tries, not_before_us, suspect, reason in session.query(
            "group_lots", group_id=group_id
        ):
            ids, keys = decode(events)
            lots.append(Lot(token, ids, keys, member, tries, not_before_us, bool(suspect), reason))
        members = [Member(*row) for row in session.query("group_members", group_id=group_id)]
        state = State(_settings(settings), int(head), bool(paused), int(skipped), tuple(lots), tuple(members))
        return state, now_us

    def _is_there(self) -> bool:
        if self._url.dialect == "sqlite" and not Path(self._url.path).exists():
            return False
        return self._retried(_is_installed)

    def _install(self, session: Session) -> None:
        if _is_installed(session):
            return
        # DDL ends a transaction on MySQL; there each statement is idempotent by itself.
        with session.transaction():
            for statement in statements(blocks(session.dialect)["group_schema"]):
                session.run(statement)

    def _retried(self, run: Callable[[Session], T]) -> T:
        """Run on the session, and on a new one when the database was away.

        Whether a commit got through is not known then. Every transaction may be repeated: a
        claim that nobody heard of is taken back by its member, an acknowledgement finds its
        token gone, all others say what is to be, not what is to be changed.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DatabaseUnavailable),
            stop=tenacity.stop_after_delay(self._patience_seconds),
            wait=tenacity.wait_exponential(multiplier=0.01, max=1.0) + tenacity.wait_random(0.0, 0.05),
            reraise=True,
        )
        with self._lock:
            if self._deciding is not None:
                return run(self._deciding)
            found: T = retrying(self._run_once, run)
            return found

    def _run_once(self, run: Callable[[Session], T]) -> T:
        try:
            if self._session is None:
                self._session = self._connected()
            return run(self._session)
        except DatabaseUnavailable:
            self._forget_session()
            raise

    def _connected(self) -> Session:
        session = Session(self._url, OutTable(), application="outbox group")
        try:
            for statement in statements(blocks(session.dialect)["group_session"]):
                session.run(statement)
        except BaseException:
            session.close()
            raise
        return session

    def _forget_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _is_installed(session: Session) -> bool:
    return bool(session.value("group_installed"))


def _settings(text: str) -> Settings:
    return Settings.from_json(json.loads(text))


def _settled(session: Session, group_id: int, settlement: Settlement) -> bool:
    left = settlement.left
    if left is None:
        return session.change("group_ack", group_id=group_id, token=settlement.token) > 0
    events = encode(left.ids, left.keys)
    return session.change("group_ack_part", group_id=group_id, token=settlement.token, events=events) > 0


def _write(session: Session, group_id: int, before: State, change: Change) -> None:
    """The difference between two states, as rows."""
    after = change.state
    if (before.head, before.paused, before.skipped) != (after.head, after.paused, after.skipped):
        session.change(
            "group_move", group_id=group_id, head=after.head, paused=int(after.paused), skipped=after.skipped
        )
    _write_lots(session, group_id, before, after)
    old_members, new_members = set(before.members), set(after.members)
    for member in old_members - new_members:
        session.change("group_member_remove", group_id=group_id, member=member.name)
    for member in new_members - old_members:
        session.change(
            "group_member_add",
            group_id=group_id,
            member=member.name,
            expires_us=member.expires_us,
            lease_us=member.lease_us,
        )
    for event_id in (*change.letters_gone, *(letter.id for letter in change.letters)):
        session.change("group_letter_remove", group_id=group_id, event_id=event_id)
    for letter in change.letters:
        session.change(
            "group_letter_add",
            group_id=group_id,
            event_id=letter.id,
            tries=letter.tries,
            reason=_stored(letter.reason),
            event=letter.event,
        )


def _write_lots(session: Session, group_id: int, before: State, after: State) -> None:
    # By identity: a decision hands on what it does not change, and lots are long to compare.
    old, new = {lot.token: lot for lot in before.lots}, {lot.token: lot for lot in after.lots}
    for token, lot in old.items():
        if new.get(token) is not lot:
            session.change("group_lot_remove", group_id=group_id, token=token)
    for token, lot in new.items():
        if old.get(token) is not lot:
            session.change(
                "group_lot_add",
                group_id=group_id,
                token=token,
                events=encode(lot.ids, lot.keys),
                member=lot.member,
                tries=lot.tries,
                not_before_us=lot.not_before_us,
                suspect=int(lot.suspect),
                reason=_stored(lot.reason),
            )


def _stored(reason: str | None) -> str | None:
    """A reason as every database can keep it: PostgreSQL has no place for U+0000."""
    return (
        None if reason is None else reason.encode(errors="replace").decode().replace("\0", "?")[:REASON_CHARACTERS_MAX]
    )
