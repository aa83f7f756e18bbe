"""Requests to a web server: user and password, redirects, retries, and a one-sentence error for what no retry mends.

User, password and query (which may hold a signature) are kept apart from the name of a file, which is in messages.
"""

from __future__ import annotations

import base64
import errno
import logging
import random
import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, InvalidURL
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from towernmt import __version__
from towernmt.core.errors import DataError
from towernmt.core.secrets import mask_text

FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0   # seconds
_URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebServer:
    """How a server is asked.

    Attributes:
        user: "user:password" with percent signs, or "".
        query: what is put behind the `?` of each name, or "".
        patience: seconds without a byte of progress after which it is an error.
        timeout: seconds to wait for a connection, and for each piece of an answer.
    """

    user: str = field(default="", repr=False)
    query: str = field(default="", repr=False)
    patience: float = 120.0
    timeout: float = 30.0

    def ask(self, name: str, range: str | None = None, empty_is_well: bool = False) -> HTTPResponse:
        """The answer to a request for a file or a part of it, whose body is still to come.

        Args:
            name: the URL.
            range: as in the header `Range`.
            empty_is_well: give the answer of an empty file, which has no such part.
        Raises:
            Exception: what urllib raises; `RetryTime.failed` knows what it means.
        """
        url = quote(f"{name}?{self.query}" if self.query else name, safe=_URL_CHARACTERS)
        request = Request(url, headers={"User-Agent": f"towernmt/{__version__}", "Accept-Encoding": "identity"})
        if range:
            request.add_header("Range", range)
        if self.user:
            token = base64.b64encode(unquote(self.user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            answer = build_opener(_Redirects()).open(request, timeout=max(0.1, min(self.timeout, self.patience)))
        except HTTPError as error:
            if empty_is_well and error.code == 416 and error.headers.get("Content-Range", "").strip() == "bytes */0":
                return cast(HTTPResponse, error)
            error.close()
            raise
        return cast(HTTPResponse, answer)


class RetryTime:
    """Waits after failures, and ends the waiting when there was no progress for too long.

    Args:
        server: how patient to be.
        name: the file, for messages.
    """

    def __init__(self, server: WebServer, name: str) -> None:
        self._server, self._name = server, name
        self._jitter = random.Random()      # of its own: it must not touch anybody's seeded numbers
        self.progress()

    def progress(self) -> None:
        """Data has come: failures are counted from zero again."""
        self._failures, self._since = 0, 0.0

    def failed(self, error: Exception) -> None:
        """Wait until it is time to try again.

        Raises:
            DataError: it will not pass, or has not passed for as long as patience lasts.
            Exception: `error` itself, if it comes neither from the network nor from a server.
        """
        if isinstance(error, DataError):
            raise error
        reason = _reason(error)
        if not isinstance(error, (OSError, HTTPException, ValueError)):
            raise error
        sentence = _for_good(self._name, error, reason)
        if sentence is not None:
            raise DataError(sentence) from None
        now = time.monotonic()
        self._since = self._since or now
        self._failures += 1
        left = self._server.patience - (now - self._since)
        if left <= 0:
            raise DataError(f"{self._name}: cannot be reached for {now - self._since:.0f} s ({reason}). Check the URL "
                            "and the network, and start again; a larger patience=SECONDS waits longer.") from None
        delay = self._jitter.uniform(0.5, 1) * min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 10))
        delay = min(left, max(delay, _asked_for(error)))
        _log.log(logging.WARNING if self._failures > 2 else logging.INFO, "%s: %s; trying again in %.1f s, for %.0f s "
                 "in all.", self._name, reason, delay, self._server.patience)
        time.sleep(delay)


class _Redirects(HTTPRedirectHandler):
    """Follows to http and https, never from the one that is secure to the other; passwords stay with their server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        place = req.full_url.partition("?")[0]
        if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
            raise DataError(f"{place}: the server leads from {before.scheme}:// to {after.scheme}://{after.hostname}, "
                            "which is not followed. Name the file there, if you trust it.")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        user = req.unredirected_hdrs.get("Authorization")
        if request is not None and user and (before.scheme, before.netloc) == (after.scheme, after.netloc):
            request.add_unredirected_header("Authorization", user)
        return request


def _for_good(name: str, error: Exception, reason: str) -> str | None:
    """The sentence for a failure that no retry mends; None: a retry may help."""
    cause = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    if isinstance(cause, HTTPError):
        return _status(name, cause.code, reason)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (f"{name}: the certificate of the server is not accepted ({cause.verify_message}). Check the host; "
                "SSL_CERT_FILE names a file of further authorities.")
    if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, socket.EAI_SERVICE):
        return f"{name}: there is no host {urlsplit(name).netloc} ({reason}). Check the URL and the network."
    if isinstance(cause, OSError) and cause.errno not in (errno.EINVAL,):
        return None
    if isinstance(cause, HTTPException) and not isinstance(cause, InvalidURL):
        return None
    return f"{name}: this is no URL that can be asked for ({reason}). Write https://HOST/PATH."


def _status(name: str, status: int, reason: str) -> str | None:
    if status in (408, 425, 429) or (status >= 500 and status not in (501, 505)):
        return None
    if status in (401, 403, 407):
        return (f"{name}: the server does not give it without leave ({reason}). Give a user and a password as in "
                "https://USER:PASSWORD@HOST/PATH, or check whether the link has expired.")
    if status in (404, 410):
        return f"{name}: there is no such file on the server ({reason}). Check the URL."
    if status in (412, 416):
        return (f"{name}: the file has become shorter on the server since reading began ({reason}). Put the old file "
                "back, or begin anew.")
    return f"{name}: the server refuses the request ({reason}). Check the URL."


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {mask_text(' '.join(str(error.reason).split()))}".strip()
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return "the server is silent"
    return mask_text(" ".join(str(cause).split())).rstrip(".") or type(cause).__name__


def _asked_for(error: Exception) -> float:
    """The seconds that a server asks to wait."""
    text = error.headers.get("Retry-After", "") if isinstance(error, HTTPError) and error.headers else ""
    return float(text) if re.fullmatch(r"\d{1,6}", text) else 0.0
