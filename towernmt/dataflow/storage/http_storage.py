"""Files of web servers.

Requests with user and password, redirects and retries, and a reader that resumes a cut answer.

A file is read as one answer; if the answer is cut, the rest is requested from that byte on. A server has no list of
its files, so patterns are refused. The size, and the ETag or the time of the last change, show whether a file is
still the one that was listed. User, password and query (which may hold a signature) are separate from the name of a
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
    """A `Storage` of web servers. The object holds nothing open, so it may be forked, pickled and shared by threads.

    Args:
        server: settings of the requests.
    """

    def __init__(self, server: WebServer) -> None:
        self._server = server

    def list(self, pattern: str) -> list[StoredFile]:
        """See `Storage.list`; `pattern` is a URL without user, password and query, and names one file."""
        if re.search(r"[*\[]", pattern):
            raise DataError(f"{pattern}: web servers have no lists of their files, so that patterns (*, [...]) find "
                            "nothing. Name each file, for example in a corpora.yaml; %2A and %5B stand for * and [.")
        patience = RetryTime(self._server, pattern)
        while True:
            try:
                with self._server.ask(pattern, "bytes=0-0", empty_is_well=True) as answer:
                    return [StoredFile(pattern, _size(answer, pattern), _validators(answer)[0])]
            except Exception as error:
                patience.failed(error)

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """Return a reader of a file, which sends no request before the first read; see `Storage.open`."""
        reader: Any = HttpReader(self._server, file, offset)
        return cast(BinaryIO, reader)


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
        self._answer: HTTPResponse | None = None
        self._patience = RetryTime(server, file.name)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        """Fill some of `into`; 0 at the end of the file alone.

        Raises:
            DataError: the file is gone, has changed, or could not be reached for as long as patience lasts.
        """
        view = memoryview(into).cast("B")
        while len(view) and self._position < self._file.size:
            try:
                data = self._connected().read1(min(len(view), _READ_BYTES))
                if not data:
                    raise ConnectionError(f"the answer ended at byte {self._position} of {self._file.size}")
            except Exception as error:
                self._drop()
                self._patience.failed(error)
                continue
            self._patience.progress()
            view[:len(data)] = data
            self._position += len(data)
            return len(data)
        return 0

    def close(self) -> None:
        """Close the connection to the server."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def _connected(self) -> HTTPResponse:
        """The answer that goes on at the position."""
        if self._answer is None:
            self._answer = self._server.ask(self.name, f"bytes={self._position}-" if self._position else None)
            self._check(self._answer)
            if self._answer.status != 206:
                self._skip(self._answer)
        return self._answer

    def _check(self, answer: HTTPResponse) -> None:
        validators = _validators(answer)
        range = _content_range(answer)
        length = answer.headers.get("Content-Length")
        size = range[1] if range else int(length) if length and answer.status == 200 else None
        if (any(validators) and self._file.version not in validators) or size not in (None, self._file.size):
            raise changed(self.name)
        if answer.status == 206 and (range is None or range[0] != self._position):
            raise DataError(f"{self.name}: asked for the bytes from {self._position} on, the server answers with "
                            f"others ({answer.headers.get('Content-Range')}). Download the file, and name it there.")

    def _skip(self, answer: HTTPResponse) -> None:
        """Read up to the position, where the server gives no part of a file."""
        if self._position:
            _log.info("%s: the server sends whole files alone; reading up to byte %d again.", self.name, self._position)
        left = self._position
        while left:
            data = answer.read1(min(left, _READ_BYTES))
            if not data:
                raise ConnectionError(f"the answer ended at byte {self._position - left} of {self._file.size}")
            left -= len(data)


def changed(name: str) -> DataError:
    """The sentence for a file that was replaced."""
    return DataError(f"{name}: the file has changed on the server since reading began, so that places in it have lost "
                     "their meaning. Put the old file back, or begin anew.")


def _validators(answer: HTTPResponse) -> list[str]:
    """ETag (weak or not) and time of the last change, as far as there are any; at least one text."""
    found = [answer.headers.get("ETag", "").removeprefix("W/"), answer.headers.get("Last-Modified", "")]
    return [each for each in found if each] or [""]


def _content_range(answer: HTTPResponse) -> tuple[int, int | None] | None:
    """The first byte of an answer, and the size of the file, None if that is not known."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    return (int(match[1] or 0), None if match[2] == "*" else int(match[2])) if match else None


def _size(answer: HTTPResponse, name: str) -> int:
    range = _content_range(answer)
    length = answer.headers.get("Content-Length", "")
    size = range[1] if range else int(length) if answer.status == 200 and length.isdecimal() else None
    if size is None:
        raise DataError(f"{name}: the server does not tell how long the file is, so that a file that was cut off could "
                        "not be known. Download it, and name it there.")
    return size


FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0   # seconds
_URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"


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
    """Delays between retries, with a limit on the time without progress.

    Args:
        server: settings of the requests.
        name: name of the file, for messages.
    """

    def __init__(self, server: WebServer, name: str) -> None:
        self._server, self._name = server, name
        self._jitter = random.Random()      # of its own: it must not touch anybody's seeded numbers
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
        sentence = _permanent_failure(self._name, error, reason)
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
        delay = min(left, max(delay, _retry_after(error)))
        _log.log(logging.WARNING if self._failures > 2 else logging.INFO, "%s: %s; trying again in %.1f s, for %.0f s "
                 "in all.", self._name, reason, delay, self._server.patience)
        time.sleep(delay)


class _Redirects(HTTPRedirectHandler):
    """A handler of redirects to http and https, but not from https to http. Passwords are sent only to their server."""

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


def _permanent_failure(name: str, error: Exception, reason: str) -> str | None:
    """Return the message for a failure that no retry fixes, or None if a retry may help."""
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


def _retry_after(error: Exception) -> float:
    """Return the seconds to wait that a server requests."""
    text = error.headers.get("Retry-After", "") if isinstance(error, HTTPError) and error.headers else ""
    return float(text) if re.fullmatch(r"\d{1,6}", text) else 0.0
