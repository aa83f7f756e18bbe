"""Files of web servers: read as one answer; if it is cut, the rest is requested from that byte on.

A server has no list of its files, so there are no patterns. That a file is still the same is seen by its ETag, or
the time of its last change, and its size, which every answer must have as it was when the file was listed.
"""

from __future__ import annotations

import io
import logging
import re
from http.client import HTTPResponse
from typing import Any, BinaryIO, cast

from towernmt.core.errors import DataError
from towernmt.dataflow.storage.http_client import RetryTime, WebServer
from towernmt.dataflow.storage.stored_files import StoredFile

_PIECE = 1 << 16
_log = logging.getLogger(__name__)


class HttpStorage:
    """Web servers (a `Storage`). Nothing is open in the object: it may cross threads, forks and pickle.

    Args:
        server: how they are asked.
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
        """See `Storage.open`. No request is made before the first read."""
        reader: Any = HttpReader(self._server, file, offset)
        return cast(BinaryIO, reader)


class HttpReader(io.RawIOBase):
    """The bytes of one file, of the content that it had when it was listed.

    Args:
        server: how it is asked for.
        file: the file.
        offset: the first byte.
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
                data = self._connected().read1(min(len(view), _PIECE))
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
        """Let the connection go."""
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
            data = answer.read1(min(left, _PIECE))
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
