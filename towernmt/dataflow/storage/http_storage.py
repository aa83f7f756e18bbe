"""Files of web servers: requests with user and password, redirects and retries, and a reader that resumes.

A file is read as one response; if the connection is cut, the rest is requested from that byte on. A web server does not
list its files, so patterns are refused. The size, and the ETag or the modification time, show whether a file has
changed since it was listed. User, password and query (which may contain a signature) are separate from the name of a
file, since messages contain the name.
"""

from __future__ import annotations

import base64
import errno
import io
import logging
import random
import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, InvalidURL
from typing import Any, BinaryIO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from towernmt import __version__
from towernmt.core.errors import DataError, mask_text
from towernmt.dataflow.storage.stored_files import StoredFile

_READ_BYTES = 1 << 16
_log = logging.getLogger(__name__)


class HttpStorage:
    """A `Storage` of web servers. The object holds nothing open, so it may be forked, pickled and shared by threads."""

    def __init__(self, server: WebServer) -> None:
        self._server = server

    def list(self, pattern: str) -> list[StoredFile]:
        """See `Storage.list`; `pattern` is a URL without user, password and query, and names one file."""
        if re.search(r"://[^/]*/.*[*\[]", pattern):     # a host may have brackets: http://[::1]/x.tsv
            raise DataError(f"{pattern}: web servers do not list their files, so patterns (*, [...]) are not "
                            "supported. Name each file, for example in a corpora.yaml. Write * and [ in a name as %2A "
                            "and %5B.")
        retries = RetryTime(self._server, pattern)
        while True:
            try:
                with self._server.request(pattern, "bytes=0-0", accept_empty=True) as response:
                    size, version = _size(response), _validators(response)[0]
                if size is None:
                    raise DataError(f"{pattern}: the server does not send the size of the file, so a truncated file "
                                    "would not be noticed. Download the file, and pass its path.")
                return [StoredFile(pattern, size, version)]
            except Exception as error:
                retries.failed(error)

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """Return a reader of a file, which sends no request before the first read; see `Storage.open`."""
        return cast(BinaryIO, HttpReader(self._server, file, offset))


