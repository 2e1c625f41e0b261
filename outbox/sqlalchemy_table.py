"""The out table as a SQLAlchemy `Table`, for an application's own metadata and Alembic.

What `outbox init` makes stands in `sql/<dialect>/schema.sql`. This is the same once more, in
SQLAlchemy's words, so that Alembic's autogenerate can make the tables and never drops or
changes them. A test compares the two on every database. Run `outbox init` after the
migration all the same: it adds what no `Table` can say (the info row, the view, triggers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Integer,
    LargeBinary,
    Table,
    Text,
    event,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

from outbox.names import OutTable

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine

_MYSQL = ("mysql", "mariadb")
# A queue is small and its churn is not: see sql/postgresql/schema.sql.
_AUTOVACUUM = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_vacuum_insert_threshold": 50000,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 50000,
    "autovacuum_vacuum_cost_delay": 0,
    "toast.autovacuum_vacuum_scale_factor": 0,
    "toast.autovacuum_vacuum_threshold": 5000,
    "toast.autovacuum_vacuum_cost_delay": 0,
}
_INFO_STORAGE = {"fillfactor": 10, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 500}
_MYSQL_STORAGE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in _MYSQL
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}
# SQLite takes any value in any column: these keep out what the relay could not read.
_SQLITE_CHECKS = (
    "type <> '' AND typeof(type) = 'text'",
    "typeof(subject) IN ('text', 'null')",
    "data IS NULL OR (typeof(data) = 'text' AND json_valid(data))",
    "typeof(data_bytes) IN ('blob', 'null')",
    "typeof(datacontenttype) IN ('text', 'null')",
    "headers IS NULL OR (typeof(headers) = 'text' AND json_valid(headers))",
    "time GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]*Z' "
    "AND strftime('%Y-%m-%dT%H:%M:%S', substr(time, 1, 19), '+0 days') IS substr(time, 1, 19) "
    "AND (length(time) = 20 OR length(time) BETWEEN 22 AND 27 AND substr(time, 20, 1) = '.' "
    "AND substr(time, 21, length(time) - 21) NOT GLOB '*[^0-9]*')",
)


_POSTGRESQL_TIME = "time >= '0001-01-01 00:00:00+00' AND time < '10000-01-01 00:00:00+00'"
_MYSQL_TIME = "month(time) > 0 AND dayofmonth(time) > 0"


class _DialectSql(ColumnElement[Any]):
    """A default that each database writes in its own way."""

    inherit_cache = False

    def __init__(self, postgresql: str, mysql: str, sqlite: str) -> None:
        self.spellings = {"postgresql": postgresql, "mysql": mysql, "mariadb": mysql, "sqlite": sqlite}


@compiles(_DialectSql)
def _compile(element: _DialectSql, compiler: SQLCompiler, **_: Any) -> str:
    return element.spellings[compiler.dialect.name]


def table(metadata: MetaData, name: str = "outbox", schema: str | None = None) -> Table:
    """Add the out table, and its info table beside it, to `metadata`; return the out table."""
    names = OutTable(name, schema)  # refuses what cannot be a name
    info = Table(
        f"{names.name}_info",
        metadata,
        Column(
            "one_row",
            Boolean(create_constraint=False).with_variant(mysql.TINYINT(), *_MYSQL).with_variant(Integer(), "sqlite"),
            CheckConstraint(_DialectSql("one_row", "one_row = 1", "one_row = 1")),
            primary_key=True,
            autoincrement=False,
            server_default=_DialectSql("true", "1", "1"),
        ),
        Column("schema_version", Integer, nullable=False),
        Column("source", _text(1024), nullable=False),
        Column("outbox_id", _text(36), nullable=False),
        Column("stream_id", _text(36)),
        Column("deleted_through", _id(), nullable=False, server_default=_DialectSql("0", "0", "0")),
        Column("leader", _text(255)),
        Column("lease_until", _moment()),
        Column("server_id", _text(255)),
        Column("installed_at", _moment(), nullable=False, server_default=_now()),
        Column("relayed_through", _id(), nullable=False, server_default=_DialectSql("0", "0", "0")),
        schema=names.schema,
        **_MYSQL_STORAGE,
    )
    _store_with(info, _INFO_STORAGE)
    out = Table(
        names.name,
        metadata,
        Column("id", _id(), Identity(always=True, cache=1, cycle=False), primary_key=True),
        Column("type", _text(255), nullable=False),
        Column("subject", _text(1024)),
        Column("data", _json()),
        Column("data_bytes", LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)),
        Column("datacontenttype", _text(255)),
        Column("headers", _json()),
        Column("time", _moment(), nullable=False, server_default=_now()),
        CheckConstraint("type <> ''").ddl_if(callable_=_is_not_sqlite),
        CheckConstraint(_DialectSql(_POSTGRESQL_TIME, _MYSQL_TIME, "true")).ddl_if(callable_=_is_not_sqlite),
        CheckConstraint("data IS NULL OR data_bytes IS NULL"),
        *(CheckConstraint(check).ddl_if(dialect="sqlite") for check in _SQLITE_CHECKS),
        schema=names.schema,
        # Without it SQLite gives out the ID of a deleted last row again.
        sqlite_autoincrement=True,
        **_MYSQL_STORAGE,
    )
    _store_with(out, _AUTOVACUUM)
    return out


def _store_with(made: Table, options: dict[str, int]) -> None:
    """Give a table PostgreSQL's storage parameters."""
    if "with" in made.dialect_options["postgresql"]:
        made.dialect_kwargs["postgresql_with"] = options
    else:  # SQLAlchemy 2.0 has no such option of CREATE TABLE: a statement after it, then
        spelled = ", ".join(f"{name} = {value}" for name, value in options.items())
        alter = DDL(f"ALTER TABLE %(fullname)s SET ({spelled})")  # type: ignore[no-untyped-call]
        event.listen(made, "after_create", alter.execute_if(dialect="postgresql"))


def _is_not_sqlite(*_: Any, dialect: Any, **__: Any) -> bool:
    return bool(dialect.name != "sqlite")


def _id() -> TypeEngine[int]:
    return BigInteger().with_variant(Integer(), "sqlite")


def _text(characters_max: int) -> TypeEngine[str]:
    return Text().with_variant(mysql.VARCHAR(characters_max), *_MYSQL)


def _json() -> TypeEngine[Any]:
    # json, not jsonb, and text elsewhere: the stored text stays byte-exact.
    return Text().with_variant(postgresql.JSON(), "postgresql").with_variant(mysql.LONGTEXT(), *_MYSQL)


def _moment() -> TypeEngine[Any]:
    return (
        Text()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
    )


def _now() -> _DialectSql:
    return _DialectSql("clock_timestamp()", "(utc_timestamp(6))", "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))")
