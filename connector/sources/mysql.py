"""MySQL and MariaDB: fenced by the metadata locks on the out table.

Small reads go through PyMySQL on the relay's own session, backlogs through connectorx,
which is six times faster and opens a connection for each read.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from connector.fence import Holders
from connector.source import Blocker, Look, Rows, Standing, look_in_steps
from connector.sources import mysql_bulk
from connector.sources.arrow import COLUMN_COUNT, from_python, to_rows
from connector.sources.mysql_replication import replication_sources
from connector.sources.session import open_session
from connector.sources.sizing import ReadSize
from outbox.database import is_driver_error, is_refusal, one_line, redact
from outbox.errors import DatabaseUnavailable, OutboxError, Unsupported
from outbox.grants import quote_role
from outbox.info import Info, read_info
from outbox.mysql_options import MysqlOptions
from outbox.queries import block, with_integers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from connector.options import RelayOptions
    from outbox.database import Session

log: Any = structlog.get_logger()

ID_MAX = 2**63 - 1
# Below this many rows, one statement on the open session beats a new connection.
BULK_ROWS_MIN = 2_000
# PyMySQL makes Python objects: it never reads more rows than this at once.
SMALL_ROWS_MAX = 5_000
# How long to read by PyMySQL after connectorx failed, twice as long each time: it does not say
# whether it ever can, and takes half a minute to say so (a server that asks for TLS, for one).
BULK_PAUSE_SECONDS = 60.0
BULK_PAUSE_SECONDS_MAX = 3_600.0
# How long to hope that the writers' own commits flush the redo log before we ask for it, and
# how long to sleep between looks when the server flushes it by its own clock only.
FLUSH_PATIENCE_SECONDS = 0.002
FLUSH_POLL_SECONDS = 0.02


class MysqlSource:
    """One session for everything small, and connectorx for backlogs."""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._variables: dict[str, str] = {}
        self._lists_holders = True
        self._may_flush = True
        # connectorx is told of nothing but the address: sockets and certificates are PyMySQL's.
        self._bulk_from = 0.0 if MysqlOptions.parse(options.database.parts.query).is_plain else math.inf
        self._bulk_pause_seconds = BULK_PAUSE_SECONDS
        self._server = 0
        self._drawn = 0
        self._size = ReadSize()
        # Connections whose locks are not a writer's: the cleaner of this very relay.
        self._ignored_connections: set[int] = set()

    def open(self) -> None:
        self._session = open_session(self._options, "outbox relay")
        try:
            self._variables = {str(name).lower(): str(value) for name, value in self.session.query("variables")}
            self._refuse_unsupported()
            self._refuse_replica()
            if not self.is_mariadb:
                self.session.query("fresh_statistics")
            self._server = int(self.session.value("which_server"))
            self._lists_holders = self._options.fence != "barrier" and self._can_list_holders()
            if self._lists_holders:
                self._prove_sight()
            self._prepared()  # refused now, not when the first gap has to be settled
        except BaseException:
            self.close()
            raise

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self._variables["version"].lower()

    def _refuse_unsupported(self) -> None:
        variables, table = self._variables, self._options.table
        version = tuple(int(part) for part in re.findall(r"\d+", variables["version"])[:2])
        oldest = (10, 5) if self.is_mariadb else (8, 0)
        if version < oldest:
            raise Unsupported(
                f"{variables['version']} is too old: MariaDB >= 10.5 or MySQL >= 8.0 is needed "
                "(older servers give out an ID again after a restart, or do not list metadata locks)"
            )
        isolation = variables.get("transaction_isolation") or variables.get("tx_isolation")
        if isolation != "READ-COMMITTED" or variables["autocommit"] != "ON":
            raise Unsupported(
                f"the relay's session is {isolation} with autocommit {variables['autocommit']}, though it has set "
                "READ-COMMITTED and ON: something in between does not keep session settings (a proxy?); connect directly"
            )
        if "ON" in (variables.get(name) for name in ("read_only", "super_read_only", "innodb_read_only")):
            raise Unsupported(
                f"{self._options.database} is read-only, most likely a replica: point the relay at the primary"
            )
        multi_primary = variables.get("group_replication_group_name") and (
            variables.get("group_replication_single_primary_mode") == "OFF"
        )
        if variables.get("wsrep_on") == "ON" or multi_primary:
            raise Unsupported(
                "Galera and multi-primary group replication are not supported: other nodes' locks cannot be seen"
            )
        if variables["auto_increment_increment"] != "1":
            raise Unsupported("auto_increment_increment is not 1: IDs would not be drawn in order; set it to 1")
        engine = self.session.query("engine")
        if engine and str(engine[0][0]).lower() != "innodb":
            raise Unsupported(f"{table} uses {engine[0][0]}: run ALTER TABLE {table} ENGINE = InnoDB")

    def _refuse_replica(self) -> None:
        table, database = self._options.table, self._options.database
        try:
            sources = replication_sources(self.session, self._variables["version"])
        except OutboxError:
            raise
        except Exception as error:
            if not is_driver_error(error):
                raise
            # A managed server, or no privilege. `outbox check` says so as well.
            log.info("whether the server is a replica could not be looked at", reason=one_line(error))
            return
        for source in sources:
            if source.is_running and source.reaches(table.schema or database.database, table.name):
                raise Unsupported(
                    f"{database} replicates from {source}: on a replica rows may come in below an ID that is already in "
                    "the stream. Point the relay at the primary; if this server is the primary now, STOP REPLICA on it"
                )

    def _can_list_holders(self) -> bool:
        try:
            return bool(self.session.value("can_list_mariadb" if self.is_mariadb else "can_list_mysql"))
        except DatabaseUnavailable:
            raise
        except Exception:  # no privilege: the barrier is the mode for such servers
            return False

    def _prove_sight(self) -> None:
        """The canary: a second session takes the lock, and the listing must show it."""
        with open_session(self._options, "outbox canary") as canary:
            connection = int(canary.value("connection_id"))
            before = self._listed()
            canary.run("BEGIN")
            canary.query("canary")
            after = self._listed()
            canary.run("ROLLBACK")
        if connection in before or connection not in after:
            raise Unsupported(
                "the fence is blind: a session that holds a write lock on the out table is not listed. "
                'The relay\'s connections reach different servers, or the locks cannot be seen; try fence = "barrier"'
            )

    @property
    def session(self) -> Session:
        if self._session is None:
            raise DatabaseUnavailable("the relay's session is closed")
        return self._session

    def info(self) -> Info:
        return read_info(self.session)

    def server_id(self) -> str:
        # MariaDB's server_uid comes from port and MAC address: another container, another uid. Its
        # server_id is kept, and differs between the servers of one replication.
        known = self._variables
        return known.get("server_uuid") or f"server_id {known['server_id']}"

    def standing(self) -> Standing:
        drawn, deleted_through = self.session.row("standing")
        self._drawn = int(drawn)
        return Standing(self._drawn, int(deleted_through))

    def read(self, after: int, limit_rows: int, through: int | None = None) -> Generator[Rows]:
        last = ID_MAX if through is None else through
        to_come = min(last, max(self._drawn, after)) - after
        limit_rows = self._size.rows_within(self.session, after, last, min(limit_rows, max(to_come, 1)))
        if limit_rows >= BULK_ROWS_MIN and time.monotonic() >= self._bulk_from and mysql_bulk.ALLOWANCE.take():
            parts = self._read_bulk(after, last, limit_rows)
        else:
            parts = self._read_small(after, last, min(limit_rows, SMALL_ROWS_MAX))
        for part in parts:
            self._size.learn(part.events)
            yield part

    def _read_small(self, after: int, through: int, limit_rows: int) -> Iterator[Rows]:
        rows = self.session.query("read", after=after, through=through, limit_rows=limit_rows)
        if rows:
            yield from_python(rows, pa.timestamp("us"))

    def _read_bulk(self, after: int, through: int, limit_rows: int) -> Iterator[Rows]:
        url = self._options.database
        sql = with_integers(
            block("mysql", "read_bulk", self._options.table), after=after, through=through, limit_rows=limit_rows
        )
        try:
            table = mysql_bulk.read_arrow(url, sql)
        except Exception as error:
            # The session still works, or its error says what is wrong: rather slow than stuck.
            log.warning("reading by PyMySQL, connectorx cannot", reason=redact(str(error)))
            self._bulk_from = time.monotonic() + self._bulk_pause_seconds
            self._bulk_pause_seconds = min(2 * self._bulk_pause_seconds, BULK_PAUSE_SECONDS_MAX)
            yield from self._read_small(after, through, min(limit_rows, SMALL_ROWS_MAX))
            return
        self._bulk_pause_seconds = BULK_PAUSE_SECONDS
        for part in table.to_batches():
            servers = part.column(COLUMN_COUNT + 1).cast(pa.int64()).unique().to_pylist()
            if servers != [self._server]:
                raise Unsupported(f"reads of {url} reach different servers: connect to the primary directly")
            yield to_rows(part.columns, part.column(COLUMN_COUNT).cast(pa.int64()))

    def look(self, after: int, limit_rows: int) -> Look:
        return look_in_steps(self, after, limit_rows)

    def make_durable(self, standing: Standing) -> None:  # noqa: ARG002 - the redo log says it all
        """InnoDB shows a row when its commit is in the log buffer, before the redo log is flushed.

        A crash in between takes the row back and gives its ID out again (run on MariaDB with
        innodb_flush_log_at_trx_commit = 1 and a slow disk). The rows were read before this
        call, so their commits lie below what the log has now.
        """
        written, flushed = self._redo_log()
        if written is None:
            self._flush_redo_log()  # MySQL before 8.0.30 does not say how far it is
            return
        patient_until = time.monotonic() + FLUSH_PATIENCE_SECONDS
        while flushed is None or flushed < written:
            if time.monotonic() >= patient_until:
                # With innodb_flush_log_at_trx_commit 0 or 2 even this waits for the server's own second.
                self._flush_redo_log()
                patient_until = time.monotonic() + FLUSH_POLL_SECONDS
            else:
                time.sleep(FLUSH_PATIENCE_SECONDS / 4)
            flushed = self._redo_log()[1]

    def _redo_log(self) -> tuple[int | None, int | None]:
        """How far the redo log is written and how far it is flushed, where the server says so."""
        status = {str(name).lower(): int(value) for name, value in self.session.query("redo_log")}
        written = status.get("innodb_lsn_current", status.get("innodb_redo_log_current_lsn"))
        return written, status.get("innodb_lsn_flushed", status.get("innodb_redo_log_flushed_to_disk_lsn"))

    def _flush_redo_log(self) -> None:
        if self._may_flush:
            try:
                self.session.query("flush_redo_log")
            except DatabaseUnavailable:
                raise
            except Exception:  # needs RELOAD, which a relay role need not have
                self._may_flush = False
            else:
                return
        self.session.change("flush_by_commit")

    def holders(self) -> Holders:
        if not self._lists_holders:
            return Holders(frozenset({"unlisted"}), self._prepared())
        if self.is_mariadb:
            threads = {int(thread) for (thread,) in self.session.query("holders_mariadb")}
            sessions = frozenset(str(thread) for thread in threads - self._ignored_connections)
        else:
            found = self.session.query("holders_mysql")
            sessions = frozenset(str(key) for connection, key in found if connection not in self._ignored_connections)
        # After the sessions: a session that prepared and left in between is on this list.
        return Holders(sessions, self._prepared())

    def _listed(self) -> set[int]:
        """The connections that hold a write lock on the out table."""
        found = self.session.query("holders_mariadb" if self.is_mariadb else "holders_mysql")
        return {int(row[0]) for row in found if row[0] is not None}

    def _prepared(self) -> frozenset[str]:
        try:
            rows = self.session.query("prepared")
        except Exception as error:
            if isinstance(error, OutboxError) or not is_refusal(error):
                raise
            role = quote_role(str(self.session.value("check_role")), "mysql")
            raise Unsupported(
                f"{role} may not list the prepared transactions of {self._options.database} ({one_line(error)}): one whose "
                f"client left would be taken for rolled back. As an administrator, GRANT XA_RECOVER_ADMIN ON *.* TO {role}"
            ) from error
        return frozenset("xa:" + ":".join(_shown(part) for part in row) for row in rows)

    def ignore(self, session: Session) -> None:
        self._ignored_connections.add(int(session.value("connection_id")))

    def barrier(self) -> tuple[int, frozenset[str]] | None:
        """LOCK TABLES … WRITE waits for every writer in flight; all IDs drawn before are settled."""
        bound = self.standing().drawn
        with open_session(self._options, "outbox barrier") as session:
            session.query("barrier_patience")
            try:
                session.query("barrier_take")
            except DatabaseUnavailable as error:
                if getattr(error.__cause__, "args", (None,))[0] == 1205:
                    return None
                raise
            with contextlib.suppress(DatabaseUnavailable):
                session.query("barrier_drop")
        # A transaction that prepared and lost its client holds no metadata lock.
        return bound, self._prepared()

    def late_id(self, deleted_through: int) -> int | None:
        found = self.session.value("late_id", deleted_through=deleted_through)
        return None if found is None else int(found)

    def blockers(self, keys: Iterable[str]) -> list[Blocker]:
        wanted = set(keys)
        found = [
            Blocker(key, None, "", "", "XA-prepared transaction, its client left", None)
            for key in sorted(wanted)
            if key.startswith("xa:")
        ]
        connections = {key.split("/")[0]: key for key in wanted}
        if not self.is_mariadb and wanted:
            connections = {
                str(connection): key for connection, key in self.session.query("holders_mysql") if key in wanted
            }
        for pid, host, user, state, seconds in self.session.query("blockers"):
            key = connections.get(str(pid))
            if key is not None:
                found.append(Blocker(key, int(pid), str(host), str(user), str(state), float(seconds or 0)))
        return found

    def terminate(self, blocker: Blocker) -> bool:
        if blocker.pid is None:
            return False
        self.session.query("terminate", pid=blocker.pid)
        return True

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _shown(part: Any) -> str:
    """A part of an XA transaction's name, which may be any bytes."""
    return part.decode(errors="backslashreplace") if isinstance(part, bytes) else str(part)
