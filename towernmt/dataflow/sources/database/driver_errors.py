"""Errors of database drivers: whether a retry may help, and what to tell the user."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from towernmt.core.secrets import is_secret_name

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.exc import DBAPIError

# SQLSTATE (PostgreSQL): lost connection; serialization, deadlock; resources; shut down; lock not to be had.
_SQLSTATES = ("08", "40001", "40P01", "53", "57P", "55P03")
# MySQL, MariaDB: too many connections, shut down, aborted, network, lock wait, deadlock, too many of a user,
# interrupted, killed; 2xxx are the client's: no server, gone, lost; 4031: closed by the server as idle.
_MYSQL = {1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1927, 2002, 2003, 2005,
          2006, 2012, 2013, 2055, 4031}
_SQLITE = {5, 6, 15}    # BUSY, LOCKED, PROTOCOL: another process writes
_CREDENTIALS = re.compile(
    r"password|authentication|access denied|no pg_hba\.conf|role .* does not exist|permission denied|not allowed",
    re.IGNORECASE)
_FOR_GOOD = re.compile(
    _CREDENTIALS.pattern + r"|does not exist|unknown database|unable to open|not a database|no such|certificate"
    r"|does not support SSL|could not decode|invalid (connection|value)|is not permitted", re.IGNORECASE)


def may_pass(error: DBAPIError) -> bool:
    """Whether the same may work a little later: the server restarts, the network was cut, a lock is held."""
    from sqlalchemy import exc

    original: Any = error.orig
    number = original.args[0] if getattr(original, "args", None) else None
    if isinstance(number, int) and number:      # MySQL's, whose SQLSTATE says less
        return number in _MYSQL or error.connection_invalidated
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if state:
        return str(state).startswith(_SQLSTATES)
    sqlite = getattr(original, "sqlite_errorcode", None)
    if sqlite is not None:
        return (sqlite & 0xff) in _SQLITE
    if error.connection_invalidated:
        return True
    # What is left has no code: libpq's failures to connect, other drivers.
    return isinstance(error, (exc.OperationalError, exc.InterfaceError)) and not _FOR_GOOD.search(str(original))


def refused_credentials(error: DBAPIError) -> bool:
    """Whether the server did not let the user in, or not at this."""
    original: Any = error.orig
    number = original.args[0] if original.args else None
    return number in (1044, 1045, 1142, 1698) or bool(_CREDENTIALS.search(str(original)))


def reason(error: BaseException, url: URL) -> str:
    """The driver's own words in one line, without the password or anything else that is secret in the URL."""
    original: Any = getattr(error, "orig", None) or error
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    text = str(arguments[1]) if len(arguments) == 2 and isinstance(arguments[0], int) else str(original)
    text = " ".join(text.split())
    for secret in secrets(url):
        text = text.replace(secret, "***")
    return text[:400].rstrip(".") or type(original).__name__


def secrets(url: URL) -> list[str]:
    """What must not be shown: the password, wherever it comes from, the longest first."""
    options = [value for name, values in url.normalized_query.items() for value in values
               if is_secret_name(name) or "key" in name.lower()]
    found = [*options, os.environ.get("PGPASSWORD", ""), "" if url.password is None else str(url.password)]
    return sorted({secret for secret in found if secret}, key=len, reverse=True)
