"""S3 objects as files: listed with globs and read in ranges, folders named by a URI, and uploads of streams.

If the answer to a range is cut, the rest of the range is requested. An uploaded object appears when its stream has
ended; before that, nothing of it is visible.
"""

from __future__ import annotations

import dataclasses
import io
import re
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

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
_READ_BYTES = 1 << 16
_MAGIC = re.compile(r"[*?\[]")


class S3Storage:
    """A `Storage` of an S3-compatible server. The object holds nothing open: it may be forked, pickled and shared.

    Args:
        endpoint_url, region, retries, timeout: see `S3Options`.
        chunk_bytes: maximum size of a request in bytes, and of the buffer of each open object.
    """

    def __init__(self, endpoint_url: str | None = None, region: str | None = None, retries: int = S3Options.retries,
                 chunk_bytes: int = CHUNK_BYTES, timeout: float = S3Options.timeout) -> None:
        self.options = S3Options(endpoint_url, region, retries, timeout)
        if chunk_bytes < 1:
            raise SettingsError(f"chunk_bytes={chunk_bytes} of an S3 source: at least 1 is needed; leave it out for "
                                f"{CHUNK_BYTES}.")
        self._chunk_bytes = chunk_bytes

    def list(self, pattern: str) -> list[StoredFile]:
        """Return the objects that match `s3://bucket/key`, where the key may have wildcards; see `Storage.list`."""
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
        """Return a seekable reader of an object, which sends no request before the first read; see `Storage.open`."""
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
    """A reader of the bytes of an object. The content must be the same as when the object was listed.

    A range is fetched completely before any of it is returned, so that no connection waits for a slow reader. If a
    range is cut, the received bytes are kept, and the rest is requested from that byte on. Consecutive failures are
    counted, and each byte of progress resets the count.

    Args:
        options: the server.
        file: the object, with its ETag as version.
        offset: index of the first byte.
        chunk_bytes: maximum size of a range in bytes.
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
        """Fill `into` from memory and return the number of bytes, which is 0 only at the end of the object.

        Raises:
            DataError: the object is missing, has changed, or cannot be read after all retries.
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
        """Fetch the next range into memory."""
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
            while piece := body.read(_READ_BYTES):
                self._buffer += piece
        if self._start + len(self._buffer) < end:
            raise ConnectionError(f"the answer ended at byte {self._start + len(self._buffer)} instead of {end}")


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression for complete keys, where only `**` matches a slash."""
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


_OPTIONS = ("endpoint_url", "region", "retries")


@dataclass(frozen=True)
class S3Folder:
    """A folder in S3.

    Attributes:
        uri: the URI as written, which can be parsed again.
        name: `s3://bucket/prefix`, without a slash at the end.
        options: the server.
    """

    uri: str
    name: str
    options: S3Options

    def path(self, file: str) -> str:
        """Return the name of an object below the folder."""
        return f"{self.name}/{file}"

    def storage(self) -> S3Storage:
        """Return the storage of the server."""
        return S3Storage(self.options.endpoint_url, self.options.region, self.options.retries)

    def read(self, file: str) -> bytes:
        """Return the content of a small object.

        Raises:
            DataError: the object is missing (`ObjectMissing`) or cannot be read.
        """
        storage = self.storage()
        with storage.open(storage.list(self.path(file))[0]) as stream:
            return b"".join(iter(lambda: stream.read(1 << 20), b""))


def parse_s3_folder(uri: str) -> S3Folder:
    """The folder that a URI names.

    Raises:
        SettingsError: an option that does not exist, or that has no such value.
        DataError: no bucket.
    """
    name, _, query = uri.partition("?")
    split_name(name)
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise SettingsError(f"{name}: there is no option {unknown[0]}; behind the ? may stand {', '.join(_OPTIONS)}.")
    retries = given.get("retries", str(S3Options.retries))
    if not retries.isdecimal():
        raise SettingsError(f"{name}: retries={retries} is not a whole number.")
    return S3Folder(uri, name.rstrip("/"),
                    S3Options(given.get("endpoint_url") or None, given.get("region") or None, int(retries)))


PART_BYTES = 16 << 20
_THREADS = 4


def upload_stream(options: S3Options, name: str, stream: BinaryIO) -> None:
    """Write an object, in parts if it is large; it takes the place of one of that name when it is whole.

    boto3 sends a checksum with each part, which the server compares, and repeats parts that fail.

    Args:
        options: the server.
        name: s3://bucket/key.
        stream: what it holds; need not be sought in.
    Raises:
        DataError: it cannot be written.
    """
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=_THREADS)
    patient = client(options, attempts=options.retries + 1)
    bucket, key = split_name(name)
    # A stream is there once: boto3 repeats what fails, part by part.
    retrying(dataclasses.replace(options, retries=0), name,
             lambda: patient.upload_fileobj(stream, bucket, key, Config=config))


def check_writable(options: S3Options, name: str) -> None:
    """Check that objects can be written: write an empty object next to `name`, and remove it.

    Raises:
        DataError: access is denied, or the server cannot be reached.
    """
    bucket, key = split_name(name)
    probe, s3 = f"{key}.write-test-{token_hex(8)}", client(options)
    retrying(options, name, lambda: s3.put_object(Bucket=bucket, Key=probe, Body=b""))
    retrying(options, name, lambda: s3.delete_object(Bucket=bucket, Key=probe))
