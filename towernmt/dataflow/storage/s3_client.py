"""Requests to an S3 server: clients, retries, and a one-sentence error for failures that no retry fixes.

boto3 finds the credentials (environment, `~/.aws`, the machine's role); this module never reads, logs or saves them.
boto3's retries are disabled for reading, since they do not cover the body of a response. `retrying` counts the failures
of both.
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

PAGE_OBJECTS = 1000  # maximum number of objects that a server lists in one response
FIRST_DELAY, LONGEST_DELAY = 0.2, 20.0  # seconds
_TRANSIENT_CODES = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown",
                    "Throttling", "ThrottlingException", "TooManyRequests"}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"}
_CREDENTIALS = ("Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile of "
                "~/.aws/credentials")
_jitter = random.SystemRandom()     # has no state: it must not change that of seeded generators
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
        DataError: the bucket is missing, or the scheme is not s3.
        SettingsError: the name contains credentials, which the message does not repeat.
    """
    scheme, separator, bucket_and_key = name.partition("://")
    bucket, _, key = bucket_and_key.partition("/")
    if scheme.lower() != "s3" or not separator or not bucket:
        raise DataError(f"{mask_uri(name)}: not a valid name in S3. Write s3://bucket/key.")
    if set(bucket) & set(":@"):
        raise SettingsError("An s3:// name must not contain a user or a password. Write s3://bucket/key. "
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
    """Wait until the next retry, after `failures` consecutive failures.

    Raises:
        DataError: the failure is permanent, or all retries have failed.
        Exception: `error` itself, if it does not come from S3 or the network.
    """
    if not _is_transient(error):
        permanent_error = _permanent_error(name, error, options)
        if permanent_error is None:
            raise error
        raise permanent_error from None
    reason = _reason(error)
    if failures > options.retries:
        raise DataError(f"{name}: not reachable in {failures} consecutive attempts ({reason}). Check the server"
                        f"{f' {options.endpoint_url}' if options.endpoint_url else ''} and the network; a larger "
                        "retries= in the URI sets a longer wait.") from None
    delay = _jitter.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 10)))
    _log.log(logging.WARNING if failures > 2 else logging.INFO, "%s: %s; attempt %d of %d in %.1f s", name, reason,
             failures + 1, options.retries + 1, delay)
    time.sleep(delay)


