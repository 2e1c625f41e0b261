"""Privileges: a writer role that can emit and nothing else, and a role for the relay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from outbox.database import Session, is_driver_error, one_line
from outbox.errors import OutboxError, SchemaError, UsageError
from outbox.names import OutTable, literal, quote
from outbox.queries import block, statements
from outbox.schema import as_script

if TYPE_CHECKING:
    from outbox.database import DatabaseUrl

_UNQUOTED = re.compile(r"""^(['"`])(.*)\1$""")


def grant_writer(url: DatabaseUrl, table: OutTable, role: str) -> None:
    """Let `role` insert events, by INSERT and by the emit function, and do nothing else."""
    _grant(url, table, role, "grant_writer")


def grant_relay(url: DatabaseUrl, table: OutTable, role: str) -> list[str]:
    """Let `role` run the relay. Returns what only an administrator could have granted, with the reason."""
    return _grant(url, table, role, "grant_relay")


def render_grant_writer(dialect: str, table: OutTable, role: str) -> str:
    """The script of `grant_writer`, for review."""
    return as_script(dialect, table, _statements(dialect, table, role, "grant_writer"))


def render_grant_relay(dialect: str, table: OutTable, role: str) -> str:
    """The script of `grant_relay`. What needs an administrator stands at its end as a comment."""
    names = ["grant_relay_more_mysql", "grant_relay_more_mariadb"] if dialect == "mysql" else ["grant_relay_more"]
    more = "\n;\n".join(block(dialect, name, table, role=quote_role(role, dialect)) for name in names).replace(
        ";;", ";"
    )
    return as_script(dialect, table, _statements(dialect, table, role, "grant_relay")) + "".join(
        f"-- {line.removeprefix('-- ')}\n" for line in more.splitlines()
    )


def quote_role(role: str, dialect: str) -> str:
    """A role's name in quotes; for MySQL also `user@host`, which are quoted one by one."""
    if dialect == "sqlite":
        raise UsageError(
            "SQLite has no roles: who may write the database's file and its folder may emit; set their permissions"
        )
    if not role or re.search(r"[\x00-\x1f\x7f\\]", role):
        raise UsageError(f"{role!r} cannot name a role: it is empty, or has a control character or a backslash")
    if dialect != "mysql":
        return quote(role, dialect)
    user, at, host = role.rpartition("@")
    parts = [user, host] if at else [role]
    return "@".join(quote(_UNQUOTED.sub(r"\2", part), dialect) for part in parts)


def _statements(dialect: str, table: OutTable, role: str, name: str) -> list[str]:
    more = {"role": quote_role(role, dialect), "every_table": _every_table(table)}
    granted = statements(block(dialect, name, table, **more))
    if dialect == "postgresql" and table.schema:
        granted.insert(0, block(dialect, "grant_schema", table, **more))
    return granted


def _every_table(table: OutTable) -> str:
    """MySQL reads the name of a database in a GRANT as a pattern, where _ stands for any letter."""
    if table.schema is None:
        return "*"
    return quote(re.sub(r"([_%])", r"\\\1", table.schema), "mysql") + ".*"


def _grant(url: DatabaseUrl, table: OutTable, role: str, name: str) -> list[str]:
    quoted = quote_role(role, url.dialect)
    with Session(url, table, application="outbox init") as session:
        try:
            rows = session.query("where")
            if not rows or rows[0][0] is None:
                raise SchemaError(f"there is no out table {table} in {url}: run `outbox init`")
            # Every name qualified, as the search_path or the default database finds it now.
            found = OutTable(table.name, str(rows[0][0]))
            granted = _statements(url.dialect, found, role, name)
            with session.transaction():
                for statement in granted:
                    session.run(statement)
            if url.dialect == "postgresql":
                _prove_usable(session, found, role)
        except OutboxError:
            raise
        except Exception as error:
            if not is_driver_error(error):
                raise
            raise SchemaError(
                f"{url} refused to grant {role!r} its privileges on {table}: {one_line(error)}. Grant them as the "
                "table's owner, and create the role first"
                + ("; a user of one host is written NAME@HOST, as in app@localhost" if url.dialect == "mysql" else "")
            ) from error
        return [] if name == "grant_writer" else _grant_more(session, found, quoted)


def _prove_usable(session: Session, table: OutTable, role: str) -> None:
    ((usable,),) = session.run(block("postgresql", "schema_usable", table, role_literal=literal(role)))
    if not usable:
        raise SchemaError(
            f"role {role!r} may not use schema {table.schema}, and {session.url} may not let it: "
            f"as the schema's owner run GRANT USAGE ON SCHEMA {quote(table.schema or '', 'postgresql')} "
            f"TO {quote(role, 'postgresql')}"
        )


def _grant_more(session: Session, table: OutTable, quoted_role: str) -> list[str]:
    """What is good to have and an administrator's to give: tried one by one."""
    name = "grant_relay_more"
    if session.dialect == "mysql":
        name += "_mariadb" if "mariadb" in str(session.value("version")).lower() else "_mysql"
    refused = []
    for statement in statements(block(session.dialect, name, table, role=quoted_role)):
        try:
            session.run(statement)
        except Exception as error:
            if isinstance(error, OutboxError) or not is_driver_error(error):
                raise
            command = re.sub(r"^--[^\n]*\n", "", statement, flags=re.MULTILINE)
            refused.append(f"{command}: {one_line(error)}")
    return refused
