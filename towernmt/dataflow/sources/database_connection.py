"""Connections to a database: reconnecting with back-off for a bounded time, time limits, and errors of drivers.

A server that runs but does not answer (a frozen process, a machine that swaps) keeps a connection alive for ever, since
its kernel acknowledges every packet. So the client measures the time itself (`AnswerTimeout`).
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.core.errors import DataError, is_secret_name, suggestion
from towernmt.dataflow.sources.database_uri import DatabaseURI

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import DBAPIError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0   # seconds
_EXTRAS = {"psycopg": "postgresql", "pymysql": "mysql"}
# A server that disappears without closing its connections (power, cable) must not block a feeder for ever. In seconds,
# except tcp_user_timeout, which is in milliseconds.
_POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
               "tcp_user_timeout": 60_000}
_LONGEST_LOCK, _SHORTEST_ANSWER = 10.0, 3.0     # seconds
_SCAN_PATIENCE = 10      # time limit of a statement that reads all rows, as a multiple of `patience`


class DatabaseRefusal(DataError):
    """The database answered with an error that a retry would not fix."""


def make_engine(uri: DatabaseURI, write: bool = False, answer: float = 60.0) -> Engine:
    """Return an engine of SQLAlchemy without a connection pool.

    Args:
        uri: the table.
        write: use transactions, and create the file of an SQLite database. Otherwise commit each statement by itself,
            so that no transaction stays open between two statements.
        answer: time limit for an answer in seconds, for drivers that have such an option.

    Raises:
        DataError: the driver's package, the dialect or the SQLite file does not exist.
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
        raise DataError(f"{uri.name}: the package '{package}' is missing. Install it: pip install {extra}") from error
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise DataError(f"{uri.name}: SQLAlchemy has no dialect '{uri.url.drivername}'. Write sqlite, postgresql, "
                        "mysql or mariadb, or install the package of that dialect.") from error


class DatabaseSession:
    """A connection that is opened when it is first needed, and reopened when it is lost. For one thread at a time.

    Every wait has a time limit: for a connection, for a lock (long enough for other transactions to finish), and for
    the answer to a statement.

    Args:
        uri: the table.
        write: see `make_engine`.
        scan: for statements that read all rows: the time limit for an answer is ten times the URI's `patience`,
            instead of half of it.
    """

    def __init__(self, uri: DatabaseURI, write: bool = False, scan: bool = False) -> None:
        import sqlalchemy

        self._uri, self._scan = uri, scan
        self._answer = max(_SHORTEST_ANSWER, uri.patience * (_SCAN_PATIENCE if scan else 0.5))
        self._engine = make_engine(uri, write, self._answer)
        self._connection: Connection | None = None
        self._driver: Any = None    # the driver's own connection
        # SQLite has no server, and its option `timeout` limits the wait for locks.
        self._watch = (None if uri.url.get_backend_name() == "sqlite"
                       else AnswerTimeout(uri.name, self._answer, lambda: self._driver))
        self._jitter = random.Random()    # separate: it must not change the state of seeded generators
        sqlalchemy.event.listen(self._engine, "connect", self._set_time_limits, insert=True)

    def __enter__(self) -> DatabaseSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self._drop()
        if self._watch is not None:
            self._watch.close()

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """Return `work(connection)`. If the connection is lost, run `work` again from its beginning.

        Raises:
            DatabaseRefusal: the database refuses the credentials, the names or the SQL.
            DataError: the database was not reachable for the URI's `patience`.
        """
        from sqlalchemy.exc import DBAPIError

        failing_since, attempt = 0.0, 0
        while True:
            begin = time.monotonic()
            try:
                with self._watch.watching() if self._watch is not None else nullcontext():
                    if self._connection is None:
                        self._connection = self._connect()
                    result = work(self._connection)
            except DBAPIError as error:
                self._drop()
                if not is_transient(error):
                    raise self._refusal(error) from None    # the driver's own may show the password
                failed_at = time.monotonic()
                # The wait for an answer or a lock counts, but not a long search before the connection was lost.
                if not failing_since:
                    failing_since = failed_at if self._scan or self._answer > self._uri.patience else begin
                problem = (f"no answer for {failed_at - begin:.0f} s" if failed_at - begin >= self._answer
                           else driver_message(error, self._uri.url))
                self._give_up_or_wait(problem, failed_at - failing_since, attempt)
                attempt += 1
            else:
                if attempt:
                    logger.warning("%s: connected again after %.1f s.", self._uri.name,
                                   time.monotonic() - failing_since)
                return result

    def _connect(self) -> Connection:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return self._engine.connect()
        except SQLAlchemyError:
            raise
        except (TypeError, ValueError, RuntimeError, OSError) as error:     # drivers that check their options
            raise DatabaseRefusal(f"{self._uri.name}: the driver cannot connect "
                                  f"({driver_message(error, self._uri.url)}). Check the options of the URI.") from None

    def _set_time_limits(self, driver: Any, record: object) -> None:
        """Set the time limits of a new connection, before SQLAlchemy sends anything to the server."""
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

    def _give_up_or_wait(self, problem: str, seconds: float, attempt: int) -> None:
        patience, locked = self._uri.patience, re.search(r"(?i)\block(ed)?\b", problem) is not None
        if seconds >= patience:
            state = "locked" if locked else "not reachable"
            raise DataError(f"{self._uri.name}: {state} for {seconds:.0f} s ({problem}). "
                            + ("End the process that holds the lock" if locked else
                               "Start the server or repair the network")
                            + ", and start again; patience=SECONDS in the URI sets a longer wait.") from None
        if not attempt:
            logger.warning("%s: %s (%s); retrying for %.0f s.", self._uri.name,
                           "locked" if locked else "connection lost", problem, patience - seconds)
        wait = min(_FIRST_WAIT * 2.0 ** min(attempt, 10), _LONGEST_WAIT) * self._jitter.uniform(0.5, 1.0)
        time.sleep(min(wait, patience - seconds))

    def _refusal(self, error: DBAPIError) -> DatabaseRefusal:
        problem = driver_message(error, self._uri.url)
        if refused_credentials(error):
            return DatabaseRefusal(
                f"{self._uri.name}: the database denies access ({problem}). Pass the correct user and password in the "
                "environment (PGPASSWORD, MYSQL_PWD), in the driver's file (~/.pgpass) or in the URI, and grant the "
                "user SELECT.")
        return DatabaseRefusal(f"{self._uri.name}: the database reports an error ({problem}). Fix the reported "
                               "problem, or correct the URI.")

    def _drop(self) -> None:
        from sqlalchemy.exc import DBAPIError

        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except DBAPIError:      # already lost, and the resulting error was raised
            connection.invalidate()