class HttpReader(io.RawIOBase):
    """A reader of the bytes of a file. The content must be the same as when the file was listed.

    Args:
        server: settings of the requests.
        file: the file.
        offset: index of the first byte.
    """

    def __init__(self, server: WebServer, file: StoredFile, offset: int) -> None:
        super().__init__()
        self.name = file.name
        self._server, self._file, self._position = server, file, offset
        self._response: HTTPResponse | None = None
        self._retries = RetryTime(server, file.name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of a buffer, and return the number of bytes, which is 0 only at the end of the file.

        Raises:
            DataError: the file is missing, has changed, or was not reachable for `WebServer.patience` seconds.
        """
        view = memoryview(buffer).cast("B")
        while len(view) and self._position < self._file.size:
            try:
                data = self._connect().read1(min(len(view), _READ_BYTES))
                if not data:
                    raise ConnectionError(f"the response ended at byte {self._position} of {self._file.size}")
            except Exception as error:
                self._drop()
                self._retries.failed(error)
                continue
            self._retries.progress()
            view[:len(data)] = data
            self._position += len(data)
            return len(data)
        return 0

    def close(self) -> None:
        """Close the connection to the server."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _connect(self) -> HTTPResponse:
        """Return the response that continues at the position. Send a request if no response is open."""
        if self._response is None:
            self._response = self._server.request(self.name, f"bytes={self._position}-" if self._position else None)
            self._check(self._response)
            if self._response.status != 206:
                self._skip(self._response)
        return self._response

    def _check(self, response: HTTPResponse) -> None:
        validators, range = _validators(response), _content_range(response)
        if (any(validators) and self._file.version not in validators) or _size(response) not in (None, self._file.size):
            raise DataError(f"{self.name}: the file on the server has changed since reading began, so saved positions "
                            "are not valid. Restore the old file, or start again.")
        if response.status == 206 and (range is None or range[0] != self._position):
            raise DataError(f"{self.name}: bytes from {self._position} were requested, but the server sent others "
                            f"({response.headers.get('Content-Range')}). Download the file, and pass its path.")

    def _skip(self, response: HTTPResponse) -> None:
        """Read up to the position, since the server does not send ranges of a file."""
        if self._position:
            _log.info("%s: the server sends complete files only; reading again up to byte %d.", self.name,
                      self._position)
        remaining = self._position
        while remaining:
            data = response.read1(min(remaining, _READ_BYTES))
            if not data:
                raise ConnectionError(f"the response ended at byte {self._position - remaining} of {self._file.size}")
            remaining -= len(data)


def _validators(response: HTTPResponse) -> list[str]:
    """Return the ETag (weak or not) and the modification time that the response has, or an empty text."""
    validators = [response.headers.get("ETag", "").removeprefix("W/"), response.headers.get("Last-Modified", "")]
    return [validator for validator in validators if validator] or [""]


def _content_range(response: HTTPResponse) -> tuple[int, int | None] | None:
    """Return the first byte of a response, and the size of the file, or None if it is unknown."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    return (int(match[1] or 0), None if match[2] == "*" else int(match[2])) if match else None


def _size(response: HTTPResponse) -> int | None:
    """Return the size of the file, or None if the server does not send it."""
    if range := _content_range(response):
        return range[1]
    length = response.headers.get("Content-Length", "")
    return int(length) if response.status == 200 and length.isdecimal() else None


FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0   # seconds
_URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"


@dataclass(frozen=True)
class WebServer:
    """Settings of the requests to a web server.

    Attributes:
        user: "user:password", percent-encoded, or "".
        query: text after the `?` of each URL, or "".
        patience: seconds without progress until an error is raised.
        timeout: seconds to wait for a connection, and for each read of a response.
    """

    user: str = field(default="", repr=False)
    query: str = field(default="", repr=False)
    patience: float = 120.0
    timeout: float = 30.0

    def request(self, name: str, range: str | None = None, accept_empty: bool = False) -> HTTPResponse:
        """Request a file or a range of it, and return the response before its body is read.

        Args:
            name: URL of the file.
            range: value of the header `Range`; None for the complete file.
            accept_empty: also return the response (status 416) for an empty file, which has no ranges.

        Raises:
            Exception: an error of urllib, which `RetryTime.failed` handles.
        """
        url = quote(f"{name}?{self.query}" if self.query else name, safe=_URL_CHARACTERS)
        request = Request(url, headers={"User-Agent": f"towernmt/{__version__}", "Accept-Encoding": "identity"})
        if range:
            request.add_header("Range", range)
        if self.user:
            token = base64.b64encode(unquote(self.user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            response = build_opener(_Redirects()).open(request, timeout=max(0.1, min(self.timeout, self.patience)))
        except HTTPError as error:
            if accept_empty and error.code == 416 and error.headers.get("Content-Range", "").strip() == "bytes */0":
                return cast(HTTPResponse, error)
            error.close()
            raise
        return cast(HTTPResponse, response)


class RetryTime:
    """Delays between retries, with a limit on the time without progress.

    Args:
        server: settings of the requests.
        name: name of the file, for messages.
    """

    def __init__(self, server: WebServer, name: str) -> None:
        self._server, self._name = server, name
        self._jitter = random.Random()      # separate: it must not change the state of seeded generators
        self.progress()

    def progress(self) -> None:
        """Reset the count of failures, since data arrived."""
        self._failures, self._since = 0, 0.0

    def failed(self, error: Exception) -> None:
        """Wait until the next retry.

        Raises:
            DataError: the failure is permanent, or has lasted for `patience` seconds.
            Exception: `error` itself, if it comes neither from the network nor from a server.
        """
        if isinstance(error, DataError):
            raise error
        reason = _reason(error)
        if not isinstance(error, (OSError, HTTPException, ValueError)):
            raise error
        message = _permanent_failure(self._name, error, reason)
        if message is not None:
            raise DataError(message) from None
        failed_at = time.monotonic()
        self._since = self._since or failed_at
        self._failures += 1
        remaining = self._server.patience - (failed_at - self._since)
        if remaining <= 0:
            raise DataError(f"{self._name}: not reachable for {failed_at - self._since:.0f} s ({reason}). Check the "
                            "URL and the network, and start again; patience=SECONDS in the URI sets a longer wait."
                            ) from None
        delay = self._jitter.uniform(0.5, 1) * min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 10))
        delay = min(remaining, max(delay, _retry_after(error)))
        _log.log(logging.WARNING if self._failures > 2 else logging.INFO, "%s: %s; retrying in %.1f s, for at most "
                 "%.0f s.", self._name, reason, delay, self._server.patience)
        time.sleep(delay)


class _Redirects(HTTPRedirectHandler):
    """A handler of redirects to http and https, but not from https to http. Passwords are sent only to their server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        address = req.full_url.partition("?")[0]
        if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
            raise DataError(f"{address}: the server redirects from {before.scheme}:// to {after.scheme}://"
                            f"{after.hostname}, which is not followed. If you trust that server, pass its URL.")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        user = req.unredirected_hdrs.get("Authorization")
        if request is not None and user and (before.scheme, before.netloc) == (after.scheme, after.netloc):
            request.add_unredirected_header("Authorization", user)
        return request


def _permanent_failure(name: str, error: Exception, reason: str) -> str | None:
    """Return the message for a failure that no retry fixes, or None if a retry may help."""
    cause = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    if isinstance(cause, HTTPError):
        return _status(name, cause.code, reason)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (f"{name}: the certificate of the server is not accepted ({cause.verify_message}). Check the host, or "
                "set SSL_CERT_FILE to a file with additional certificate authorities.")
    if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, socket.EAI_SERVICE):
        return f"{name}: host {urlsplit(name).netloc} is unknown ({reason}). Check the URL and the network."
    if isinstance(cause, OSError) and cause.errno not in (errno.EINVAL,):
        return None
    if isinstance(cause, HTTPException) and not isinstance(cause, InvalidURL):
        return None
    return f"{name}: not a valid URL ({reason}). Write https://HOST/PATH."


def _status(name: str, status: int, reason: str) -> str | None:
    if status in (408, 425, 429) or (status >= 500 and status not in (501, 505)):
        return None
    if status in (401, 403, 407):
        return (f"{name}: access denied ({reason}). Pass a user and a password as in https://USER:PASSWORD@HOST/PATH, "
                "or check whether the link has expired.")
    if status in (404, 410):
        return f"{name}: the file does not exist on the server ({reason}). Check the URL."
    if status in (412, 416):
        return (f"{name}: the file on the server has become shorter since reading began ({reason}). Restore the old "
                "file, or start again.")
    return f"{name}: the server refuses the request ({reason}). Check the URL."


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {mask_text(' '.join(str(error.reason).split()))}".strip()
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return "the server does not answer"
    return mask_text(" ".join(str(cause).split())).rstrip(".") or type(cause).__name__


def _retry_after(error: Exception) -> float:
    """Return the seconds to wait that a server requests."""
    text = error.headers.get("Retry-After", "") if isinstance(error, HTTPError) and error.headers else ""
    return float(text) if re.fullmatch(r"\d{1,6}", text) else 0.0
