"""A database table of sentence pairs as a source: SQLite, PostgreSQL, MySQL, MariaDB, or another of SQLAlchemy.

Reading uses keyset pagination: `WHERE key > :after AND key <= :until ORDER BY key LIMIT :page`. The last key is the
position, so seeking is one lookup in the key's index. No transaction is open between two pages. After a lost connection
the next page begins after the last key that was read. A page is fetched completely before its first pair is yielded, so
a lost connection never loses or repeats a row.

Checks ensure that table, columns and condition exist, and that the key orders the rows. A column may have a collation
in which different texts are equal ("a" and "A"), while its unique index has another collation. Comparing and ordering
always use the collation of the column, so `key > last` would skip rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from towernmt.core.errors import DataError, SettingsError, suggestion
from towernmt.dataflow.sources.database_connection import (
    DatabaseRefusal,
    DatabaseSession,
    driver_message,
    is_transient,
    make_engine,
)
from towernmt.dataflow.sources.database_uri import DatabaseURI, parse_database_uri
from towernmt.dataflow.sources.source import Cursor, Pair, Source

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Inspector, Select, TableClause

Key = int | str


def open_database(uri: str) -> Source:
    """Return the source that the URI of a database names, without connecting to it.

    Args:
        uri: SQLAlchemy's URL, with the options table, key (default id), source, target (columns of these names by
            default), where (SQL), missing (error, or skip to skip rows with a NULL text), page (rows of a query) and
            patience (seconds of retries if the server is lost). The driver gets all other options. `postgresql:`
            uses psycopg, `mysql:` and `mariadb:` use PyMySQL.

    Raises:
        SettingsError: the URI is malformed.
        DataError: a package or the SQLite file does not exist.
    """
    return DatabaseSource(parse_database_uri(uri))


class DatabaseSource(Source):
    """The rows of a table, in the order of a key.

    A cursor is `[after, until]`: the last key that was read, or None at the beginning; and the largest key when the
    pass began, or None for an empty table. Rows that are added with larger keys belong to the next pass.

    Attributes:
        uri: the URI of the table.
    """

    def __init__(self, uri: DatabaseURI) -> None:
        self.uri = uri
        self.name = uri.name
        make_engine(uri)    # raises at once if the driver or the file is missing

    def begin(self) -> Cursor:
        """Check the table and return the cursor before its first row; see `Source.begin`.

        Reads all rows once if the schema allows keys or texts that are NULL, or keys that are not unique.
        """
        with DatabaseSession(self.uri, scan=True) as session:
            session.run(lambda connection: check_table(connection, self.uri))
            session.run(lambda connection: check_rows(connection, self.uri))
            until = session.run(self._largest_key)
        if until is not None and type(until) not in (int, str):
            raise DataError(self._wrong_key(until))
        return [None, until]

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """Yield the rows after a cursor; see `Source.read`."""
        after, until = self._check_cursor(cursor)
        if until is None:
            return
        with DatabaseSession(self.uri) as session:
            while True:
                rows = self._fetch(session, after, until)
                for after, source, target in rows:
                    if type(after) not in (int, str):
                        raise DataError(self._wrong_key(after))
                    if type(source) is not str or type(target) is not str:
                        self._refuse_row(after, source, target)
                    yield [after, until], Pair(source, target)
                if len(rows) < self.uri.page:
                    return

    def count(self) -> int:
        """Return the number of rows, which the database counts; see `Source.count`."""
        import sqlalchemy

        statement = sqlalchemy.select(sqlalchemy.func.count()).select_from(self._table).where(*conditions(self.uri))
        with DatabaseSession(self.uri, scan=True) as session:
            session.run(lambda connection: check_table(connection, self.uri))
            return int(session.run(lambda connection: connection.execute(statement).scalar_one()))

    @cached_property
    def _table(self) -> Any:
        return table_clause(self.uri)

    @cached_property
    def _page(self) -> Select[Any]:
        import sqlalchemy

        columns = self._table.c
        key = columns[self.uri.key]
        # Without an explicit type, the database compares with the type of the key: its width, its collation.
        return (sqlalchemy.select(key, columns[self.uri.source], columns[self.uri.target])
                .where(key <= sqlalchemy.bindparam("until"), *conditions(self.uri))
                .order_by(key).limit(self.uri.page))

    @cached_property
    def _next_page(self) -> Select[Any]:
        import sqlalchemy

        return self._page.where(self._table.c[self.uri.key] > sqlalchemy.bindparam("after"))

    def _largest_key(self, connection: Connection) -> Any:
        import sqlalchemy

        return connection.execute(sqlalchemy.select(sqlalchemy.func.max(self._table.c[self.uri.key]))).scalar_one()

    def _fetch(self, session: DatabaseSession, after: Key | None, until: Key) -> Any:
        statement = self._page if after is None else self._next_page
        parameters = {"until": until} if after is None else {"until": until, "after": after}
        try:
            return session.run(lambda connection: connection.execute(statement, parameters).fetchall())
        except DatabaseRefusal as error:
            session.run(lambda connection: check_table(connection, self.uri))     # its message is more precise
            beginning = "" if after is None else f" after {self.uri.key} = {after!r}"
            raise DatabaseRefusal(f"{error} It occurred in the first {self.uri.page} rows{beginning}.") from None

    def _wrong_key(self, key: object) -> str:
        return (f"{self.name}: the key {self.uri.key} has the value {key!r}, but must be an integer or text. Fix "
                "the value, or name another key with key=COLUMN.")

    def _check_cursor(self, cursor: Cursor) -> tuple[Key | None, Key | None]:
        if (isinstance(cursor, (list, tuple)) and len(cursor) == 2
                and all(key is None or type(key) in (int, str) for key in cursor)):
            after, until = cursor
            return after, until
        raise DataError(f"{self.name}: {cursor!r} is not a position in a table. Pass a cursor that this source "
                        "returned.")

    def _refuse_row(self, key: Key, *texts: object) -> NoReturn:
        column, text = next((column, text) for column, text in zip((self.uri.source, self.uri.target), texts,
                                                                   strict=True) if type(text) is not str)
        value = "NULL" if text is None else f"{type(text).__name__} instead of text"
        fix = "skip such rows: missing=skip" if text is None else "name other columns: source=COLUMN&target=COLUMN"
        raise DataError(f"{self.name}: the row with {self.uri.key} = {key!r} has {value} in {column}. Fix it, or "
                        f"{fix}")


logger = logging.getLogger(__name__)
_QUOTED = '"(?:[^"]|"")+"'
_TABLE = re.compile(rf"""(?:(?P<schema>.+)\.)?(?P<name>{_QUOTED}|[^."]+)""")


def table_clause(uri: DatabaseURI) -> TableClause:
    """Return the table with its three columns, for statements."""
    import sqlalchemy

    schema, name = schema_and_name(uri)
    columns = dict.fromkeys((uri.key, uri.source, uri.target))
    return sqlalchemy.table(name, *(sqlalchemy.column(column) for column in columns), schema=schema)


def conditions(uri: DatabaseURI) -> list[ColumnElement[bool]]:
    """Return the conditions of the URI: `where` exactly as written, and those that `missing=skip` adds."""
    import sqlalchemy

    skipped = (uri.source, uri.target) if uri.missing == "skip" else ()
    return [*_where(uri), *(sqlalchemy.column(name).is_not(None) for name in skipped)]


def schema_and_name(uri: DatabaseURI) -> tuple[str | None, str]:
    """Return schema and name of the `table` option. A name that contains a dot is in quotation marks, as in SQL."""
    match = _TABLE.fullmatch(uri.table)
    if match is None:
        raise SettingsError(f"{uri.name}: table={uri.table} is not a valid name. Write TABLE or SCHEMA.TABLE, and put "
                            'a name that contains a dot in quotation marks, as in table="a.b".')
    schema, name = match["schema"], match["name"]
    return schema and _unquoted(schema), _unquoted(name)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, name) else name


