"""What `outbox check` looks at on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.checks.finding import Subject, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.checks.finding import Finding

# The body of the emit function (BEGIN ATOMIC) needs 14.
OLDEST_VERSION = 140000


def server(subject: Subject) -> Iterator[Finding]:
    number, version, in_recovery, read_only, encoding = subject.session.row("check_server")
    if number < OLDEST_VERSION:
        yield error("server-version", f"PostgreSQL {version} is too old", "upgrade to PostgreSQL 14 or later")
    else:
        yield ok("server-version", f"PostgreSQL {version}")
    if in_recovery:
        yield error(
            "replica",
            "this server is a replica: it shows no locks of the writers, and nothing can be deleted on it",
            "point --database at the primary (libpq: ?target_session_attrs=read-write)",
        )
    elif read_only:
        yield error(
            "replica",
            "transactions of this role are read-only: the relay could not delete what it has relayed",
            f"ALTER ROLE {subject.role()} SET default_transaction_read_only = off",
        )
    else:
        yield ok("replica", "a primary that takes writes")
    if encoding == "UTF8":
        yield ok("encoding", "the database is in UTF-8")
    else:
        yield error(
            "encoding",
            f"the database is in {encoding}: events are Unicode text, and some cannot be stored or read back",
            "keep the out table in a database created with ENCODING 'UTF8'",
        )


def durability(subject: Subject) -> Iterator[Finding]:
    settings = dict(subject.session.query("check_settings"))
    if settings.get("fsync") == "off":
        yield error(
            "fsync",
            "fsync is off: after a crash the database may have lost rows that are in the stream, and give out their IDs again",
            "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    else:
        yield ok("fsync", "commits reach the disk")
    if settings.get("full_page_writes") == "off":
        yield warning(
            "full-page-writes",
            "full_page_writes is off: a power failure in the middle of a page write can damage tables",
            "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
        )
    if settings.get("synchronous_commit") == "off":
        yield warning(
            "synchronous-commit",
            "synchronous_commit is off: a crash may undo commits that the application was told of. The relay waits "
            "for the flush before it appends, so the stream never has what the database lost; events come a little later",
            "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()",
        )
    if settings.get("autovacuum") == "off" or settings.get("track_counts") == "off":
        yield warning(
            "autovacuum",
            "autovacuum is off: every event leaves a dead row behind, and reading the out table gets slower all the time",
            "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()",
        )


def table(subject: Subject) -> Iterator[Finding]:
    name = subject.table
    kind, persistence, row_security, hides_rows = subject.session.row("check_table")
    if kind not in ("r", "p"):
        yield error("table-kind", f"{name} is not a table", "install the out table under another name")
    if persistence == "u":
        yield error(
            "unlogged",
            f"{name} is unlogged: a crash of the server empties it",
            f"ALTER TABLE {name} SET LOGGED",
        )
    if hides_rows:
        yield error(
            "row-security",
            f"row-level security hides rows of {name} from this role: the relay would take them for dead",
            f"ALTER ROLE {subject.role()} BYPASSRLS, or ALTER TABLE {name} DISABLE ROW LEVEL SECURITY",
        )
    elif row_security:
        yield ok("row-security", "there is row-level security, and this role is exempt from it")
    else:
        yield ok("row-security", "no policy hides rows")
    subscriptions = [str(row[0]) for row in subject.session.query("check_subscription")]
    if subscriptions:
        yield error(
            "subscription-target",
            f"{name} is filled by logical replication (subscription {', '.join(subscriptions)}): "
            "its IDs are drawn on another server, where this one sees no locks",
            "run the relay against the publishing server",
        )


def sequence(subject: Subject) -> Iterator[Finding]:
    name = subject.table
    rows = subject.session.query("check_sequence")
    if not rows:
        yield error("identity", f"{name} has no column id", "restore the out table from `outbox init --print`")
        return
    identity, own, cache, cycle, increment, persistence = rows[0]
    if own is None:
        yield error(
            "identity",
            f"column id of {name} has no sequence of its own: nothing marks a transaction that has drawn an ID",
            f"ALTER TABLE {name} ALTER COLUMN id DROP DEFAULT, ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY "
            f"(SEQUENCE NAME {subject.companion('_id_seq')} CACHE 1 NO CYCLE), then set the sequence behind the highest ID "
            "ever drawn",
        )
        return
    if identity == "a":
        yield ok("identity", "IDs are generated always, by a sequence of the table's own")
    elif not identity and subject.session.row("check_table")[0] == "p":
        # Identity columns of partitioned tables came with PostgreSQL 17.
        yield warning(
            "identity",
            f"the IDs of the partitioned {name} are a DEFAULT: an INSERT can bring an ID of its own, which may be late "
            "or double",
            "grant writers INSERT on the event columns only (`outbox init --grant-writer`)",
        )
    else:
        repair = (
            "SET GENERATED ALWAYS"
            if identity == "d"
            else "DROP DEFAULT, ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY"
        )
        yield error(
            "identity",
            f"column id of {name} is not GENERATED ALWAYS: an INSERT can bring an ID of its own, which may be late or double",
            f"ALTER TABLE {name} ALTER COLUMN id {repair}",
        )
    if cache != 1:
        yield error(
            "sequence-cache",
            f"the sequence of {name} has CACHE {cache}: a session keeps IDs and uses them long after higher ones",
            f"ALTER SEQUENCE {own} CACHE 1, then end the sessions that still keep IDs",
        )
    if cycle:
        yield error(
            "sequence-cycle", f"the sequence of {name} starts over at its end", f"ALTER SEQUENCE {own} NO CYCLE"
        )
    if increment != 1:
        yield error(
            "sequence-increment",
            f"the sequence of {name} goes by {increment}, not by 1",
            f"ALTER SEQUENCE {own} INCREMENT 1",
        )
    if persistence == "u":
        yield error(
            "unlogged", f"the sequence of {name} is unlogged: a crash resets it", f"ALTER SEQUENCE {own} SET LOGGED"
        )
    if cache == 1 and not cycle and increment == 1:
        yield ok("sequence", "IDs are drawn one by one, upwards")


def privileges(subject: Subject) -> Iterator[Finding]:
    held = subject.session.row("check_privileges")
    sequence_name = subject.companion("_id_seq")
    wanted = [
        ("SELECT", subject.table),
        ("DELETE", subject.table),
        ("SELECT", subject.companion("_info")),
        ("UPDATE", subject.companion("_info")),
        ("SELECT", f"SEQUENCE {sequence_name}"),
        ("USAGE", f"SEQUENCE {sequence_name}"),
    ]
    missing = [what for what, has in zip(wanted, held, strict=True) if not has]
    role = subject.role()
    for privilege, what in missing:
        yield error(
            "privileges",
            f"{role} lacks {privilege} on {what.removeprefix('SEQUENCE ')}, which the relay needs",
            f"GRANT {privilege} ON {what} TO {role} (or all at once: outbox init --grant-relay)",
        )
    if not missing:
        yield ok("privileges", f"{role} may read, delete and lead")
    if subject.session.value("check_sees_sessions"):
        yield ok("blocker-names", "the relay can name a transaction that holds it back")
    else:
        yield warning(
            "blocker-names",
            f"{role} does not see other roles' sessions: the relay could not say who holds it back",
            f"GRANT pg_read_all_stats TO {role}",
        )


def isolation(subject: Subject) -> Iterator[Finding]:
    """The relay sets its isolation itself; here it is seen whether that holds."""
    subject.session.query("session_settings")
    level, row_security, *_ = subject.session.row("session_verified")
    if level == "read committed" and row_security == "off":
        yield ok("isolation", "sessions keep READ COMMITTED and row_security = off")
    else:
        yield error(
            "isolation",
            f"a session that has set READ COMMITTED and row_security = off is {level} with row_security {row_security}",
            "connect without a pooler or proxy in between",
        )


def prepared(subject: Subject) -> Iterator[Finding]:
    old = [row for row in subject.session.query("check_prepared") if row[2] >= subject.patience_seconds]
    for gid, owner, seconds in old:
        text = str(gid).replace("'", "''")
        yield warning(
            "prepared-transaction",
            f"transaction {gid!r} of {owner} is prepared since {seconds:.0f} s and neither committed nor rolled back: "
            "if it has emitted, the stream waits for it; and it keeps vacuum from its work",
            f"COMMIT PREPARED '{text}', or ROLLBACK PREPARED '{text}'",
        )
    if not old:
        yield ok("prepared-transaction", "no forgotten prepared transaction")


def horizon(subject: Subject) -> Iterator[Finding]:
    # Vacuum can wait longer than the stream: fifteen times the patience.
    old = [str(row[0]) for row in subject.session.query("check_horizon", seconds=subject.patience_seconds * 15)]
    if old:
        yield warning(
            "vacuum-horizon",
            f"dead rows of the out table cannot be removed, reading it gets slower: {'; '.join(old[:5])}",
            "end the transaction (SELECT pg_terminate_backend(PID)), or drop the slot (SELECT pg_drop_replication_slot(NAME))",
        )
    else:
        yield ok("vacuum-horizon", "nothing keeps vacuum from its work")


SERVER = (("server-version", server), ("durability", durability))
TABLE = (
    ("table", table),
    ("sequence", sequence),
    ("privileges", privileges),
    ("isolation", isolation),
    ("prepared-transaction", prepared),
    ("vacuum-horizon", horizon),
)
