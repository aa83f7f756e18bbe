"""The URI of a table of sentence pairs: SQLAlchemy's URL, with options that name the table, its columns and conditions.

Example: `postgresql://me@host/corpus?table=pairs&key=id&source=de&target=en&where=score>0.7`. All options that are not
in `OPTIONS` are passed to the driver.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from towernmt.core.errors import ALMOST_EQUAL, HIDDEN, DataError, SettingsError, mask_uri, nearest

if TYPE_CHECKING:
    from sqlalchemy import URL

OPTIONS = ("table", "key", "source", "target", "where", "missing", "page", "patience")
PAGE_ROWS = 1000    # nearly as fast as 500 rows on the same machine, with half the round trips; 4000 rows are slower
PATIENCE_SECONDS = 120.0
_LARGEST_NUMBER = 1_000_000_000     # of rows and seconds; larger ones overflow in drivers and sockets

_DEFAULT_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_SHOWN_DRIVER_OPTIONS = ("host", "port", "unix_socket", "service", "charset", "sslmode")


@dataclass(frozen=True)
class DatabaseURI:
    """The content of a URI.

    Attributes:
        url: address of the database for SQLAlchemy, with the password if the URI has one.
        name: the URI without password and secrets of the driver. It opens the same table if the environment or the
            driver's files have the credentials.
        table: the table or view, with its schema before a dot if it has one.
        key: the column that orders the rows: unique, integer or text.
        source, target: the columns of the texts.
        where: an SQL condition that selects rows; empty for all rows.
        missing: "error" to refuse, or "skip" to skip rows in which a text is NULL.
        page: number of rows of a query.
        patience: seconds of retries if the database is lost.
    """

    url: URL = field(repr=False)
    name: str
    table: str
    key: str = "id"
    source: str = "source"
    target: str = "target"
    where: str = ""
    missing: str = "error"
    page: int = PAGE_ROWS
    patience: float = PATIENCE_SECONDS


def parse_database_uri(uri: str) -> DatabaseURI:
    """Parse the URI of a table.

    Raises:
        SettingsError: the URI is malformed, lacks a table, or repeats an option. The message contains no password.
        DataError: SQLAlchemy is not installed.
    """
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        raise DataError(f"{mask_uri(uri).partition('?')[0]}: the package 'sqlalchemy' is missing. "
                        "Install it: pip install 'towernmt[sql]'") from error
    address, _, query = uri.partition("?")
    try:
        url = make_url(address)
        if not all(re.fullmatch(r"\w+", option) for option, _ in _pairs(query)):
            raise ValueError
    except (ArgumentError, ValueError):     # its message may show the password
        raise SettingsError(f"{mask_uri(uri).partition('?')[0]}: not a valid URI of a database. Write "
                        "DIALECT://USER@HOST:PORT/DATABASE?table=TABLE, and write @ : / and ? in a password as "
                        "%40 %3A %2F and %3F.") from None
    masked = mask_uri(address)
    if "@" in (url.host or ""):
        raise SettingsError(f"{masked}: more than one @ precedes the host. Write an @ in a password as %40.")
    options, driver_options = _split_options(query, masked)
    url = url.set(drivername=_DEFAULT_DRIVERS.get(url.drivername, url.drivername)).update_query_pairs(driver_options)
    if url.password is None and url.get_backend_name() in ("mysql", "mariadb") and os.environ.get("MYSQL_PWD"):
        url = url.set(password=os.environ["MYSQL_PWD"])     # MySQL's programs read this variable, the drivers do not
    numbers = {"page": _parse_positive(options.pop("page", str(PAGE_ROWS)), "page", int, masked),
               "patience": _parse_positive(options.pop("patience", str(PATIENCE_SECONDS)), "patience", float, masked)}
    if options.get("missing", "error") not in ("error", "skip"):
        raise SettingsError(f"{masked}: missing={options['missing']}: expected error or skip.")
    if not options.get("table"):
        raise SettingsError(f"{masked}: the table is missing. Add the option table=TABLE.")
    return DatabaseURI(url=url, name=_public_name(address, url, query), **options, **numbers)  # type: ignore[arg-type]


def _pairs(query: str) -> list[tuple[str, str]]:
    items = [item.partition("=") for item in query.split("&") if item]
    return [(name, unquote(value)) for name, _, value in items]


def _split_options(query: str, masked_uri: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    options: dict[str, str] = {}
    driver_options: list[tuple[str, str]] = []
    for name, value in _pairs(query):
        if name not in OPTIONS:
            near = nearest(name, OPTIONS, ALMOST_EQUAL)
            if near:
                raise SettingsError(f"{masked_uri}: option '{name}' does not exist. Did you mean '{near}'?")
            driver_options.append((name, value))
        elif name in options:
            raise SettingsError(f"{masked_uri}: option '{name}' occurs twice. Remove one; write an & in a value as "
                                "%26.")
        else:
            options[name] = value
    return options, driver_options


def _parse_positive(text: str, option: str, kind: type[int] | type[float], masked_uri: str) -> int | float:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number <= _LARGEST_NUMBER:
        raise SettingsError(f"{masked_uri}: {option}={text} is not a positive number up to {_LARGEST_NUMBER:,}. "
                        f"Write, for example, {option}={PAGE_ROWS if option == 'page' else int(PATIENCE_SECONDS)}.")
    return number


def _public_name(address: str, url: URL, query: str) -> str:
    """Return the URI without the password, with its options in a fixed order."""
    user = f"{address.partition('://')[2].partition('@')[0].partition(':')[0]}@" if url.username else ""
    host_and_path = mask_uri(address).partition("://")[2].removeprefix(f"{HIDDEN}@")
    values = dict(_pairs(query))
    public_options = [f"{option}={re.sub('[%&]', lambda match: f'%{ord(match[0]):02X}', values[option])}"
                      for option in (*_SHOWN_DRIVER_OPTIONS, *OPTIONS[:6]) if option in values]
    return f"{address.partition('://')[0]}://{user}{host_and_path}?{'&'.join(public_options)}"