def check_table(connection: Connection, uri: DatabaseURI) -> None:
    """Check the table, the columns and the condition without reading rows.

    Raises:
        DataError: the table or a column is missing (with the nearest name), the type of the key has no reliable
            order, or the database refuses the condition.
        DBAPIError: the connection was lost.
    """
    import sqlalchemy

    inspector = sqlalchemy.inspect(connection)
    columns = _columns(inspector, uri)
    for option in ("key", "source", "target"):
        column = getattr(uri, option)
        if column not in columns and option == "key" and _is_rowid(connection, uri):
            if _is_view(inspector, uri):
                raise DataError(f"{uri.name}: {uri.table} is a view, whose rows have no {column}. Name a unique column "
                                "with key=COLUMN.")
        elif column not in columns:
            raise DataError(f"{uri.name}: the table {uri.table} has no column '{column}'."
                            f"{suggestion(column, sorted(columns), 'columns')} Name the column with {option}=COLUMN.")
    key_type = columns.get(uri.key, {"type": sqlalchemy.Integer()})["type"]
    if not isinstance(key_type, (sqlalchemy.Integer, sqlalchemy.String, sqlalchemy.types.NullType)):
        raise DataError(f"{uri.name}: the key {uri.key} is {key_type}, but must be an integer or text. Name another "
                        "key with key=COLUMN, or create a view that converts it.")
    _check_condition(connection, uri, list(columns))


