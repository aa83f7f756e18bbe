"""Requests to an S3 server: clients, retries, and a one-sentence error for failures that no retry fixes.

boto3's own chain (environment, `~/.aws`, the machine's role) finds the credentials; this module never reads, logs or
saves them. boto3's own retries are switched off for reading: they end where a body begins, and are many where a body
is cut. `retrying` counts both alike.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from towernmt.core.errors import DataError, SettingsError, mask_uri

T = TypeVar("T")

PAGE_OBJECTS = 1000  # as many as a server lists at once
FIRST_DELAY, LONGEST_DELAY = 0.2, 20.0  # seconds
_TRANSIENT_CODES = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown",
                    "Throttling", "ThrottlingException", "TooManyRequests"}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"}
_CREDENTIALS = ("Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile of "
                "~/.aws/credentials")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class S3Options:
    """Address of the server, and limits of retries.

    Attributes:
        endpoint_url: URL of an S3-compatible server; None for the AWS environment, or else Amazon.
        region: region of the bucket; None for the AWS environment.
        retries: maximum number of consecutive retries without progress.
        timeout: seconds to wait for a connection, and for each read of a response.
    """

    endpoint_url: str | None = None
    region: str | None = None
    retries: int = 10
    timeout: float = 30.0


class ObjectMissing(DataError):
    """The bucket has no object of that name."""


class ObjectChanged(DataError):
    """The object has changed since reading began."""


def split_name(name: str) -> tuple[str, str]:
    """Return (bucket, key) of `s3://bucket/key`.

    Raises:
        DataError: the bucket is missing, or the scheme is another one.
        SettingsError: the name contains credentials, which the message does not repeat.
    """
    scheme, separator, rest = name.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme.lower() != "s3" or not separator or not bucket:
        raise DataError(f"{mask_uri(name)}: this is no name in S3; write s3://bucket/key.")
    if set(bucket) & set(":@"):
        raise SettingsError(f"An s3:// name has no user and no password before the bucket: write s3://bucket/key. "
                            f"{_CREDENTIALS}.")
    return bucket, key


def retrying(options: S3Options, name: str, request: Callable[[], T]) -> T:
    """Return the result of `request`, which is retried as long as a retry may help.

    The bound of the delays doubles with each retry, and each delay is drawn uniformly from 0 to the bound ("full
    jitter", M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015), so that readers do not all
    retry at the same time.

    Args:
        options: limits of retries.
        name: name of the object, for messages.
        request: sends a request.

    Raises:
        DataError: the request failed permanently; the message has the name and the reason.
    """
    failures = 0
    while True:
        try:
            return request()
        except DataError:
            raise
        except Exception as error:
            failures += 1
            give_up_or_wait(options, name, error, failures)


def give_up_or_wait(options: S3Options, name: str, error: Exception, failures: int) -> None:
    """Wait until it is time to try again after the `failures`-th failure in a row.

    Raises:
        DataError: it will not pass, or has not passed after all retries.
        Exception: `error` itself, if it does not come from S3 or the network.
    """
    if not _is_transient(error):
        sentence = _sentence(name, error, options)
        if sentence is None:
            raise error
        raise sentence from None
    reason = _reason(error)
    if failures > options.retries:
        raise DataError(f"{name}: cannot be reached ({reason}; attempt {failures} in a row). Check the server"
                        f"{f' {options.endpoint_url}' if options.endpoint_url else ''} and the network; a larger "
                        "retries= waits longer.") from None
    delay = random.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (failures - 1)))
    _log.log(logging.WARNING if failures > 2 else logging.INFO, "%s: %s; attempt %d of %d in %.1f s", name, reason,
             failures + 1, options.retries + 1, delay)
    time.sleep(delay)


def list_objects(options: S3Options, name: str, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Every object of a bucket below a prefix (`Key`, `Size`, `ETag`), by key; a page a request.

    Args:
        options: the server.
        name: for messages.
        bucket, prefix: what to list.
    Raises:
        DataError: the bucket is missing or cannot be listed.
    """
    s3 = client(options)
    token: dict[str, str] = {}

    def page() -> Any:
        answer = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=PAGE_OBJECTS, **token)
        # botocore takes an answer that was cut before its first byte for an empty page.
        if "IsTruncated" not in answer:
            raise ConnectionError("the answer of the server was cut")
        return answer

    while True:
        objects = retrying(options, name, page)
        yield from objects.get("Contents", ())
        if not objects["IsTruncated"]:
            return
        token = {"ContinuationToken": objects["NextContinuationToken"]}


