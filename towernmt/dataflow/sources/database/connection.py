"""A connection to a database that is made again when it is lost, with back-off, for a bounded time."""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.database.answer_timeout import AnswerTimeout
from towernmt.dataflow.sources.database.database_uri import DatabaseURI
from towernmt.dataflow.sources.database.driver_errors import may_pass, reason, refused_credentials

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0   # seconds
_EXTRAS = {"psycopg": "postgresql", "pymysql": "mysql"}
# A server that vanishes without a word (power, cable) must not hang a feeder for ever. Seconds; for tcp_user_timeout
# milliseconds.
_POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
               "tcp_user_timeout": 60_000}
_LONGEST_LOCK, _SHORTEST_ANSWER = 10.0, 3.0     # seconds
# So many times `patience` may a statement take that reads all rows.
_SCAN = 10


class Refused(DataError):
    """The database answered, and the answer was no: trying again will not help."""


def make_engine(uri: DatabaseURI, write: bool = False, answer: float = 60.0) -> Engine:
    """SQLAlchemy's engine; it keeps no connections.

    Args:
        uri: where.
        write: with transactions, and in a new file if it is SQLite; else every statement stands for itself, so
            that none is open between two.
        answer: seconds that a driver with such a bound waits for an answer.

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
                                        connect_args=_connect_arguments(uri, write, answer), **options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = f"'towernmt[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise DataError(f"{uri.name}: needs the package '{package}'. Install it: pip install {extra}") from error
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise DataError(f"{uri.name}: SQLAlchemy knows no database '{uri.url.drivername}'. Write sqlite, postgresql, "
                        "mysql or mariadb, or install the package of that dialect.") from error


class DatabaseSession:
    """One connection, made when it is needed and made anew when it is lost. To be used by one thread at a time.

    Every wait has a bound: for a connection, for a lock (so long that others may finish, again and again), and for
    the answer to a statement.

    Args:
        uri: where.
        write: see `make_engine`.
        scan: for statements that read all rows: they may take ten times the URI's `patience` for an answer, and
            others half of it.
    """

    def __init__(self, uri: DatabaseURI, write: bool = False, scan: bool = False) -> None:
        import sqlalchemy

        self._uri, self._scan = uri, scan
        self._answer = max(_SHORTEST_ANSWER, uri.patience * (_SCAN if scan else 0.5))
        self._engine = make_engine(uri, write, self._answer)
        self._connection: Connection | None = None
        self._driver: Any = None    # the driver's own connection
        # SQLite has no server, and its bound for locks is `timeout`.
        self._watch = (None if uri.url.get_backend_name() == "sqlite"
                       else AnswerTimeout(uri.name, self._answer, lambda: self._driver))
        self._wait = random.Random()    # of its own: the jitter must not touch anybody's seeded numbers
        sqlalchemy.event.listen(self._engine, "connect", self._made, insert=True)

    def __enter__(self) -> DatabaseSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self._drop()
        if self._watch is not None:
            self._watch.close()

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """`work(connection)`, all of it again if the connection was lost on the way.

        Raises:
            Refused: the database says no: credentials, names, SQL.
            DataError: it was not to be reached for as long as the URI's `patience`.
        """
        from sqlalchemy.exc import DBAPIError

        since, attempt = 0.0, 0
        while True:
            begin = time.monotonic()
            try:
                with self._watch.watching() if self._watch is not None else nullcontext():
                    if self._connection is None:
                        self._connection = self._connect()
                    result = work(self._connection)
            except DBAPIError as error:
                self._drop()
                if not may_pass(error):
                    raise self._refusal(error) from None    # the driver's own may show the password
                now = time.monotonic()
                # What was waited for an answer or a lock counts, but not a long search before the connection was lost.
                since = since or (now if self._scan or self._answer > self._uri.patience else begin)
                why = (f"no answer for {now - begin:.0f} s" if now - begin >= self._answer
                       else reason(error, self._uri.url))
                self._give_up_or_wait(why, now - since, attempt)
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

    def _made(self, driver: Any, record: object) -> None:
        """A new connection of the driver's, before SQLAlchemy says anything to the server."""
        self._driver = driver
        seconds = min(_LONGEST_LOCK, max(1.0, self._uri.patience / 4))
        statement = {"psycopg": f"SET lock_timeout = {seconds * 1000:.0f}",     # milliseconds
                     "psycopg2": f"SET lock_timeout = {seconds * 1000:.0f}",
                     "pymysql": f"SET SESSION lock_wait_timeout = {seconds:.0f}, innodb_lock_wait_timeout = "
                                f"{seconds:.0f}"}.get(self._uri.url.get_driver_name())
        if statement:
            cursor = driver.cursor()
            cursor.execute(statement)
            cursor.close()
            driver.commit()

    def _give_up_or_wait(self, why: str, lost: float, attempt: int) -> None:
        patience, locked = self._uri.patience, re.search(r"(?i)\block(ed)?\b", why) is not None
        if lost >= patience:
            state = "locked" if locked else "not to be reached"
            raise DataError(f"{self._uri.name}: {state} for {lost:.0f} s ({why}). "
                            + ("End what holds the lock" if locked else "Start the server or mend the network")
                            + ", and start again; patience=SECONDS in the URI waits longer.") from None
        if not attempt:
            logger.warning("%s: %s (%s); trying again for %.0f s.", self._uri.name, "locked" if locked else "lost", why,
                           patience - lost)
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
        except DBAPIError:      # it was lost already, and the error that this caused was raised
            connection.invalidate()


def _connect_arguments(uri: DatabaseURI, write: bool, answer: float) -> dict[str, Any]:
    driver, query = uri.url.get_driver_name(), uri.url.normalized_query
    if driver in ("psycopg", "psycopg2"):
        return {name: value for name, value in _POSTGRESQL.items() if name not in query}
    if driver == "pymysql":
        timeouts = {"connect_timeout": 10, "read_timeout": math.ceil(answer), "write_timeout": math.ceil(answer)}
        arguments: dict[str, Any] = {name: value for name, value in timeouts.items() if name not in query}
        if write:   # a text that does not fit is an error, and not cut off with a warning
            arguments["init_command"] = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
        return arguments
    if uri.url.get_backend_name() == "sqlite" and driver == "pysqlite":
        # An iterator may be taken on by another thread.
        return {"check_same_thread": False, **({} if "timeout" in query else {"timeout": min(5.0, uri.patience / 4)})}
    return {}


def _check_file(uri: DatabaseURI) -> None:
    """Check that the file exists; SQLite would make it."""
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