def _connect_arguments(uri: DatabaseURI, write: bool, answer: float) -> dict[str, Any]:
    driver, query = uri.url.get_driver_name(), uri.url.normalized_query
    if driver in ("psycopg", "psycopg2"):
        return {name: value for name, value in _POSTGRESQL.items() if name not in query}
    if driver == "pymysql":
        timeouts = {"connect_timeout": 10, "read_timeout": math.ceil(answer), "write_timeout": math.ceil(answer)}
        arguments: dict[str, Any] = {name: value for name, value in timeouts.items() if name not in query}
        if write:   # a text that is too long must be an error, instead of being cut with a warning
            arguments["init_command"] = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
        return arguments
    if uri.url.get_backend_name() == "sqlite" and driver == "pysqlite":
        # Another thread may continue an iterator.
        return {"check_same_thread": False, **({} if "timeout" in query else {"timeout": min(5.0, uri.patience / 4)})}
    return {}


def _check_file(uri: DatabaseURI) -> None:
    """Check that the file exists, since SQLite would create it.

    Raises:
        DataError: the file is missing, or is a directory.
    """
    name = uri.url.database or ""
    if not name or name == ":memory:" or name.startswith("file:"):
        return
    path = Path(name)
    if path.is_file():
        return
    if path.is_dir():
        raise DataError(f"{uri.name}: {name} is a directory. Name the file of the database in it.")
    folder = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    advice = suggestion(path.name, folder) or (
        " Check the path: sqlite:/// begins a relative path, sqlite://// an absolute path.")
    raise DataError(f"{uri.name}: file {name} is missing.{advice}")


FIRST_REPORT = 30.0   # seconds