def check_rows(connection: Connection, uri: DatabaseURI) -> None:
    """Check that no text and no key is NULL and that keys are unique, unless the schema guarantees it.

    With `missing=skip`, a warning reports the number of rows that are skipped.

    Raises:
        DataError: a text or a key is NULL, or a key is not unique.
        DBAPIError: the connection was lost.
    """
    import sqlalchemy

    inspector = sqlalchemy.inspect(connection)
    columns = _columns(inspector, uri)
    table = table_clause(uri)
    names = [name for name in dict.fromkeys((uri.key, uri.source, uri.target))
             if columns.get(name, {"nullable": False})["nullable"]]
    if names:
        counts = connection.execute(sqlalchemy.select(
            sqlalchemy.func.count(), *(sqlalchemy.func.count(table.c[name]) for name in names)
        ).select_from(table).where(*_where(uri))).one()
        for name, count in zip(names, counts[1:], strict=True):
            _check_nulls(uri, name, counts[0] - count, counts[0])
    # Called in any case, since it logs a warning.
    unique = _is_unique(inspector, uri)
    if uri.key in columns and not (unique and has_exact_collation(connection, *schema_and_name(uri), uri.key)):
        key = table.c[uri.key]
        twice = connection.execute(sqlalchemy.select(key, sqlalchemy.func.count()).where(*conditions(uri))
                                   .group_by(key).having(sqlalchemy.func.count() > 1).limit(1)).first()
        if twice is not None:
            raise DataError(f"{uri.name}: the key {uri.key} is not unique: {twice[0]!r} occurs {twice[1]} times"
                            f"{' (in the comparison of its collation)' if unique else ''}. Name another key with "
                            "key=COLUMN.")


def _check_nulls(uri: DatabaseURI, column: str, nulls: int, rows: int) -> None:
    if not nulls:
        return
    problem = f"{uri.name}: {nulls} of {rows} rows have NULL in {column}"
    if column == uri.key:
        raise DataError(f"{problem}, the key. Fix these rows, or name another key with key=COLUMN.")
    if uri.missing == "skip":
        logger.warning("%s; they are skipped.", problem)
        return
    raise DataError(f"{problem}. Fix these rows, or skip them: missing=skip")


def _where(uri: DatabaseURI) -> list[ColumnElement[bool]]:
    import sqlalchemy

    return [sqlalchemy.literal_column(f"({uri.where})", sqlalchemy.Boolean)] if uri.where else []


def _columns(inspector: Inspector, uri: DatabaseURI) -> dict[str, Any]:
    from sqlalchemy.exc import NoSuchTableError, OperationalError

    schema, name = schema_and_name(uri)
    try:
        columns = {column["name"]: column for column in inspector.get_columns(name, schema)}
    except NoSuchTableError:
        columns = {}
    except OperationalError as error:
        if "unknown database" not in str(error.orig):   # SQLite's message for a missing schema
            raise
        columns = {}
    # SQLite finds a table in any case of letters here, but later queries need its exact name.
    if columns and not (inspector.dialect.name == "sqlite" and name not in _table_names(inspector, schema)):
        return columns
    if schema is not None and uri.table in inspector.get_table_names() + inspector.get_view_names():
        raise DataError(f"{uri.name}: the name of the table contains a dot, which is read as SCHEMA.TABLE. Put it in "
                        f"quotation marks: table=\"{uri.table}\".")
    if schema is not None and schema not in inspector.get_schema_names():
        advice = suggestion(schema, sorted(inspector.get_schema_names()), "schemas")
        raise DataError(f"{uri.name}: schema '{schema}' does not exist.{advice} Name it with table=SCHEMA.TABLE.")
    advice = suggestion(name, sorted(_table_names(inspector, schema)), "tables")
    raise DataError(f"{uri.name}: table '{name}' does not exist.{advice} Name it with table=TABLE.")


