"""Objects that are written: a stream of any length becomes one when it has come to its end, and nothing before."""

from __future__ import annotations

import dataclasses
from secrets import token_hex
from typing import BinaryIO

from towernmt.dataflow.storage.s3_client import S3Options, client, retrying, split_name

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
    """Write and remove an empty object beside `name`.

    Raises:
        DataError: that is not allowed, or the server cannot be reached.
    """
    bucket, key = split_name(name)
    probe, s3 = f"{key}.write-test-{token_hex(8)}", client(options)
    retrying(options, name, lambda: s3.put_object(Bucket=bucket, Key=probe, Body=b""))
    retrying(options, name, lambda: s3.delete_object(Bucket=bucket, Key=probe))
