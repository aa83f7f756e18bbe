"""Whether comparing a text key tells all keys of its unique index apart: if not, `key > last` would skip rows.

A column may have a collation in which different texts are equal ("a" and "A"), and a unique index with another one.
Comparing and ordering always use that of the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection


def keeps_apart(connection: Connection, schema: str | None, table: str, key: str) -> bool:
    """Whether only the same text is equal in the key's collation, or none but its own can be that of an index."""
    if connection.dialect.name == "sqlite":
        return _sqlite_is_plain(connection, schema, table)
    if connection.dialect.name == "postgresql":
        return _postgresql_is_deterministic(connection, schema, table, key)
    return True


def _sqlite_is_plain(connection: Connection, schema: str | None, table: str) -> bool:
    """Whether no column has a collation: SQLite tells that of a column in the words of CREATE TABLE alone."""
    import sqlalchemy

    master = sqlalchemy.table("sqlite_master", sqlalchemy.column("sql"), sqlalchemy.column("name"), schema=schema)
    words = connection.execute(sqlalchemy.select(master.c.sql).where(
        sqlalchemy.func.lower(master.c.name) == table.lower())).scalar()
    return "collate" not in str(words).lower()


def _postgresql_is_deterministic(connection: Connection, schema: str | None, table: str, key: str) -> bool:
    import sqlalchemy

    if (connection.dialect.server_version_info or (0,)) < (12,):
        return True     # it knew no others
    deterministic = connection.execute(sqlalchemy.text(
        "SELECT c.collisdeterministic FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = t.relnamespace JOIN pg_collation c ON c.oid = a.attcollation "
        "WHERE t.relname = :table AND a.attname = :key AND (n.nspname = :schema OR "
        "(CAST(:schema AS text) IS NULL AND pg_table_is_visible(t.oid)))"),
        {"table": table, "key": key, "schema": schema}).scalar()
    return deterministic is not False
