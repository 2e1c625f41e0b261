"""One source per database."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.options import RelayOptions
    from connector.source import Source


def open_source(options: RelayOptions) -> Source:
    """The source for the options' database, not yet connected."""
    if options.database.dialect == "postgresql":
        from connector.sources.postgresql import PostgresSource

        return PostgresSource(options)
    if options.database.dialect == "mysql":
        from connector.sources.mysql import MysqlSource

        return MysqlSource(options)
    from connector.sources.sqlite import SqliteSource

    return SqliteSource(options)