class AnswerTimeout:
    """A thread that measures the time of each block, and cuts the connection if a block takes too long.

    The driver then raises the error of a lost connection.

    Args:
        name: name of the source, for the log.
        seconds: time limit of a block.
        connection: returns the driver's connection, or None if not connected. Only connections with a `fileno` (of
            psycopg) are cut, since the other drivers have a time limit.
    """

    def __init__(self, name: str, seconds: float, connection: Callable[[], Any]) -> None:
        self._name, self._seconds, self._connection = name, seconds, connection
        self._since: float | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Return a context manager that measures the time of its block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="database watch", daemon=True)
            self._thread.start()
        self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:        # do not cut from now on: the descriptor may soon belong to another file
                self._since = None

    def close(self) -> None:
        """End the thread that measures the time."""
        self._closed.set()

    def _look(self) -> None:
        reported = 0.0
        while not self._closed.wait(min(1.0, self._seconds / 4)):
            with self._lock:
                waited = 0.0 if self._since is None else time.monotonic() - self._since
                if waited >= self._seconds:
                    _shut_down(self._connection())
            if waited < FIRST_REPORT:
                reported = 0.0
            elif waited - reported >= FIRST_REPORT and waited < self._seconds:
                reported = waited
                logger.warning("%s: no answer for %.0f s (a lock, a long query, or a frozen server); waiting up to "
                               "%.0f s.", self._name, waited, self._seconds)


def _shut_down(connection: Any) -> None:
    fileno = getattr(connection, "fileno", None)
    if fileno is None:
        return
    try:
        with socket.socket(fileno=os.dup(fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except Exception as error:      # raised by the driver if the connection is already closed
        logger.debug("cannot cut a connection: %s", error)


# SQLSTATE (PostgreSQL): lost connection; serialization, deadlock; resources; shut down; lock not available.
_SQLSTATES = ("08", "40001", "40P01", "53", "57P", "55P03")
# MySQL, MariaDB: too many connections, shut down, aborted, network, lock wait, deadlock, too many of a user,
# interrupted, killed; 2xxx are the client's: no server, gone, lost; 4031: closed by the server as idle.
_MYSQL = {1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1927, 2002, 2003, 2005,
          2006, 2012, 2013, 2055, 4031}
_SQLITE = {5, 6, 15}    # BUSY, LOCKED, PROTOCOL: another process writes
_CREDENTIALS = re.compile(
    r"password|authentication|access denied|no pg_hba\.conf|role .* does not exist|permission denied|not allowed",
    re.IGNORECASE)
_PERMANENT = re.compile(
    _CREDENTIALS.pattern + r"|does not exist|unknown database|unable to open|not a database|no such|certificate"
    r"|does not support SSL|could not decode|invalid (connection|value)|is not permitted", re.IGNORECASE)


def is_transient(error: DBAPIError) -> bool:
    """Return whether a retry may succeed: the server restarts, the network was cut, or a lock is held."""
    from sqlalchemy import exc

    original: Any = error.orig
    number = original.args[0] if getattr(original, "args", None) else None
    if isinstance(number, int) and number:      # MySQL's number, which is more precise than its SQLSTATE
        return number in _MYSQL or error.connection_invalidated
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if state:
        return str(state).startswith(_SQLSTATES)
    sqlite = getattr(original, "sqlite_errorcode", None)
    if sqlite is not None:
        return (sqlite & 0xff) in _SQLITE
    if error.connection_invalidated:
        return True
    # The remaining errors have no code: libpq's failures to connect, other drivers.
    return isinstance(error, (exc.OperationalError, exc.InterfaceError)) and not _PERMANENT.search(str(original))


def refused_credentials(error: DBAPIError) -> bool:
    """Return whether the server refused the credentials, or the access to the table."""
    original: Any = error.orig
    number = original.args[0] if original.args else None
    return number in (1044, 1045, 1142, 1698) or bool(_CREDENTIALS.search(str(original)))


def driver_message(error: BaseException, url: URL) -> str:
    """Return the driver's message in one line, without the password and other secrets of the URL."""
    original: Any = getattr(error, "orig", None) or error
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    text = str(arguments[1]) if len(arguments) == 2 and isinstance(arguments[0], int) else str(original)
    text = " ".join(text.split())
    for secret in url_secrets(url):
        text = text.replace(secret, "***")
    return text[:400].rstrip(".") or type(original).__name__


def url_secrets(url: URL) -> list[str]:
    """Return the passwords and keys of the URL and the environment, which must not be shown, the longest first."""
    options = [value for name, values in url.normalized_query.items() for value in values
               if is_secret_name(name) or "key" in name.lower()]
    secrets = [*options, os.environ.get("PGPASSWORD", ""), "" if url.password is None else str(url.password)]
    return sorted({secret for secret in secrets if secret}, key=len, reverse=True)
