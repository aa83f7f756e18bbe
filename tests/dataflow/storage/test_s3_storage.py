"""Listing and reading objects of a real S3 server, and the messages for unreadable ones."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import re
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.storage import s3_client
from towernmt.dataflow.storage.s3_client import ObjectMissing
from towernmt.dataflow.storage.s3_storage import S3Storage, glob_pattern


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture
def bucket(s3: Any) -> str:
    return str(s3.new_bucket())


def put(s3: Any, bucket: str, **objects: bytes) -> None:
    for key, body in objects.items():
        s3.client().put_object(Bucket=bucket, Key=key, Body=body)


def read_all(stream: io.RawIOBase, size: int) -> bytes:
    return b"".join(iter(lambda: stream.read(size) or b"", b""))


@pytest.mark.parametrize("chunk", [7_000, 1 << 20])
def test_an_object_is_read_whole_in_ranges(s3: Any, bucket: str, chunk: int) -> None:
    data = content(100_001)
    put(s3, bucket, **{"a/b.bin": data})
    storage = S3Storage(s3.url, chunk_bytes=chunk)
    [file] = storage.list(f"s3://{bucket}/a/b.bin")
    assert (file.name, file.size) == (f"s3://{bucket}/a/b.bin", len(data))
    with storage.open(file) as stream:
        assert read_all(stream, 3_333) == data       # type: ignore[arg-type]
    with storage.open(file, offset=99_000) as stream:
        assert read_all(stream, 333) == data[99_000:]    # type: ignore[arg-type]
    with storage.open(file, offset=len(data)) as stream:
        assert stream.read(10) == b""


def test_an_object_can_be_sought_in(s3: Any, bucket: str) -> None:
    data = content(50_000)
    put(s3, bucket, x=data)
    storage = S3Storage(s3.url, chunk_bytes=4_000)
    stream = storage.open(storage.list(f"s3://{bucket}/x")[0])
    assert stream.seek(-100, io.SEEK_END) == 49_900
    assert stream.read(100) == data[-100:]
    stream.seek(1_000)
    assert stream.read(10) == data[1_000:1_010] and stream.tell() == 1_010
    stream.seek(20, io.SEEK_CUR)
    assert io.BufferedReader(stream).read() == data[1_030:]      # type: ignore[type-var]


def test_an_empty_object_is_an_empty_file(s3: Any, bucket: str) -> None:
    put(s3, bucket, nothing=b"")
    storage = S3Storage(s3.url)
    [file] = storage.list(f"s3://{bucket}/nothing")
    assert file.size == 0 and storage.open(file).read(5) == b""


def test_globs_list_what_a_shell_would_and_in_order(s3: Any, bucket: str) -> None:
    keys = ["p/a-2.gz", "p/a-10.gz", "p/a-1.gz", "p/b.gz", "p/deep/a-3.gz", "p/[x].gz", "p/sp ace+%ü.gz", "q"]
    put(s3, bucket, **{key: b"1" for key in keys}, **{"p/folder/": b""})
    storage = S3Storage(s3.url)

    def names(pattern: str) -> list[str]:
        return [file.name.removeprefix(f"s3://{bucket}/") for file in storage.list(f"s3://{bucket}/{pattern}")]

    assert names("p/a-*.gz") == ["p/a-1.gz", "p/a-10.gz", "p/a-2.gz"]
    assert names("p/a-?.gz") == ["p/a-1.gz", "p/a-2.gz"]
    assert names("p/a-[2-9].gz") == ["p/a-2.gz"]
    assert names("p/**/a-*.gz") == ["p/a-1.gz", "p/a-10.gz", "p/a-2.gz", "p/deep/a-3.gz"]
    assert names("p/[x].gz") == ["p/[x].gz"]            # an object has this name literally
    assert names("p/s*.gz") == ["p/sp ace+%ü.gz"] == names("p/sp ace+%ü.gz")
    assert names("**") == sorted(keys)
    with pytest.raises(DataError, match=r"p/z\*: no object matches"):
        names("p/z*")
    with pytest.raises(DataError, match=r"p/: this is a prefix, not an object"):
        names("p/")


def test_objects_of_many_pages_are_all_listed(s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "PAGE_OBJECTS", 3)
    keys = [f"many/{n:04d}" for n in range(10)]
    put(s3, bucket, **{key: b"" for key in keys})
    assert [file.name for file in S3Storage(s3.url).list(f"s3://{bucket}/many/*")] == [
        f"s3://{bucket}/{key}" for key in keys]


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_globs_without_folders_match_as_fnmatch_does(pattern: str, key: str) -> None:
    if "**" not in pattern and "/" not in key + pattern:
        assert bool(glob_pattern(pattern).fullmatch(key)) == fnmatchcase(key, pattern)
    if "*" not in pattern and "?" not in pattern:
        assert bool(glob_pattern(pattern).fullmatch(key)) == (pattern == key)


@pytest.mark.parametrize(("pattern", "key", "matches"), [
    ("[!a]", "b", True), ("[!a]", "a", False), ("[!a]", "/", False), ("[]x]", "]", True), ("[a-c]1", "b1", True),
    ("[^a]", "^", True), ("a[", "a[", True), ("**/x", "x", True), ("**/x", "a/b/x", True), ("**/x", "ax", False),
    ("a/*/c", "a/b/c", True), ("a/*/c", "a/b/b/c", False), ("a.c", "abc", False)])
def test_globs_know_sets_and_folders(pattern: str, key: str, matches: bool) -> None:
    assert bool(glob_pattern(pattern).fullmatch(key)) == matches


def test_a_reversed_range_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^part-\[9-0\]\.tsv: not a valid pattern \(bad character range 9-0\)"):
        glob_pattern("part-[9-0].tsv")


def test_a_missing_object_or_bucket_is_named(s3: Any, bucket: str) -> None:
    storage = S3Storage(s3.url)
    with pytest.raises(ObjectMissing, match=f"s3://{bucket}/no: the object does not exist at {s3.url}"):
        storage.list(f"s3://{bucket}/no")
    for pattern in ("s3://no-such-bucket/no", "s3://no-such-bucket/*"):
        with pytest.raises(DataError, match=rf"{re.escape(pattern)}: bucket no-such-bucket does not exist"):
            storage.list(pattern)
    put(s3, bucket, x=b"1")
    [file] = storage.list(f"s3://{bucket}/x")
    s3.client().delete_object(Bucket=bucket, Key="x")
    with pytest.raises(DataError, match=f"s3://{bucket}/x: the object does not exist"):
        storage.open(file).read(1)
    with pytest.raises(DataError, match="not a valid name in S3"):
        storage.list("s3:///x")


@pytest.mark.parametrize(("key", "secret", "reason"), [
    ("testkey", "wrong-and-secret", r"does not accept the credentials \(SignatureDoesNotMatch\)"),
    ("nobody", "wrong-and-secret", r"does not accept the credentials \(InvalidAccessKeyId\)"),
    ("stranger", "testsecret", r"denies access with these credentials \(AccessDenied\)"),
    (None, None, r"the credentials for .* are missing .* Set AWS_ACCESS_KEY_ID")])
def test_wrong_credentials_are_reported_at_once_and_never_shown(
        s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str | None,
        secret: str | None, reason: str) -> None:
    put(s3, bucket, x=b"1")
    for name, value in (("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)):
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    for pattern in ("x", "*"):
        with caplog.at_level(logging.INFO), pytest.raises(DataError, match=reason) as error:
            S3Storage(s3.url).list(f"s3://{bucket}/{pattern}")
        assert str(error.value).startswith(f"s3://{bucket}/{pattern}: ") and "\n" not in str(error.value)
        assert "secret" not in caplog.text + str(error.value).replace("AWS_SECRET", "").replace("testsecret", "secret")


def test_the_endpoint_may_come_from_the_environment(s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    put(s3, bucket, x=b"123")
    assert S3Storage().list(f"s3://{bucket}/x")[0].size == 3


@pytest.mark.parametrize(("endpoint", "reason"), [
    ("127.0.0.1:8333", "Write the endpoint as http://host:port"),
    ("http://me:word@127.0.0.1:8333", "contains a user name or a password")])
def test_an_endpoint_that_cannot_work_is_refused(s3: Any, endpoint: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        S3Storage(endpoint).list("s3://bucket/x")
    assert ":word" not in str(error.value)


def test_a_server_that_is_not_there_ends_after_the_retries(s3: Any) -> None:
    with pytest.raises(DataError, match=r"s3://bucket/x: not reachable in 3 consecutive attempts") as error:
        S3Storage("http://127.0.0.1:9", retries=2).list("s3://bucket/x")
    assert "\n" not in str(error.value)


def _read_in_child(storage: S3Storage, name: str, results: Any) -> None:
    results.put((os.getpid(), storage.open(storage.list(name)[0]).read(10)))


def test_a_storage_that_has_been_used_works_in_a_forked_process(s3: Any, bucket: str) -> None:
    put(s3, bucket, x=b"0123456789")
    storage, name = S3Storage(s3.url), f"s3://{bucket}/x"
    assert storage.list(name)[0].size == 10
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_in_child, args=(storage, name, results))
    child.start()
    pid, data = results.get(timeout=PATIENCE)
    child.join()
    assert pid != os.getpid() and data == b"0123456789"
    assert storage.open(storage.list(name)[0]).read(10) == b"0123456789"


def test_a_storage_that_has_been_used_works_in_a_process_started_anew(s3: Any, bucket: str) -> None:
    put(s3, bucket, x=b"0123456789")
    storage, name = S3Storage(s3.url), f"s3://{bucket}/x"
    files = storage.list(name)
    assert pickle.loads(pickle.dumps(storage)).list(name) == files
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(os.getpid) != os.getpid()
        assert pool.apply(storage.list, (name,)) == files