def client(options: S3Options, attempts: int = 1) -> Any:
    """The boto3 client of this process for these options: it is thread-safe, but must not cross a fork.

    Args:
        options: which server.
        attempts: how often boto3 itself tries a request.
    Raises:
        DataError: boto3 is not installed, or the endpoint or the AWS environment cannot work.
    """
    key = (os.getpid(), options, attempts)
    found = _clients.get(key)
    if found is None:
        with _making[0]:
            found = _clients.get(key)
            if found is None:
                found = _clients[key] = _make(options, attempts)
    return found


_clients: dict[tuple[int, S3Options, int], Any] = {}
_making = [threading.Lock()]


def _after_fork() -> None:
    """Reset the clients and the lock in a child process, since a thread of the parent may have held the lock."""
    _clients.clear()
    _making[0] = threading.Lock()


if hasattr(os, "register_at_fork"):     # on Windows no process forks
    os.register_at_fork(after_in_child=_after_fork)


def _make(options: S3Options, attempts: int) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise DataError("s3:// needs boto3, which is not installed: pip install 'towernmt[s3]'.") from None
    endpoint = options.endpoint_url
    if endpoint and (urlsplit(endpoint).username or urlsplit(endpoint).password):
        raise DataError("endpoint_url holds a user name or a password, which would be saved with the run. Leave them "
                        f"out. {_CREDENTIALS}.")
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, max_pool_connections=32,
                    connect_timeout=options.timeout, read_timeout=options.timeout)
    try:
        # A session of our own: the default session is not safe to share between threads.
        return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=options.region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise DataError(f"cannot make an S3 client with endpoint_url={endpoint} and region={options.region} "
                        f"({_reason(error)}). An endpoint is written http://host:port, a profile is in "
                        "~/.aws/config.") from None


def _is_transient(error: Exception) -> bool:
    from botocore import exceptions
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    if isinstance(error, exceptions.ClientError):
        code, status = _code(error)
        return code in _TRANSIENT_CODES or status >= 500 or status in (408, 429)
    # ConnectionError and HTTPError below hold refused, cut and silent connections, at the start and in a body.
    return isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError, HTTPError, ConnectionError,
                              TimeoutError, exceptions.IncompleteReadError, ResponseParserError))


def _sentence(name: str, error: Exception, options: S3Options) -> DataError | None:
    """What a failure that will not pass means; None: it is not one of S3."""
    from botocore import exceptions

    bucket = name.removeprefix("s3://").partition("/")[0]
    where = options.endpoint_url or "S3"
    if isinstance(error, exceptions.ClientError):
        return _answer(name, bucket, where, error)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return DataError(f"{name}: there are no credentials for {where} ({_reason(error)}). {_CREDENTIALS}.")
    if isinstance(error, (exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError,
                          exceptions.SSOError)):
        return DataError(f"{name}: the credentials for {where} cannot be had ({_reason(error)}). Log in again, or "
                         "mend ~/.aws/config.")
    if isinstance(error, (exceptions.BotoCoreError, ValueError)):
        return DataError(f"{name}: {where} cannot be asked for it ({_reason(error)}). Check the name, endpoint_url "
                         "and region.")
    return None


def _answer(name: str, bucket: str, where: str, error: Any) -> DataError:
    code, status = _code(error)
    if status in (412, 416) or code in ("PreconditionFailed", "InvalidRange"):
        return changed(name)
    if code == "NoSuchBucket":
        return DataError(f"{name}: there is no bucket {bucket} at {where}. Check the name of the bucket, endpoint_url "
                         "and region.")
    if status == 404:
        return ObjectMissing(f"{name}: there is no such object at {where}. Check the name (large and small letters "
                             "differ).")
    if code in _WRONG_REGION:
        return DataError(f"{name}: the bucket is in another region ({_reason(error)}). Write ?region=... behind the "
                         "name, or set AWS_REGION.")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return DataError(f"{name}: {where} does not accept the credentials ({code}). {_CREDENTIALS}, with a key that "
                         "is valid there.")
    if status in (401, 403):
        return DataError(f"{name}: {where} does not allow access with these credentials ({code}). Ask for permission "
                         f"to list and read the bucket {bucket}, or use another key. {_CREDENTIALS}.")
    return DataError(f"{name}: {where} refuses the request ({_reason(error)}). Check the name and the server.")


def changed(name: str) -> ObjectChanged:
    """The sentence for an object that was replaced."""
    return ObjectChanged(f"{name}: the object has changed since reading began, so that places in it have lost their "
                         "meaning. Put the old object back, or begin anew.")


def _code(error: Any) -> tuple[str, int]:
    """Return the error code of S3 and the HTTP status of a ClientError; 0 if the status is missing."""
    response = error.response
    return (str(response.get("Error", {}).get("Code", "")),
            int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)))


def _reason(error: Exception) -> str:
    """Return the message of an error on one line. Messages of botocore contain names and addresses, but no secrets."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
