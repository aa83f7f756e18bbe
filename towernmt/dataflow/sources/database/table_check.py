"""Checks that a table can be read as a corpus: table, columns and condition exist, and the key orders the rows."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.database.collation import keeps_apart
from towernmt.dataflow.sources.database.database_uri import DatabaseURI, nearest
from towernmt.dataflow.sources.database.driver_errors import may_pass, reason

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Inspector, TableClause

logger = logging.getLogger(__name__)
_QUOTED = '"(?:[^"]|"")+"'
_TABLE = re.compile(rf"""(?:(?P<schema>.+)\.)?(?P<name>{_QUOTED}|[^."]+)""")


def table_clause(uri: DatabaseURI) -> TableClause:
    """The table with the three columns, for statements."""
    import sqlalchemy

    schema, name = schema_and_name(uri)
    columns = dict.fromkeys((uri.key, uri.source, uri.target))
    return sqlalchemy.table(name, *(sqlalchemy.column(column) for column in columns), schema=schema)


def conditions(uri: DatabaseURI) -> list[ColumnElement[bool]]:
    """The URI's `where`, word for word, and what `missing=skip` means."""
    import sqlalchemy

    skipped = (uri.source, uri.target) if uri.missing == "skip" else ()
    return [*_where(uri), *(sqlalchemy.column(name).is_not(None) for name in skipped)]


def schema_and_name(uri: DatabaseURI) -> tuple[str | None, str]:
    """The two parts of the `table` option; a part with a dot in it is written in quotation marks, as in SQL."""
    match = _TABLE.fullmatch(uri.table)
    if match is None:
        raise SettingsError(f"{uri.name}: table={uri.table} is no name. Write TABLE or SCHEMA.TABLE, and a name with a "
                            'dot in it in quotation marks, as in table="a.b".')
    schema, name = match["schema"], match["name"]
    return schema and _unquoted(schema), _unquoted(name)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, name) else name


def check_table(connection: Connection, uri: DatabaseURI) -> None:
    """Check what can be checked without reading rows, and warn if the key has no index.

    Raises:
        DataError: the table or a column is missing (with the nearest name), the key's type has no order to
            rely on, or the database refuses the condition.
        DBAPIError: the connection was lost.
    """
    import sqlalchemy

    inspector = sqlalchemy.inspect(connection)
    columns = _columns(inspector, uri)
    for option in ("key", "source", "target"):
        column = getattr(uri, option)
        if column not in columns and option == "key" and _is_rowid(connection, uri):
            if _is_view(inspector, uri):
                raise DataError(f"{uri.name}: {uri.table} is a view, whose rows have no {column}. Choose a column that "
                                "numbers them by key=COLUMN.")
        elif column not in columns:
            raise DataError(f"{uri.name}: the table {uri.table} has no column '{column}'. "
                            f"{nearest(column, columns)}Choose it by {option}=COLUMN.")
    key_type = columns.get(uri.key, {"type": sqlalchemy.Integer()})["type"]
    if not isinstance(key_type, (sqlalchemy.Integer, sqlalchemy.String, sqlalchemy.types.NullType)):
        raise DataError(f"{uri.name}: the key {uri.key} is {key_type}, but must be an integer or text. Choose another "
                        "by key=COLUMN, or make a view that converts it.")
    _check_condition(connection, uri, list(columns))


def check_rows(connection: Connection, uri: DatabaseURI) -> None:
    """Check that no text and no key is NULL and that no key is there twice, where the schema does not promise it.

    With `missing=skip`, a warning tells how many rows without a text are passed over.

    Raises:
        DataError: such a row is there.
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
            _judge_nulls(uri, name, counts[0] - count, counts[0])
    # Asked for even where there is no doubt, since it warns.
    unique = _is_unique(inspector, uri)
    if uri.key in columns and not (unique and keeps_apart(connection, *schema_and_name(uri), uri.key)):
        key = table.c[uri.key]
        twice = connection.execute(sqlalchemy.select(key, sqlalchemy.func.count()).where(*conditions(uri))
                                   .group_by(key).having(sqlalchemy.func.count() > 1).limit(1)).first()
        if twice is not None:
            raise DataError(f"{uri.name}: the key {uri.key} is not unique: {twice[0]!r} is there {twice[1]} times"
                            f"{' (as its collation compares)' if unique else ''}. Choose another by key=COLUMN.")


def _judge_nulls(uri: DatabaseURI, column: str, nulls: int, rows: int) -> None:
    if not nulls:
        return
    found = f"{uri.name}: {nulls} of {rows} rows have NULL in {column}"
    if column == uri.key:
        raise DataError(f"{found}, the key. Mend them, or choose another key by key=COLUMN.")
    if uri.missing == "skip":
        logger.warning("%s; they are passed over.", found)
        return
    raise DataError(f"{found}. Mend them, or pass over such rows: missing=skip")


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
        if "unknown database" not in str(error.orig):   # what SQLite calls a schema that is not there
            raise
        columns = {}
    # SQLite finds a table in any case of letters here, but later queries need its exact name.
    if columns and not (inspector.dialect.name == "sqlite" and name not in _names(inspector, schema)):
        return columns
    if schema is not None and uri.table in inspector.get_table_names() + inspector.get_view_names():
        raise DataError(f"{uri.name}: the name of the table has a dot in it, which is taken for SCHEMA.TABLE. Write it "
                        f"in quotation marks: table=\"{uri.table}\".")
    if schema is not None and schema not in inspector.get_schema_names():
        raise DataError(f"{uri.name}: there is no schema '{schema}'. {nearest(schema, inspector.get_schema_names())}"
                        "Choose it by table=SCHEMA.TABLE.")
    raise DataError(f"{uri.name}: there is no table '{name}'. {nearest(name, _names(inspector, schema))}Choose it by "
                    "table=TABLE.")


def _names(inspector: Inspector, schema: str | None) -> list[str]:
    return [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]


def _is_rowid(connection: Connection, uri: DatabaseURI) -> bool:
    """Whether the key is SQLite's own number of a row, which a table need not name."""
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
        if may_pass(error):
            raise
        raise DataError(f"{uri.name}: the database refuses where={uri.where} ({reason(error, uri.url)}). It is SQL; "
                        f"the columns are {', '.join(columns)}.") from None


def _is_unique(inspector: Inspector, uri: DatabaseURI) -> bool:
    """Whether the schema says so; warns if no index helps to find a key, which makes each page read the table."""
    if _is_view(inspector, uri):
        return False
    schema, name = schema_and_name(uri)
    # An index over some rows, or over an expression, promises nothing.
    indexes = [index for index in inspector.get_indexes(name, schema)
               if not any(key.endswith("_where") for key in index.get("dialect_options", {}))]
    unique: list[list[Any]] = [list(inspector.get_pk_constraint(name, schema)["constrained_columns"])]
    unique += [list(each["column_names"]) for each in inspector.get_unique_constraints(name, schema)]
    unique += [list(index["column_names"]) for index in indexes if index["unique"]]
    leading = {names[0] for names in [*unique, *(list(index["column_names"]) for index in indexes)] if names}
    if uri.key not in leading and uri.key != "rowid":
        logger.warning("%s: the key %s has no index, so that reading gets slow as the table grows: "
                       "CREATE UNIQUE INDEX ... ON %s (%s).", uri.name, uri.key, uri.table, uri.key)
    return [uri.key] in unique or uri.key == "rowid"
