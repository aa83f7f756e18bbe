"""Objects of S3 as files: listed with globs, read in ranges; if a range is cut, its rest is requested."""

from __future__ import annotations

import io
import re
from typing import Any, BinaryIO, cast

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.storage.s3_client import (
    S3Options,
    changed,
    client,
    give_up_or_wait,
    list_objects,
    retrying,
    split_name,
)
from towernmt.dataflow.storage.stored_files import StoredFile

CHUNK_BYTES = 8 << 20
_FIRST_CHUNK = 1 << 18  # then twice as many each time: a short read behind a seek costs little
_PIECE = 1 << 16
_MAGIC = re.compile(r"[*?\[]")


class S3Storage:
    """An S3-compatible server (a `Storage`). Nothing is open in the object: it may cross threads, forks and pickle.

    Args:
        endpoint_url, region, retries, timeout: see `S3Options`.
        chunk_bytes: most bytes of a request; so many are in memory for each open object.
    """

    def __init__(self, endpoint_url: str | None = None, region: str | None = None, retries: int = S3Options.retries,
                 chunk_bytes: int = CHUNK_BYTES, timeout: float = S3Options.timeout) -> None:
        self.options = S3Options(endpoint_url, region, retries, timeout)
        if chunk_bytes < 1:
            raise SettingsError(f"chunk_bytes={chunk_bytes} of an S3 source: at least 1 is needed; leave it out for "
                                f"{CHUNK_BYTES}.")
        self._chunk_bytes = chunk_bytes

    def list(self, pattern: str) -> list[StoredFile]:
        """See `Storage.list`; patterns are `s3://bucket/key`, and only the key may have `*`, `?` and `[...]`."""
        bucket, key = split_name(pattern)
        if not _MAGIC.search(key):
            return [self._stat(pattern, bucket, key)]
        prefix = key[:cast("re.Match[str]", _MAGIC.search(key)).start()]
        matches = glob_pattern(key).fullmatch
        files = []
        for item in list_objects(self.options, pattern, bucket, prefix):
            file = StoredFile(f"s3://{bucket}/{item['Key']}", item["Size"], item["ETag"])
            if item["Key"] == key:
                return [file]
            if matches(item["Key"]) and not item["Key"].endswith("/"):      # "folder/" is a mark of some tools
                files.append(file)
        if not files:
            raise DataError(f"{pattern}: no object matches this pattern. Check the name, and that the shell has not "
                            "changed it (put it in quotes).")
        return sorted(files)

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """See `Storage.open`. The object can be sought in; no request is made before the first read."""
        reader: Any = ObjectReader(self.options, file, offset, self._chunk_bytes)
        return cast(BinaryIO, reader)

    def _stat(self, name: str, bucket: str, key: str) -> StoredFile:
        if not key or key.endswith("/"):
            raise DataError(f"{name}: it is a prefix, not an object. Name the objects below it, for example "
                            f"{name.rstrip('/')}/*.tsv.gz.")
        s3 = client(self.options)

        def head() -> Any:
            from botocore.exceptions import ClientError

            try:
                return s3.head_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    # The answer to HEAD has no body that tells why; the one to GET has.
                    answer = s3.get_object(Bucket=bucket, Key=key)
                    answer["Body"].close()
                    return answer
                raise

        found = retrying(self.options, name, head)
        return StoredFile(name, found["ContentLength"], found["ETag"])


class ObjectReader(io.RawIOBase):
    """The bytes of one object, of the content that it had when it was listed.

    A range is fetched whole before any of it is given out, so that no connection waits on a slow reader. Where it is
    cut, what arrived is kept, and the rest is asked for from that byte on; failures count in a row, and a byte of
    progress begins the count anew.

    Args:
        options: the server.
        file: the object, with its ETag as version.
        offset: the first byte.
        chunk_bytes: most bytes of a range.
    """

    def __init__(self, options: S3Options, file: StoredFile, offset: int, chunk_bytes: int) -> None:
        super().__init__()
        self.name = file.name
        self._options, self._file, self._chunk_bytes = options, file, chunk_bytes
        self._bucket, self._key = split_name(file.name)
        self._position = offset
        self._range = min(_FIRST_CHUNK, chunk_bytes)
        self._buffer, self._start = bytearray(), offset

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, into: Any) -> int:
        """Fill as much of `into` as is in memory; 0 at the end of the object alone.

        Raises:
            DataError: the object is gone, has changed, or cannot be read after all retries.
        """
        view = memoryview(into).cast("B")
        if not len(view) or self._position >= self._file.size:
            return 0
        if not self._start <= self._position < self._start + len(self._buffer):
            self._fetch()
        begin = self._position - self._start
        count = min(len(view), len(self._buffer) - begin)
        view[:count] = self._buffer[begin:begin + count]
        self._position += count
        return count

    def _fetch(self) -> None:
        """The next range into memory."""
        self._buffer, self._start = bytearray(), self._position
        wanted = min(self._range, self._file.size - self._start)
        self._range = min(self._chunk_bytes, 2 * self._range)
        failures = 0
        while len(self._buffer) < wanted:
            before = len(self._buffer)
            try:
                self._receive(self._start + before, self._start + wanted)
            except DataError:
                raise
            except Exception as error:
                failures = 1 if len(self._buffer) > before else failures + 1
                give_up_or_wait(self._options, self.name, error, failures)

    def _receive(self, begin: int, end: int) -> None:
        """Append bytes `begin` to `end` of the object to the buffer, in pieces, until they end or fail."""
        answer = client(self._options).get_object(Bucket=self._bucket, Key=self._key, IfMatch=self._file.version,
                                                  Range=f"bytes={begin}-{end - 1}")
        with answer["Body"] as body:
            # A server that knows no IfMatch, or no Range, must not slip other bytes in.
            if answer.get("ETag", self._file.version) != self._file.version:
                raise changed(self.name)
            if answer["ContentLength"] != end - begin:
                raise DataError(f"{self.name}: asked for bytes {begin} to {end - 1}, the server answers with "
                                f"{answer['ContentLength']} bytes; it does not know ranges. Use another server, or "
                                "copy the object to a disk.")
            while piece := body.read(_PIECE):
                self._buffer += piece
        if self._start + len(self._buffer) < end:
            raise ConnectionError(f"the answer ended at byte {self._start + len(self._buffer)} instead of {end}")


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression for whole keys: `*`, `?` and `[...]` stay within a folder, `**/` does not."""
    parts, position = [], 0
    while position < len(pattern):
        rest = pattern[position:]
        group = re.match(r"\[(!?)(\]?[^\]]*)\]", rest)
        if rest.startswith("**/"):
            parts.append(r"(?:.*/)?")
            position += 3
        elif rest.startswith("**"):
            parts.append(r".*")
            position += 2
        elif rest[0] in "*?":
            parts.append(r"[^/]*" if rest[0] == "*" else r"[^/]")
            position += 1
        elif group:
            members = re.sub(r"([\\\[\]^&~|])", r"\\\1", group[2])
            parts.append(f"(?!/)[{'^' if group[1] else ''}{members}]")
            position += group.end()
        else:
            parts.append(re.escape(rest[0]))
            position += 1
    return re.compile("".join(parts), re.DOTALL)
