"""What `outbox check` looks at on MySQL and MariaDB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, unseen, warning
from connector.sources.mysql_replication import replication_sources
from outbox.database import is_driver_error
from outbox.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connector.checks.finding import Finding
    from connector.sources.mysql_replication import ReplicationSource

# Access denied: to a database, a table, a column, or for want of a global privilege; and
# what XA RECOVER answers to those who may not look.
DENIED = (1044, 1142, 1143, 1227, 1370, 1401)
LOCK_WAIT_TIMEOUT = 1205


def variables(subject: Subject) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in subject.session.query("check_variables")}


def is_mariadb(known: Mapping[str, str]) -> bool:
    return "mariadb" in known["version"].lower()


def server(subject: Subject) -> Iterator[Finding]:
    known = variables(subject)
    yield from judge_version(known["version"])
    yield from judge_cluster(known)
    yield from judge_counter(known)
    yield from judge_durability(known)


def judge_version(version: str) -> Iterator[Finding]:
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    oldest = (10, 5) if "mariadb" in version.lower() else (8, 0)
    if number < oldest:
        yield error(
            "server-version",
            f"{version} is too old: it gives out an ID again after a restart, or does not list metadata locks",
            "upgrade to MySQL 8.0, MariaDB 10.5 or later",
        )
    else:
        yield ok("server-version", version)


def judge_cluster(known: Mapping[str, str]) -> Iterator[Finding]:
    if known.get("wsrep_on") == "ON":
        yield error(
            "multi-primary",
            "this server is a node of a Galera cluster: writers on other nodes draw IDs, and their locks are not seen here",
            "keep the out table on a server with a single primary",
        )
    elif known.get("group_replication_group_name") and known.get("group_replication_single_primary_mode") == "OFF":
        yield error(
            "multi-primary",
            "group replication runs with several primaries: writers on other members draw IDs, and their locks are not seen here",
            "SELECT group_replication_switch_to_single_primary_mode()",
        )
    else:
        yield ok("multi-primary", "a single primary")


def judge_counter(known: Mapping[str, str]) -> Iterator[Finding]:
    step, offset = known.get("auto_increment_increment", "1"), known.get("auto_increment_offset", "1")
    if step != "1":
        yield error(
            "auto-increment",
            f"auto_increment_increment is {step}, as with several primaries: IDs are not drawn one after the other",
            "SET GLOBAL auto_increment_increment = 1, and the same in the server's configuration",
        )
    elif offset != "1":
        yield warning(
            "auto-increment",
            f"auto_increment_offset is {offset}, a setting for several primaries",
            "SET GLOBAL auto_increment_offset = 1, and the same in the server's configuration",
        )
    else:
        yield ok("auto-increment", "IDs are drawn one by one, upwards")


def judge_durability(known: Mapping[str, str]) -> Iterator[Finding]:
    flush = known.get("innodb_flush_log_at_trx_commit", "1")
    if flush != "1":
        yield error(
            "flush-log",
            f"innodb_flush_log_at_trx_commit is {flush}: after a crash the database may have lost rows that are in the "
            "stream, and give out their IDs again",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the server's configuration",
        )
    else:
        yield ok("flush-log", "commits reach the disk")
    if known.get("log_bin") == "ON" and known.get("sync_binlog", "1") != "1":
        yield error(
            "sync-binlog",
            f"the binary log is on with sync_binlog = {known['sync_binlog']}: after a crash transactions that are missing "
            "in it are rolled back, though their rows may be in the stream",
            "SET GLOBAL sync_binlog = 1, and the same in the server's configuration",
        )
    if known.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        yield warning(
            "doublewrite",
            "innodb_doublewrite is off: a power failure in the middle of a page write can damage tables",
            "set innodb_doublewrite = ON in the server's configuration and restart it",
        )


def replica(subject: Subject) -> Iterator[Finding]:
    known = variables(subject)
    if "ON" in (known.get(name) for name in ("read_only", "super_read_only", "innodb_read_only")):
        yield error(
            "replica",
            "this server is read-only, most likely a replica: it shows no locks of the writers",
            "point --database at the primary; if this is the primary, SET GLOBAL read_only = OFF",
        )
        return
    yield from judge_replication(
        replication_sources(subject.session, known["version"]),
        subject.session.table.schema or subject.session.url.database,
        subject.session.table.name,
        mariadb=is_mariadb(known),
    )


def judge_replication(
    sources: Sequence[ReplicationSource], schema: str, table: str, *, mariadb: bool
) -> Iterator[Finding]:
    sources = [source for source in sources if source.reaches(schema, table)]
    for source in sources:
        stop, forget = (
            (f"STOP REPLICA '{source.name}'", f"RESET REPLICA '{source.name}' ALL")
            if mariadb
            else (f"STOP REPLICA FOR CHANNEL '{source.name}'", f"RESET REPLICA ALL FOR CHANNEL '{source.name}'")
        )
        if source.is_running:
            yield error(
                "replica",
                f"this server replicates from {source}: rows may come in by replication, below an ID that is already in the stream",
                f"point --database at the primary; if this server was promoted, {stop} and {forget}",
            )
        else:
            yield warning(
                "replica",
                f"this server is still set up to replicate from {source}, though that is stopped: a relay would not start "
                "once it runs again, after a restart of the server for one",
                f"{forget}, when this server is the primary for good; else point --database at the primary",
            )
    if not sources:
        yield ok("replica", "a primary that takes writes")


def table(subject: Subject) -> Iterator[Finding]:
    name = subject.table
    engine, collation = subject.session.row("check_table")
    if str(engine).lower() != "innodb":
        yield error(
            "storage-engine",
            f"{name} uses {engine}: its rows do not commit with the transaction that wrote them",
            f"ALTER TABLE {name} ENGINE = InnoDB",
        )
    else:
        yield ok("storage-engine", "InnoDB")
    if not str(collation).startswith("utf8mb4"):
        yield error(
            "encoding",
            f"{name} is in {collation}: events are Unicode text, and some cannot be stored",
            f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        )
    ids = subject.session.query("check_id")
    if not ids or "auto_increment" not in str(ids[0][0]).lower():
        yield error(
            "identity",
            f"column id of {name} is not AUTO_INCREMENT: nothing makes sure that an ID is given out once",
            f"ALTER TABLE {name} MODIFY id bigint NOT NULL AUTO_INCREMENT",
        )
    else:
        yield ok("identity", "IDs are drawn by AUTO_INCREMENT")


def lock_listing(subject: Subject) -> Iterator[Finding]:
    mariadb = is_mariadb(variables(subject))
    try:
        listed = bool(subject.session.value("can_list_mariadb" if mariadb else "can_list_mysql"))
    except Exception as refusal:
        if not _is_denied(refusal):
            raise
        listed = False
    if listed:
        yield ok("lock-listing", "the holders of metadata locks can be listed")
        return
    yield warning(
        "lock-listing",
        "the holders of metadata locks cannot be listed: the relay holds all writers off for a moment whenever an ID is "
        "missing (the barrier). That is sound, but slower: behind a long transaction that has emitted, every writer waits "
        "for up to a second each time it is tried, and nobody who blocks it can be named",
        "INSTALL SONAME 'metadata_lock_info'"
        if mariadb
        else f"GRANT SELECT ON performance_schema.* TO {subject.role()}, and UPDATE performance_schema.setup_instruments "  # noqa: S608 - shown, not run
        "SET enabled = 'YES' WHERE name = 'wait/lock/metadata/sql/mdl'",
    )


def privileges(subject: Subject) -> Iterator[Finding]:
    """Tried out on no row at all: grants through roles and patterns count as the server counts them."""
    role = subject.role()
    info = subject.companion("_info")
    missing = 0
    for trial, grant in (
        ("check_can_read", f"SELECT ON {subject.table}"),
        ("check_can_delete", f"DELETE ON {subject.table}"),
        ("check_can_read_info", f"SELECT ON {info}"),
        ("check_can_update_info", f"UPDATE ON {info}"),
    ):
        if _may(subject, trial):
            continue
        missing += 1
        yield error(
            "privileges",
            f"{role} lacks {grant.replace(' ON ', ' on ')}, which the relay needs",
            f"GRANT {grant} TO {role} (or all at once: outbox init --grant-relay)",
        )
    if not missing:
        yield ok("privileges", f"{role} may read, delete and lead")
    subject.session.query("check_patience")
    if not _may(subject, "check_can_lock"):
        yield warning(
            "lock-tables",
            f"{role} lacks LOCK TABLES: where the holders of locks cannot be listed, the relay has no other way",
            f"GRANT LOCK TABLES ON {_every_table(subject)} TO {role}",
        )
    subject.session.query("check_unlock")
    if not _may(subject, "check_sees_sessions"):
        yield warning(
            "blocker-names",
            f"{role} lacks PROCESS: the relay could not say who holds it back",
            f"GRANT PROCESS ON *.* TO {role}",
        )
    if not _may(subject, "check_sees_prepared"):
        yield error(
            "prepared-transactions",
            f"{role} may not list prepared transactions: one whose client left would be taken for rolled back",
            f"GRANT XA_RECOVER_ADMIN ON *.* TO {role}",
        )
    # Neither is better for what the relay promises, and RELOAD allows a lot more than this.
    yield ok(
        "redo-log",
        f"{role} has RELOAD: the relay has the redo log flushed before it appends"
        if _may(subject, "flush_redo_log")
        else f"{role} lacks RELOAD, and can do without: the relay flushes the redo log by a commit of its own",
    )


def isolation(subject: Subject) -> Iterator[Finding]:
    """The relay sets its isolation itself; here it is seen whether that holds."""
    subject.session.query("session_settings")
    known = {str(name).lower(): str(value) for name, value in subject.session.query("variables")}
    level = known.get("transaction_isolation") or known.get("tx_isolation")
    if level == "READ-COMMITTED" and known["autocommit"] == "ON":
        yield ok("isolation", "sessions keep READ COMMITTED and autocommit")
    else:
        yield error(
            "isolation",
            f"a session that has set READ COMMITTED and autocommit is {level} with autocommit {known['autocommit']}",
            "connect without a proxy in between",
        )


def horizon(subject: Subject) -> Iterator[Finding]:
    try:
        old = [str(row[0]) for row in subject.session.query("check_horizon", seconds=subject.patience_seconds * 15)]
    except Exception as refusal:
        if not _is_denied(refusal):
            raise
        yield unseen("purge-horizon", refusal)
        return
    if old:
        yield warning(
            "purge-horizon",
            f"deleted rows of the out table cannot be purged, reading it gets slower: {'; '.join(old[:5])}",
            "end the transaction: KILL THREAD",
        )
    else:
        yield ok("purge-horizon", "nothing keeps deleted rows from being purged")


def _may(subject: Subject, trial: str) -> bool:
    try:
        subject.session.query(trial)
    except DatabaseUnavailable as refusal:
        # To wait for a lock one must be allowed to take it.
        if getattr(refusal.__cause__, "args", (None,))[0] != LOCK_WAIT_TIMEOUT:
            raise
    except Exception as refusal:
        if not _is_denied(refusal):
            raise
        return False
    return True


def _is_denied(refusal: Exception) -> bool:
    return is_driver_error(refusal) and bool(refusal.args) and refusal.args[0] in DENIED


def _every_table(subject: Subject) -> str:
    schema = subject.session.table.schema or subject.session.url.database
    return f"`{schema}`.*"


SERVER = (("server", server), ("replica", replica))
TABLE = (
    ("table", table),
    ("lock-listing", lock_listing),
    ("privileges", privileges),
    ("isolation", isolation),
    ("purge-horizon", horizon),
)
