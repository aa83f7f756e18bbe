"""S3 objects as files: listed with globs and read in ranges, folders named by a URI, and uploads of streams.

If the response with a range is cut, the rest of the range is requested. An uploaded object becomes visible when its
stream has ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.storage.s3_client import (
    S3Options,
    client,
    give_up_or_wait,
    list_objects,
    object_changed,
    retrying,
    split_name,
)
from towernmt.dataflow.storage.stored_files import PositionedReader, StoredFile

CHUNK_BYTES = 8 << 20
_FIRST_CHUNK = 1 << 18  # doubled with each request, so a short read after a seek is cheap
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
            raise SettingsError(f"chunk_bytes={chunk_bytes} of an S3 source: expected at least 1 (default: "
                                f"{CHUNK_BYTES}).")
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
        return cast(BinaryIO, ObjectReader(self.options, file, offset, self._chunk_bytes))

    def _stat(self, name: str, bucket: str, key: str) -> StoredFile:
        if not key or key.endswith("/"):
            raise DataError(f"{name}: this is a prefix, not an object. Name the objects below it, for example "
                            f"{name.rstrip('/')}/*.tsv.gz.")
        s3 = client(self.options)

        def head() -> Any:
            from botocore.exceptions import ClientError

            try:
                return s3.head_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    # The response to HEAD has no body with the reason, but the response to GET has.
                    answer = s3.get_object(Bucket=bucket, Key=key)
                    answer["Body"].close()
                    return answer
                raise

        metadata = retrying(self.options, name, head)
        return StoredFile(name, metadata["ContentLength"], metadata["ETag"])


class ObjectReader(PositionedReader):
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
        super().__init__(file, offset)
        self.name = file.name
        self._options, self._chunk_bytes = options, chunk_bytes
        self._bucket, self._key = split_name(file.name)
        self._range = min(_FIRST_CHUNK, chunk_bytes)
        self._buffer, self._start = bytearray(), offset

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from memory and return the number of bytes, which is 0 only at the end of the object.

        Raises:
            DataError: the object is missing, has changed, or cannot be read after all retries.
        """
        view = memoryview(buffer).cast("B")
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
        size = min(self._range, self._file.size - self._start)
        self._range = min(self._chunk_bytes, 2 * self._range)
        failures = 0
        while len(self._buffer) < size:
            received = len(self._buffer)
            try:
                self._receive(self._start + received, self._start + size)
            except DataError:
                raise
            except Exception as error:
                failures = 1 if len(self._buffer) > received else failures + 1
                give_up_or_wait(self._options, self.name, error, failures)

    def _receive(self, begin: int, end: int) -> None:
        """Append bytes `begin` to `end` of the object to the buffer, in small reads, until they end or fail."""
        answer = client(self._options).get_object(Bucket=self._bucket, Key=self._key, IfMatch=self._file.version,
                                                  Range=f"bytes={begin}-{end - 1}")
        with answer["Body"] as body:
            # A server that does not support IfMatch or Range would send other bytes.
            if answer.get("ETag", self._file.version) != self._file.version:
                raise object_changed(self.name)
            if answer["ContentLength"] != end - begin:
                raise DataError(f"{self.name}: bytes {begin} to {end - 1} were requested, but the server sent "
                                f"{answer['ContentLength']} bytes, so it does not support ranges. Use another server, "
                                "or copy the object to a disk.")
            while data := body.read(_READ_BYTES):
                self._buffer += data
        if self._start + len(self._buffer) < end:
            raise ConnectionError(f"the response ended at byte {self._start + len(self._buffer)} instead of {end}")


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression for complete keys, where only `**` matches a slash.

    Raises:
        SettingsError: a range of characters is reversed, as in `[9-0]`.
    """
    parts, position = [], 0
    while position < len(pattern):
        remaining = pattern[position:]
        group = re.match(r"\[(!?)(\]?[^\]]*)\]", remaining)
        if remaining.startswith("**/"):
            parts.append(r"(?:.*/)?")
            position += 3
        elif remaining.startswith("**"):
            parts.append(r".*")
            position += 2
        elif remaining[0] in "*?":
            parts.append(r"[^/]*" if remaining[0] == "*" else r"[^/]")
            position += 1
        elif group:
            members = re.sub(r"([\\\[\]^&~|])", r"\\\1", group[2])
            parts.append(f"(?!/)[{'^' if group[1] else ''}{members}]")
            position += group.end()
        else:
            parts.append(re.escape(remaining[0]))
            position += 1
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise SettingsError(f"{pattern}: not a valid pattern ({error.msg}). Write the smaller character of a range "
                            "first, as in [0-9].") from None


_OPTIONS = ("endpoint_url", "region", "retries")


@dataclass(frozen=True)
class S3Folder:
    """A folder in S3.

    Attributes:
        name: `s3://bucket/prefix`, without a slash at the end.
        options: the server.
    """

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
    """Parse the URI of a folder in S3.

    Raises:
        SettingsError: an option is unknown, or its value is not valid.
        DataError: the bucket is missing.
    """
    name, _, query = uri.partition("?")
    split_name(name)
    values = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(values) - set(_OPTIONS))
    if unknown:
        raise SettingsError(f"{name}: unknown option {unknown[0]}. The options are {', '.join(_OPTIONS)}.")
    retries = values.get("retries", str(S3Options.retries))
    if not retries.isdecimal():
        raise SettingsError(f"{name}: retries={retries}: expected a whole number.")
    return S3Folder(name.rstrip("/"),
                    S3Options(values.get("endpoint_url") or None, values.get("region") or None, int(retries)))


PART_BYTES = 16 << 20
_THREADS = 4


def upload_stream(options: S3Options, name: str, stream: BinaryIO, metadata: Mapping[str, str] | None = None) -> None:
    """Upload an object, which replaces an object of that name when it is complete.

    boto3 uploads a large object in parts, sends a checksum with each part, which the server compares, and repeats parts
    that fail.

    Args:
        options: the server.
        name: s3://bucket/key.
        stream: the content; it need not be seekable.
        metadata: metadata of the object, which no other content under this name has; None for a random number.

    Raises:
        DataError: the object cannot be written.
    """
    from boto3.s3.transfer import TransferConfig
    from botocore.exceptions import ClientError

    config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=_THREADS)
    s3 = client(options, attempts=options.retries + 1)
    bucket, key = split_name(name)
    mark = dict(metadata or {"towernmt-upload": token_hex(8)})

    try:
        s3.upload_fileobj(stream, bucket, key, Config=config, ExtraArgs={"Metadata": mark})
    except DataError:       # of the stream
        raise
    except Exception as error:
        # If the response to the last request is lost, boto3 repeats the request after the upload has ended.
        is_ended = isinstance(error, ClientError) and error.response["Error"]["Code"] == "NoSuchUpload"
        if not is_ended or object_metadata(options, name)[1] != mark:
            # A stream can be read only once, so boto3 itself has retried the parts.
            give_up_or_wait(options, name, error, failures=options.retries + 1)


def object_metadata(options: S3Options, name: str) -> tuple[int, dict[str, str]]:
    """Return the size and the metadata of an object; (-1, {}) if it does not exist.

    Raises:
        DataError: the server cannot be reached, or denies access.
    """
    bucket, key = split_name(name)
    s3 = client(options)

    def head() -> tuple[int, dict[str, str]]:
        from botocore.exceptions import ClientError

        try:
            response = s3.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return -1, {}
            raise
        return response["ContentLength"], response["Metadata"]

    return retrying(options, name, head)


def check_object_writable(options: S3Options, name: str) -> None:
    """Check that objects can be written: write an empty object next to `name`, and remove it.

    Raises:
        DataError: access is denied, or the server cannot be reached.
    """
    bucket, key = split_name(name)
    probe, s3 = f"{key}.write-test-{token_hex(8)}", client(options)
    retrying(options, name, lambda: s3.put_object(Bucket=bucket, Key=probe, Body=b""))
    retrying(options, name, lambda: s3.delete_object(Bucket=bucket, Key=probe))
