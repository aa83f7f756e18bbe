"""A connection to a database that comes back: lost ones are made anew, with back-off, for a bounded time."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.dataflow.sources.database_errors import may_pass, reason, refused_credentials
from towernmt.dataflow.sources.database_uri import DatabaseURI
from towernmt.errors import DataError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import DBAPIError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0   # seconds
_EXTRAS = {"psycopg": "postgresql", "pymysql": "mysql"}
# A server that vanishes without a word (power, cable) must not hang a feeder for ever. Seconds; for tcp_user_timeout
# milliseconds.
_POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
               "tcp_user_timeout": 60_000}
_PYMYSQL = {"connect_timeout": 10, "read_timeout": 600, "write_timeout": 60}


class Refused(DataError):
    """The database answered, and the answer was no: trying again will not help."""


def make_engine(uri: DatabaseURI, write: bool = False) -> Engine:
    """SQLAlchemy's engine; it keeps no connections.

    Args:
        uri: where.
        write: with transactions, and in a new file if it is SQLite; else every statement stands for itself, so
            that none is open between two.

    Raises:
        DataError: the driver's package is missing, there is no such dialect, or no such SQLite file.
    """
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    if uri.url.get_backend_name() == "sqlite" and not write:
        _check_file(uri)
    options: dict[str, Any] = {} if write else {"isolation_level": "AUTOCOMMIT"}
    try:
        return sqlalchemy.create_engine(uri.url, poolclass=NullPool, hide_parameters=True,
                                        connect_args=_connect_arguments(uri.url, write), **options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = f"'towernmt[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise DataError(f"{uri.name}: needs the package '{package}'. Install it: pip install {extra}") from error
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise DataError(f"{uri.name}: SQLAlchemy knows no database '{uri.url.drivername}'. Write sqlite, postgresql, "
                        "mysql or mariadb, or install the package of that dialect.") from error


class Session:
    """One connection, made when it is needed and made anew when it is lost. To be used by one thread at a time."""

    def __init__(self, engine: Engine, uri: DatabaseURI) -> None:
        self._engine, self._uri = engine, uri
        self._connection: Connection | None = None
        self._wait = random.Random()    # of its own: the jitter must not touch anybody's seeded numbers

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self._drop()

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """`work(connection)`, all of it again if the connection was lost on the way.

        Raises:
            Refused: the database says no: credentials, names, SQL.
            DataError: it was not to be reached for as long as the URI's `patience`.
        """
        from sqlalchemy.exc import DBAPIError

        since, attempt = 0.0, 0
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                result = work(self._connection)
            except DBAPIError as error:
                self._drop()
                if not may_pass(error):
                    raise self._refusal(error) from None    # the driver's own may show the password
                now = time.monotonic()
                since = since or now
                self._give_up_or_wait(error, now - since, attempt)
                attempt += 1
            else:
                if attempt:
                    logger.warning("%s: reached again after %.1f s.", self._uri.name, time.monotonic() - since)
                return result

    def _connect(self) -> Connection:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return self._engine.connect()
        except SQLAlchemyError:
            raise
        except (TypeError, ValueError, RuntimeError, OSError) as error:     # drivers that check their options
            raise Refused(f"{self._uri.name}: the driver cannot connect ({reason(error, self._uri.url)}). "
                          "Check the options of the URI.") from None

    def _give_up_or_wait(self, error: DBAPIError, lost: float, attempt: int) -> None:
        why, patience = reason(error, self._uri.url), self._uri.patience
        if lost >= patience:
            raise DataError(f"{self._uri.name}: not to be reached for {lost:.0f} s ({why}). Start the server or mend "
                            "the network, and start again; patience=SECONDS in the URI waits longer.") from None
        if not attempt:
            logger.warning("%s: lost (%s); trying again for %.0f s.", self._uri.name, why, patience)
        wait = min(_FIRST_WAIT * 2.0 ** min(attempt, 10), _LONGEST_WAIT) * self._wait.uniform(0.5, 1.0)
        time.sleep(min(wait, patience - lost))

    def _refusal(self, error: DBAPIError) -> Refused:
        why = reason(error, self._uri.url)
        if refused_credentials(error):
            return Refused(f"{self._uri.name}: the database refuses this user or password ({why}). Give the right "
                           "ones in the environment (PGPASSWORD, MYSQL_PWD), in the driver's own file (~/.pgpass) or "
                           "in the URI, and the right to SELECT.")
        return Refused(f"{self._uri.name}: the database refuses ({why}). Check the URI.")

    def _drop(self) -> None:
        from sqlalchemy.exc import DBAPIError

        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except DBAPIError:      # it was lost already; what it was needed for has been told
            connection.invalidate()


def _connect_arguments(url: URL, write: bool) -> dict[str, Any]:
    driver, given = url.get_driver_name(), url.normalized_query
    if driver in ("psycopg", "psycopg2"):
        return {name: value for name, value in _POSTGRESQL.items() if name not in given}
    if driver == "pymysql":
        arguments = {name: value for name, value in _PYMYSQL.items() if name not in given}
        if write:   # a text that does not fit is an error, and not cut off with a warning
            arguments["init_command"] = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"   # type: ignore[assignment]
        return arguments
    if url.get_backend_name() == "sqlite" and driver == "pysqlite":
        return {"check_same_thread": False}     # an iterator may be taken on by another thread
    return {}


def _check_file(uri: DatabaseURI) -> None:
    """SQLite would make a file that is not there."""
    name = uri.url.database or ""
    if not name or name == ":memory:" or name.startswith("file:"):
        return
    path = Path(name)
    if path.is_file():
        return
    folder = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, folder, n=1)
    raise DataError(f"{uri.name}: there is no file {name}. " + (f"Did you mean {near[0]}?" if near else
                    "Check the path; sqlite:/// begins a relative one, sqlite://// an absolute one."))
