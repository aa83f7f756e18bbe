"""A table of sentence pairs as a source: SQLite, PostgreSQL, MySQL, MariaDB, or what else SQLAlchemy has a driver for.

Keyset pagination: `WHERE key > :after AND key <= :until ORDER BY key LIMIT :page`. The last key is the place, so
beginning anywhere is one look into the key's index; no transaction is open between two pages; and whatever happens
to the connection, the next page begins after the last key that came. A page is fetched whole before its first pair
is yielded: a connection that is cut in mid-row costs that page's time, and no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.database.connection import DatabaseSession, Refused, make_engine
from towernmt.dataflow.sources.database.database_uri import DatabaseURI, parse_database_uri
from towernmt.dataflow.sources.database.table_check import check_rows, check_table, conditions, table_clause
from towernmt.dataflow.sources.source import Cursor, Pair, Source

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

Key = int | str


def open_database(uri: str) -> Source:
    """The source that a database's URI names; nothing is connected to yet.

    Args:
        uri: SQLAlchemy's URL, with the options table, key (default id), source, target (columns of these names by
            default), where (SQL), missing (error, or skip: rows with NULL for a text), page (rows a query) and
            patience (seconds that a lost server is tried again); other options go to the driver. `postgresql:`
            stands for psycopg, `mysql:` and `mariadb:` for PyMySQL.

    Raises:
        SettingsError: the URI is malformed.
        DataError: a package is missing, or a SQLite file is not there.
    """
    return DatabaseSource(parse_database_uri(uri))


class DatabaseSource(Source):
    """The rows of a table, in the order of a key.

    Attributes:
        uri: of the table.

    A cursor is `[after, until]`: the last key that was read, None at the beginning, and the largest that was there
    when the pass began, None if there was no row. Rows that are added with larger keys belong to the next pass.
    """

    def __init__(self, uri: DatabaseURI) -> None:
        self._uri = self.uri = uri
        self.name = uri.name
        make_engine(uri)    # raises at once if the driver or the file is missing

    def begin(self) -> Cursor:
        """See `Source.begin`. Reads the rows once if the schema lets keys or texts be NULL or keys come twice."""
        with DatabaseSession(self._uri, scan=True) as session:
            session.run(lambda connection: check_table(connection, self._uri))
            session.run(lambda connection: check_rows(connection, self._uri))
            until = session.run(self._largest_key)
        if until is not None and type(until) not in (int, str):
            raise DataError(self._wrong_key(until))
        return [None, until]

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """See `Source.read`."""
        after, until = self._check_cursor(cursor)
        if until is None:
            return
        with DatabaseSession(self._uri) as session:
            while True:
                rows = self._fetch(session, after, until)
                for after, source, target in rows:
                    if type(after) not in (int, str):
                        raise DataError(self._wrong_key(after))
                    if type(source) is not str or type(target) is not str:
                        self._refuse_row(after, source, target)
                    yield [after, until], Pair(source, target)
                if len(rows) < self._uri.page:
                    return

    def count(self) -> int:
        """See `Source.count`: the database counts."""
        import sqlalchemy

        statement = sqlalchemy.select(sqlalchemy.func.count()).select_from(self._table).where(*conditions(self._uri))
        with DatabaseSession(self._uri, scan=True) as session:
            session.run(lambda connection: check_table(connection, self._uri))
            return int(session.run(lambda connection: connection.execute(statement).scalar_one()))

    @cached_property
    def _table(self) -> Any:
        return table_clause(self._uri)

    @cached_property
    def _page(self) -> Select[Any]:
        import sqlalchemy

        columns = self._table.c
        key = columns[self._uri.key]
        # Without a type of ours, the database compares in the key's own: its width, its collation.
        return (sqlalchemy.select(key, columns[self._uri.source], columns[self._uri.target])
                .where(key <= sqlalchemy.bindparam("until"), *conditions(self._uri))
                .order_by(key).limit(self._uri.page))

    @cached_property
    def _next_page(self) -> Select[Any]:
        import sqlalchemy

        return self._page.where(self._table.c[self._uri.key] > sqlalchemy.bindparam("after"))

    def _largest_key(self, connection: Connection) -> Any:
        import sqlalchemy

        return connection.execute(sqlalchemy.select(sqlalchemy.func.max(self._table.c[self._uri.key]))).scalar_one()

    def _fetch(self, session: DatabaseSession, after: Key | None, until: Key) -> Any:
        statement = self._page if after is None else self._next_page
        place = {"until": until} if after is None else {"until": until, "after": after}
        try:
            return session.run(lambda connection: connection.execute(statement, place).fetchall())
        except Refused:
            session.run(lambda connection: check_table(connection, self._uri))     # knows better what is missing
            raise

    def _wrong_key(self, key: object) -> str:
        return (f"{self.name}: the key {self._uri.key} has the value {key!r}, but must be an integer or text. Mend "
                "it, or choose another by key=COLUMN.")

    def _check_cursor(self, cursor: Cursor) -> tuple[Key | None, Key | None]:
        if (isinstance(cursor, (list, tuple)) and len(cursor) == 2
                and all(each is None or type(each) in (int, str) for each in cursor)):
            after, until = cursor
            return after, until
        raise DataError(f"{self.name}: {cursor!r} is not a place in a table. Take the cursor that this source gave.")

    def _refuse_row(self, key: Key, *texts: object) -> NoReturn:
        column, text = next((column, text) for column, text in zip((self._uri.source, self._uri.target), texts,
                                                                   strict=True) if type(text) is not str)
        what = "NULL" if text is None else f"{type(text).__name__} and not text"
        mend = "pass over such rows: missing=skip" if text is None else "choose source=COLUMN and target=COLUMN."
        raise DataError(f"{self.name}: the row with {self._uri.key} = {key!r} has {what} in {column}. Mend it, or "
                        f"{mend}")
