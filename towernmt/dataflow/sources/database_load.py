"""Load the pairs of any source into a database table, in batches, each pair once.

The table `towernmt_load` of the same database records the progress, in the transaction that inserts a batch. So a
killed process leaves complete batches and the cursor after them; and if a connection is lost during a commit, the
record shows whether the batch was inserted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.line_progress import LineProgress
from towernmt.dataflow.sources.database_connection import DatabaseRefusal, DatabaseSession
from towernmt.dataflow.sources.database_table import check_table, schema_and_name, table_clause
from towernmt.dataflow.sources.database_uri import DatabaseURI, parse_database_uri
from towernmt.dataflow.sources.source import Cursor, Pair, Source

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

BATCH_PAIRS = 5000
RECORD_TABLE = "towernmt_load"


class LoadResult(NamedTuple):
    """The result of `load_table`.

    Attributes:
        pairs: number of rows of this source in the table.
        new: number of these rows that this call inserted.
        table: the table's name, without credentials.
    """

    pairs: int
    new: int
    table: str


def load_table(source: Source, uri: str, batch: int = BATCH_PAIRS, stream: TextIO | None = None) -> LoadResult:
    """Insert all pairs of a source into a table, or resume an interrupted call.

    Args:
        source: the pairs.
        uri: the table (see `open_database`). A missing table is created, with an auto-incremented key and two texts.
        batch: number of rows in a transaction.
        stream: stream for the progress; None to write no progress.

    Raises:
        SettingsError: the URI or the batch size is not valid.
        DataError: source or database cannot be read or written, another process loads the same source, the source has
            changed since it was loaded, or the rows that were loaded are missing.
    """
    if batch < 1:
        raise SettingsError(f"--batch {batch}: expected 1 pair or more.")
    target = parse_database_uri(uri)
    if target.where:
        raise SettingsError(f"{target.name}: the option where selects rows to read, but this command inserts rows. "
                            "Remove the option.")
    with DatabaseSession(target, write=True) as session:
        return _TableLoader(source, target, session).run(batch, stream)


@dataclass
class _TableLoader:
    source: Source
    target: DatabaseURI
    session: DatabaseSession

    def run(self, batch: int, stream: TextIO | None) -> LoadResult:
        begin = self.source.begin()
        prepare = partial(self._prepare, begin)
        try:
            record = self.session.run(prepare)
        except DatabaseRefusal:     # another process may have created the same tables in the meantime
            record = self.session.run(prepare)
        if record["begin"] != json.dumps(begin) and record["done"]:
            raise DataError(f"{self.source.name} has changed since it was loaded into {self.target.name}. Load it "
                            "into another table, or drop that table and start again.")
        if not record["done"] and self._is_same_table():
            self.session.run(self._delete_record)
            raise DataError(f"{self.source.name} is the table {self.target.name} itself, so each pair would be "
                            "duplicated. Load the pairs into another table.")
        before = pairs = int(record["pairs"])
        if pairs and self.session.run(self._is_empty):
            raise DataError(f"{self.target.name} is empty, but the table {RECORD_TABLE} records {pairs:,} pairs of "
                            f"{self.source.name} in it. To load them again, drop the table, or delete the rows of "
                            f"{RECORD_TABLE} with the name '{self.target.table}'.")
        progress = LineProgress("loading", stream=stream)
        if not record["done"]:
            items = self.source.read(json.loads(record["place"]))
            for cursor, rows in _row_batches(items, batch):
                try:
                    self.session.run(self._insertion(rows, pairs, cursor))
                except DatabaseRefusal as error:
                    raise DatabaseRefusal(f"{error} It refused pairs {pairs + 1:,} to {pairs + len(rows):,} of "
                                          f"{self.source.name}.") from None
                pairs += len(rows)
                progress.update(pairs)
            self.session.run(self._insertion([], pairs, None))
            progress.done()
        return LoadResult(pairs, pairs - before, self.target.name)

    def _prepare(self, begin: Cursor, connection: Connection) -> dict[str, Any]:
        """Create the missing tables, and return the record of this load."""
        import sqlalchemy

        records = _records(self.target)
        schema, name = schema_and_name(self.target)
        with connection.begin():
            records.create(connection, checkfirst=True)
        with connection.begin():
            exists = sqlalchemy.inspect(connection).has_table(name, schema)
            if not exists:   # delete the records of a table of this name that was dropped
                connection.execute(records.delete().where(records.c.name == self.target.table))
        with connection.begin():
            if not exists:
                _new_table(self.target).create(connection)
            check_table(connection, self.target)
            return dict(self._find_record(connection, records) or self._insert_record(connection, records, begin))

    def _find_record(self, connection: Connection, records: Table) -> Any:
        return connection.execute(records.select().where(records.c.load == self._identity())).mappings().first()

    def _insert_record(self, connection: Connection, records: Table, begin: Cursor) -> dict[str, Any]:
        record = {"load": self._identity(), "source": self.source.name, "name": self.target.table, "pairs": 0,
                  "begin": json.dumps(begin), "place": json.dumps(begin), "done": 0}
        connection.execute(records.insert(), record)
        return record

    def _is_same_table(self) -> bool:
        """Return whether the source is the loaded table. Its URI may differ, but its database contains our record."""
        uri = getattr(self.source, "uri", None)
        if not isinstance(uri, DatabaseURI) or _kind_and_table(uri) != _kind_and_table(self.target):
            return False

        def has_record(connection: Connection) -> bool:
            import sqlalchemy

            return (sqlalchemy.inspect(connection).has_table(RECORD_TABLE, schema_and_name(uri)[0])
                    and self._find_record(connection, _records(uri)) is not None)

        with DatabaseSession(uri) as session:
            return session.run(has_record)

    def _is_empty(self, connection: Connection) -> bool:
        with connection.begin():
            return connection.execute(table_clause(self.target).select().limit(1)).first() is None

    def _delete_record(self, connection: Connection) -> None:
        records = _records(self.target)
        with connection.begin():
            connection.execute(records.delete().where(records.c.load == self._identity()))

    def _insertion(self, rows: list[Pair], pairs: int, cursor: Cursor) -> Any:
        """Return the function that inserts `rows` after the first `pairs` rows, or without rows, ends the load."""
        records, table = _records(self.target), table_clause(self.target)
        done = {"done": 1} if not rows else {"pairs": pairs + len(rows), "place": json.dumps(cursor)}
        values = [{self.target.source: pair.source, self.target.target: pair.target} for pair in rows]
        is_retry = False

        def work(connection: Connection) -> None:
            nonlocal is_retry
            with connection.begin():
                record = self._find_record(connection, records)
                if is_retry and record is not None and rows and record["pairs"] == pairs + len(rows):
                    return      # the connection was lost after the transaction was committed
                is_retry = True
                updated = connection.execute(records.update().values(done).where(
                    records.c.load == self._identity(), records.c.pairs == pairs)).rowcount
                if updated != 1:
                    raise DataError(f"{self.target.name}: another process loads {self.source.name} into this table. "
                                    "Wait for that process, or end it and start again.")
                if values:
                    connection.execute(table.insert(), values)

        return work

    def _identity(self) -> str:
        return hashlib.sha256(f"{self.source.name}\n{self.target.table}".encode()).hexdigest()


def _kind_and_table(uri: DatabaseURI) -> tuple[str, str]:
    return uri.url.get_backend_name(), schema_and_name(uri)[1].lower()


def _row_batches(items: Iterator[tuple[Cursor, Pair]], size: int) -> Iterator[tuple[Cursor, list[Pair]]]:
    while batch := list(islice(items, size)):
        yield batch[-1][0], [pair for _, pair in batch]


def _new_table(uri: DatabaseURI) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text
    from sqlalchemy.dialects import mysql

    schema, name = schema_and_name(uri)
    # SQLite increments a key only in a column of exactly this type. MySQL's TEXT is limited to 64 KiB.
    number = BigInteger().with_variant(Integer(), "sqlite")
    text = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    return Table(name, MetaData(schema=schema), Column(uri.key, number, primary_key=True, autoincrement=True),
                 Column(uri.source, text, nullable=False), Column(uri.target, text, nullable=False),
                 mysql_engine="InnoDB", mysql_charset="utf8mb4", mariadb_engine="InnoDB", mariadb_charset="utf8mb4")


def _records(uri: DatabaseURI) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

    schema, _ = schema_and_name(uri)
    return Table(RECORD_TABLE, MetaData(schema=schema), Column("load", String(64), primary_key=True),
                 Column("source", Text, nullable=False), Column("name", String(255), nullable=False),
                 Column("pairs", BigInteger, nullable=False), Column("begin", Text, nullable=False),
                 Column("place", Text, nullable=False), Column("done", Integer, nullable=False),
                 mysql_engine="InnoDB", mysql_charset="utf8mb4", mariadb_engine="InnoDB", mariadb_charset="utf8mb4")
