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
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.database_connection import DatabaseSession
from towernmt.dataflow.sources.database_table import check_table, schema_and_name, table_clause
from towernmt.dataflow.sources.database_uri import DatabaseURI, parse_database_uri
from towernmt.dataflow.sources.source import Cursor, Pair, Source
from towernmt.dataflow.text.text_lines import LineProgress

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

BATCH_PAIRS = 5000
RECORD_TABLE = "towernmt_load"


class Loaded(NamedTuple):
    """The result of `load`.

    Attributes:
        pairs: number of rows of this source in the table.
        new: number of these rows that this call inserted.
        table: the table's name, without credentials.
    """

    pairs: int
    new: int
    table: str


def load(source: Source, uri: str, batch: int = BATCH_PAIRS, stream: TextIO | None = None) -> Loaded:
    """Put all pairs of a source into a table, or go on where an earlier call was interrupted.

    Args:
        source: the pairs.
        uri: the table (see `open_database`), made if it is not there: a key that counts, and two texts.
        batch: rows a transaction.
        stream: where progress is written; None: nowhere.
    Raises:
        SettingsError: the URI or the batch cannot be.
        DataError: source or database cannot be read or written, another process loads the same, or the source has
            changed since it was loaded.
    """
    if batch < 1:
        raise SettingsError(f"--batch {batch}: a batch has one pair or more. Give a larger number.")
    target = parse_database_uri(uri)
    if target.where:
        raise SettingsError(f"{target.name}: rows are put into a table, not chosen. Leave out the option where.")
    with DatabaseSession(target, write=True) as session:
        return _Loading(source, target, session).run(batch, stream)


@dataclass
class _Loading:
    source: Source
    target: DatabaseURI
    session: DatabaseSession

    def run(self, batch: int, stream: TextIO | None) -> Loaded:
        begin = self.source.begin()
        record = self.session.run(lambda connection: self._prepare(connection, begin))
        if record["begin"] != json.dumps(begin) and record["done"]:
            raise DataError(f"{self.source.name} was loaded into {self.target.name}, and has changed since. Load it "
                            "into another table, or drop that one and start again.")
        if not record["done"] and self._is_itself():
            self.session.run(self._forget)
            raise DataError(f"{self.source.name} is the table {self.target.name} itself, whose pairs would all be "
                            "there twice. Load them into another table.")
        before = pairs = int(record["pairs"])
        progress = LineProgress("loading", stream=stream)
        if not record["done"]:
            items = self.source.read(json.loads(record["place"]))
            for cursor, rows in _batches(items, batch):
                self.session.run(self._step(rows, pairs, cursor))
                pairs += len(rows)
                progress.update(pairs)
            self.session.run(self._step([], pairs, None))
            progress.done()
        return Loaded(pairs, pairs - before, self.target.name)

    def _prepare(self, connection: Connection, begin: Cursor) -> dict[str, Any]:
        """Make what is not there, and return the record of this loading."""
        import sqlalchemy

        records = _records(self.target)
        schema, name = schema_and_name(self.target)
        with connection.begin():
            records.create(connection, checkfirst=True)
        with connection.begin():
            there = sqlalchemy.inspect(connection).has_table(name, schema)
            if not there:   # forget the records of a table of this name that was dropped
                connection.execute(records.delete().where(records.c.name == self.target.table))
        with connection.begin():
            if not there:
                _new_table(self.target).create(connection)
            check_table(connection, self.target)
            return dict(self._find(connection, records) or self._first(connection, records, begin))

    def _find(self, connection: Connection, records: Table) -> Any:
        return connection.execute(records.select().where(records.c.load == self._identity())).mappings().first()

    def _first(self, connection: Connection, records: Table, begin: Cursor) -> dict[str, Any]:
        record = {"load": self._identity(), "source": self.source.name, "name": self.target.table, "pairs": 0,
                  "begin": json.dumps(begin), "place": json.dumps(begin), "done": 0}
        connection.execute(records.insert(), record)
        return record

    def _is_itself(self) -> bool:
        """Return whether the source is the loaded table. Its database may have another URI, but contains our record."""
        uri = getattr(self.source, "uri", None)
        if not isinstance(uri, DatabaseURI) or _kind_and_table(uri) != _kind_and_table(self.target):
            return False

        def has_record(connection: Connection) -> bool:
            import sqlalchemy

            return (sqlalchemy.inspect(connection).has_table(RECORD_TABLE, schema_and_name(uri)[0])
                    and self._find(connection, _records(uri)) is not None)

        with DatabaseSession(uri) as session:
            return session.run(has_record)

    def _forget(self, connection: Connection) -> None:
        records = _records(self.target)
        with connection.begin():
            connection.execute(records.delete().where(records.c.load == self._identity()))

    def _step(self, rows: list[Pair], pairs: int, cursor: Cursor) -> Any:
        """The work that inserts `rows` behind the first `pairs`; without rows, the one that says it is all."""
        records, table = _records(self.target), table_clause(self.target)
        done = {"done": 1} if not rows else {"pairs": pairs + len(rows), "place": json.dumps(cursor)}
        values = [{self.target.source: pair.source, self.target.target: pair.target} for pair in rows]
        tried = False

        def work(connection: Connection) -> None:
            nonlocal tried
            with connection.begin():
                found = self._find(connection, records)
                if tried and found is not None and rows and found["pairs"] == pairs + len(rows):
                    return      # the connection was lost, but only after the transaction was over
                tried = True
                moved = connection.execute(records.update().values(done).where(
                    records.c.load == self._identity(), records.c.pairs == pairs)).rowcount
                if moved != 1:
                    raise DataError(f"{self.target.name}: another process loads {self.source.name} into it. Wait for "
                                    "that one, or end it and start again.")
                if values:
                    connection.execute(table.insert(), values)

        return work

    def _identity(self) -> str:
        return hashlib.sha256(f"{self.source.name}\n{self.target.table}".encode()).hexdigest()


def _kind_and_table(uri: DatabaseURI) -> tuple[str, str]:
    return uri.url.get_backend_name(), schema_and_name(uri)[1].lower()


def _batches(items: Iterator[tuple[Cursor, Pair]], size: int) -> Iterator[tuple[Cursor, list[Pair]]]:
    while batch := list(islice(items, size)):
        yield batch[-1][0], [pair for _, pair in batch]


def _new_table(uri: DatabaseURI) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text
    from sqlalchemy.dialects import mysql

    schema, name = schema_and_name(uri)
    # SQLite counts by itself in a column of exactly this type. MySQL's TEXT ends at 64 KiB.
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