def list_objects(options: S3Options, name: str, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield every object of a bucket whose key begins with a prefix (`Key`, `Size`, `ETag`), sorted by key.

    Args:
        options: the server.
        name: the listed name, for messages.
        bucket: name of the bucket.
        prefix: beginning of the keys.

    Raises:
        DataError: the bucket is missing or cannot be listed.
    """
    s3 = client(options)
    token: dict[str, str] = {}

    def page() -> Any:
        answer = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=PAGE_OBJECTS, **token)
        # botocore returns an empty page for a response that was cut before its first byte.
        if "IsTruncated" not in answer:
            raise ConnectionError("the response of the server was cut")
        return answer

    while True:
        objects = retrying(options, name, page)
        yield from objects.get("Contents", ())
        if not objects["IsTruncated"]:
            return
        token = {"ContinuationToken": objects["NextContinuationToken"]}


def client(options: S3Options, attempts: int = 1) -> Any:
    """Return the boto3 client of this process for these options. It is thread-safe, but not valid after a fork.

    Args:
        options: the server.
        attempts: number of times that boto3 itself sends a failing request.

    Raises:
        DataError: boto3 is not installed, or the endpoint or the AWS environment is not valid.
    """
    key = (os.getpid(), options, attempts)
    s3 = _clients.get(key)
    if s3 is None:
        with _clients_lock[0]:
            s3 = _clients.get(key)
            if s3 is None:
                s3 = _clients[key] = _make_client(options, attempts)
    return s3


_clients: dict[tuple[int, S3Options, int], Any] = {}
_clients_lock = [threading.Lock()]


def _after_fork() -> None:
    """Reset the clients and the lock in a child process, since a thread of the parent may have held the lock."""
    _clients.clear()
    _clients_lock[0] = threading.Lock()


if hasattr(os, "register_at_fork"):     # on Windows no process forks
    os.register_at_fork(after_in_child=_after_fork)


def _make_client(options: S3Options, attempts: int) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise DataError("s3:// needs boto3, which is not installed: pip install 'towernmt[s3]'.") from None
    endpoint = options.endpoint_url
    if endpoint and (urlsplit(endpoint).username or urlsplit(endpoint).password):
        raise DataError("endpoint_url contains a user name or a password, which would be saved with the run. Remove "
                        f"them. {_CREDENTIALS}.")
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, max_pool_connections=32,
                    connect_timeout=options.timeout, read_timeout=options.timeout)
    try:
        # A new session, since threads cannot safely share the default session.
        return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=options.region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise DataError(f"Cannot create an S3 client with endpoint_url={endpoint} and region={options.region} "
                        f"({_reason(error)}). Write the endpoint as http://host:port, and check the profile in "
                        "~/.aws/config.") from None


def _is_transient(error: Exception) -> bool:
    from botocore import exceptions
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    if isinstance(error, exceptions.ClientError):
        code, status = _code(error)
        return code in _TRANSIENT_CODES or status >= 500 or status in (408, 429)
    # ConnectionError and HTTPError include refused, cut and unanswered connections, at the start and in a body.
    return isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError, HTTPError, ConnectionError,
                              TimeoutError, exceptions.IncompleteReadError, ResponseParserError))


def _permanent_error(name: str, error: Exception, options: S3Options) -> DataError | None:
    """Return the error for a failure that no retry fixes, or None if it is not a failure of S3."""
    from botocore import exceptions

    bucket = name.removeprefix("s3://").partition("/")[0]
    server = options.endpoint_url or "S3"
    if isinstance(error, exceptions.ClientError):
        return _response_error(name, bucket, server, error)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return DataError(f"{name}: the credentials for {server} are missing ({_reason(error)}). {_CREDENTIALS}.")
    if isinstance(error, (exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError,
                          exceptions.SSOError)):
        return DataError(f"{name}: the credentials for {server} cannot be obtained ({_reason(error)}). Log in again, "
                         "or fix ~/.aws/config.")
    if isinstance(error, (exceptions.BotoCoreError, ValueError)):
        return DataError(f"{name}: the request to {server} cannot be sent ({_reason(error)}). Check the name, "
                         "endpoint_url and region.")
    return None


def _response_error(name: str, bucket: str, server: str, error: Any) -> DataError:
    code, status = _code(error)
    if status in (412, 416) or code in ("PreconditionFailed", "InvalidRange"):
        return object_changed(name)
    if code == "NoSuchBucket":
        return DataError(f"{name}: bucket {bucket} does not exist at {server}. Check the name of the bucket, "
                         "endpoint_url and region.")
    if status == 404:
        return ObjectMissing(f"{name}: the object does not exist at {server}. Check the name (upper and lower case "
                             "differ).")
    if code in _WRONG_REGION:
        return DataError(f"{name}: the bucket is in another region ({_reason(error)}). Add ?region=... to the URI, or "
                         "set AWS_REGION.")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return DataError(f"{name}: {server} does not accept the credentials ({code}). {_CREDENTIALS}, with a key that "
                         "is valid there.")
    if code == "RequestTimeTooSkewed":
        return DataError(f"{name}: the clock of this machine differs too much from the clock of {server}. Set the "
                         "clock of this machine, and start the same command again.")
    if status in (401, 403):
        return DataError(f"{name}: {server} denies access with these credentials ({code}). Request permission to list "
                         f"and read the bucket {bucket}, or use another key. {_CREDENTIALS}.")
    return DataError(f"{name}: {server} refuses the request ({_reason(error)}). Check the name and the server.")


def object_changed(name: str) -> ObjectChanged:
    """Return the error for an object that was replaced while it was read."""
    return ObjectChanged(f"{name}: the object has changed since reading began, so saved positions are not valid. "
                         "Restore the old object, or start again.")


def _code(error: Any) -> tuple[str, int]:
    """Return the error code of S3 and the HTTP status of a ClientError; 0 if the status is missing."""
    response = error.response
    return (str(response.get("Error", {}).get("Code", "")),
            int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)))


def _reason(error: Exception) -> str:
    """Return the message of an error on one line. Messages of botocore contain names and addresses, but no secrets."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