def _table_names(inspector: Inspector, schema: str | None) -> list[str]:
    return [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]


def _is_rowid(connection: Connection, uri: DatabaseURI) -> bool:
    """Return whether the key is SQLite's row number, which is not listed among the columns."""
    return uri.key == "rowid" and connection.dialect.name == "sqlite"


def _is_view(inspector: Inspector, uri: DatabaseURI) -> bool:
    schema, name = schema_and_name(uri)
    return name in inspector.get_view_names(schema)


def _check_condition(connection: Connection, uri: DatabaseURI, columns: list[str]) -> None:
    import sqlalchemy

    if not uri.where:
        return
    try:
        connection.execute(sqlalchemy.select(table_clause(uri).c[uri.source]).where(*conditions(uri)).limit(0)).all()
    except sqlalchemy.exc.DBAPIError as error:
        if is_transient(error):
            raise
        raise DataError(f"{uri.name}: the database refuses where={uri.where} ({driver_message(error, uri.url)}). "
                        f"Correct the SQL condition; the columns are {', '.join(columns)}.") from None


def _is_unique(inspector: Inspector, uri: DatabaseURI) -> bool:
    """Return whether the schema ensures that keys are unique. Log a warning if no index leads with the key."""
    if _is_view(inspector, uri):
        return False
    schema, name = schema_and_name(uri)
    # An index over some rows, or over an expression, guarantees nothing.
    indexes = [index for index in inspector.get_indexes(name, schema)
               if not any(key.endswith("_where") for key in index.get("dialect_options", {}))]
    unique: list[list[Any]] = [list(inspector.get_pk_constraint(name, schema)["constrained_columns"])]
    unique += [list(constraint["column_names"]) for constraint in inspector.get_unique_constraints(name, schema)]
    unique += [list(index["column_names"]) for index in indexes if index["unique"]]
    leading = {names[0] for names in [*unique, *(list(index["column_names"]) for index in indexes)] if names}
    if uri.key not in leading and uri.key != "rowid":
        logger.warning("%s: the key %s has no index, so reading a large table is slow. Create one: "
                       "CREATE UNIQUE INDEX ... ON %s (%s).", uri.name, uri.key, uri.table, uri.key)
    return [uri.key] in unique or uri.key == "rowid"


def has_exact_collation(connection: Connection, schema: str | None, table: str, key: str) -> bool:
    """Return whether a unique index over the key ensures that keys differ in the collation of the column."""
    if connection.dialect.name == "sqlite":
        return _sqlite_is_plain(connection, schema, table)
    if connection.dialect.name == "postgresql":
        return _postgresql_is_deterministic(connection, schema, table, key)
    return True


def _sqlite_is_plain(connection: Connection, schema: str | None, table: str) -> bool:
    """Return whether no column has a collation, which SQLite shows only in the text of CREATE TABLE."""
    import sqlalchemy

    master = sqlalchemy.table("sqlite_master", sqlalchemy.column("sql"), sqlalchemy.column("name"), schema=schema)
    words = connection.execute(sqlalchemy.select(master.c.sql).where(
        sqlalchemy.func.lower(master.c.name) == table.lower())).scalar()
    return "collate" not in str(words).lower()


def _postgresql_is_deterministic(connection: Connection, schema: str | None, table: str, key: str) -> bool:
    import sqlalchemy

    if (connection.dialect.server_version_info or (0,)) < (12,):
        return True     # older versions have only deterministic collations
    deterministic = connection.execute(sqlalchemy.text(
        "SELECT c.collisdeterministic FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = t.relnamespace JOIN pg_collation c ON c.oid = a.attcollation "
        "WHERE t.relname = :table AND a.attname = :key AND (n.nspname = :schema OR "
        "(CAST(:schema AS text) IS NULL AND pg_table_is_visible(t.oid)))"),
        {"table": table, "key": key, "schema": schema}).scalar()
    return deterministic is not False
