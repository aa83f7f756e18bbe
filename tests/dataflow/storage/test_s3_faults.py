"""Faults of a network and of a busy server while S3 is read; all received bytes are counted."""

from __future__ import annotations

import hashlib
import io
import random
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.storage import s3_client, s3_storage
from towernmt.dataflow.storage.s3_client import ObjectChanged
from towernmt.dataflow.storage.s3_storage import S3Storage, parse_s3_folder, upload_stream

LINES = 20_000


@pytest.fixture
def stored(s3: Any) -> tuple[str, bytes]:
    """An object of `LINES` lines: its name and content."""
    bucket = s3.new_bucket()
    numbers = np.random.default_rng(3).integers(0, 1 << 30, LINES)
    data = "".join(f"satz {n}\tsentence {n}\n" for n in numbers).encode()
    s3.client().put_object(Bucket=bucket, Key="pairs.tsv", Body=data)
    return f"s3://{bucket}/pairs.tsv", data


def is_body(method: str, path: str) -> bool:
    return method == "GET" and path.endswith(".tsv")


def read(storage: S3Storage, name: str, offset: int = 0) -> bytes:
    stream = storage.open(storage.list(name)[0], offset)
    return b"".join(iter(lambda: stream.read(5_000), b""))


def test_errors_of_the_server_and_cuts_in_mid_object_lose_no_byte(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    name, data = stored
    fault_proxy.applies = is_body
    fault_proxy.script = [INTERNAL_ERROR, Cut(70_000), SLOW_DOWN, SLOW_DOWN, None, Cut(0), Cut(1), Cut(12_345, True),
                          INTERNAL_ERROR, Cut(100_000), Cut(65_536), SLOW_DOWN, Cut(5, True)]
    content = read(S3Storage(fault_proxy.url, chunk_bytes=150_000), name)
    assert fault_proxy.script == []
    assert content.count(b"\n") == LINES and hashlib.sha256(content).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("seed", range(3))
def test_any_row_of_faults_loses_no_byte(fault_proxy: Any, stored: Any, seed: int) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    name, data = stored
    draws = np.random.default_rng(seed)
    faults = [None, INTERNAL_ERROR, SLOW_DOWN, *[Cut(int(n), n % 2 == 0) for n in draws.integers(1, 60_000, 5)]]
    fault_proxy.applies = is_body
    fault_proxy.script = [faults[i] for i in draws.integers(0, len(faults), 25)]
    start = int(draws.integers(0, len(data)))
    assert read(S3Storage(fault_proxy.url, chunk_bytes=40_000, retries=25), name, start) == data[start:]


def test_a_cut_range_is_asked_for_again_from_the_byte_where_it_was_cut(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import Cut

    name, data = stored
    fault_proxy.applies = is_body
    fault_proxy.script = [Cut(1 << 16)]
    assert read(S3Storage(fault_proxy.url, chunk_bytes=200_000), name) == data
    ranges = [request.range for request in fault_proxy.seen if is_body(request.method, request.path)]
    assert ranges[:3] == ["bytes=0-199999", "bytes=65536-199999", "bytes=200000-399999"]


def test_a_silent_server_is_asked_again(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import Stall

    name, data = stored
    storage = S3Storage(fault_proxy.url, timeout=1)
    [file] = storage.list(name)
    fault_proxy.script = [Stall()]
    assert storage.open(file).read(100) == data[:100]
    assert fault_proxy.script == []


def test_listing_survives_faults_too(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    name, data = stored
    storage = S3Storage(fault_proxy.url)
    for pattern in (name, name.replace("pairs", "p*")):
        cut = Cut(0) if "*" in pattern else INTERNAL_ERROR      # an answer to HEAD has no body to be cut
        fault_proxy.script = [SLOW_DOWN, INTERNAL_ERROR, cut, SLOW_DOWN]
        assert [(file.name, file.size) for file in storage.list(pattern)] == [(name, len(data))]
        assert fault_proxy.script == []


def test_an_outage_without_end_is_one_sentence_after_the_retries(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import SLOW_DOWN

    name, _ = stored
    storage = S3Storage(fault_proxy.url, retries=3)
    [file] = storage.list(name)
    fault_proxy.script = [SLOW_DOWN] * 100
    with pytest.raises(DataError, match=r"pairs.tsv: not reachable in 4 consecutive attempts \(.*SlowDown") as error:
        storage.open(file).read(1)
    assert "\n" not in str(error.value) and len(fault_proxy.script) == 96


def test_progress_begins_the_count_of_failures_anew(fault_proxy: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import Cut

    name, data = stored
    fault_proxy.applies = is_body
    fault_proxy.script = [Cut(10_000)] * 30
    assert read(S3Storage(fault_proxy.url, retries=1), name) == data
    assert fault_proxy.script == []


def test_waits_grow_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(s3_client.time, "sleep", waits.append)
    monkeypatch.setattr(s3_client._jitter, "uniform", lambda low, high: high)

    def fail() -> None:
        raise ConnectionResetError("cut")

    # 2.0 ** 1024 is too large for a float.
    with pytest.raises(DataError, match="in 1101 consecutive attempts"):
        s3_client.retrying(s3_client.S3Options(retries=1100), "s3://b/k", fail)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, *[20] * 1093])


def test_retries_do_not_change_the_state_of_seeded_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client.time, "sleep", lambda seconds: None)
    random.seed(5)
    expected = random.random()
    random.seed(5)
    with pytest.raises(DataError, match="in 3 consecutive attempts"):
        s3_client.give_up_or_wait(s3_client.S3Options(retries=2), "s3://b/k", ConnectionResetError("cut"), 1)
        s3_client.give_up_or_wait(s3_client.S3Options(retries=2), "s3://b/k", ConnectionResetError("cut"), 3)
    assert random.random() == expected


def test_an_object_that_changes_in_mid_read_is_an_error_that_says_so(s3: Any, stored: Any) -> None:
    name, data = stored
    storage = S3Storage(s3.url, chunk_bytes=10_000)
    [file] = storage.list(name)
    stream = storage.open(file)
    assert stream.read(10_000) == data[:10_000]
    bucket = name.split("/")[2]
    s3.client().put_object(Bucket=bucket, Key="pairs.tsv", Body=data[::-1])
    with pytest.raises(ObjectChanged, match="pairs.tsv: the object has changed since reading began"):
        while stream.read(10_000):
            pass
    s3.client().put_object(Bucket=bucket, Key="pairs.tsv", Body=data[:100])
    with pytest.raises(ObjectChanged, match="has changed"):
        storage.open(file, 50_000).read(1)


def test_a_change_between_a_cut_and_the_retry_is_seen(fault_proxy: Any, s3: Any, stored: Any) -> None:
    from tests.servers.fault_proxy import Cut, Run

    name, data = stored
    storage = S3Storage(fault_proxy.url)
    [file] = storage.list(name)
    put = lambda: s3.client().put_object(Bucket=name.split("/")[2], Key="pairs.tsv", Body=data[::-1])  # noqa: E731
    fault_proxy.script = [Cut(1_000), Run(put)]
    with pytest.raises(ObjectChanged):
        storage.open(file).read(1)


def test_an_upload_whose_last_answer_is_lost_counts_only_if_the_object_is_there(
        s3: Any, fault_proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.fault_proxy import Answer, Cut

    monkeypatch.setattr(s3_storage, "PART_BYTES", 5 << 20)
    data = np.random.default_rng(4).bytes(11 << 20)
    folder = parse_s3_folder(f"s3://{s3.new_bucket()}/x?endpoint_url={fault_proxy.url}")
    fault_proxy.applies = lambda method, path: method == "POST" and "uploadId=" in path
    fault_proxy.script = [Cut(0)]
    upload_stream(folder.options, folder.path("new"), io.BytesIO(data))
    assert fault_proxy.script == [] and folder.read("new") == data
    fault_proxy.script = [Answer(404, "NoSuchUpload")] * 20
    with pytest.raises(DataError, match="x/new: "):     # where the object of the first upload is
        upload_stream(folder.options, folder.path("new"), io.BytesIO(data[::-1]))
    assert folder.read("new") == data


def test_a_failed_upload_reports_all_attempts(s3: Any) -> None:
    options = s3_client.S3Options("http://127.0.0.1:9", retries=1)
    with pytest.raises(DataError, match="s3://bucket/x: not reachable in 2 consecutive attempts"):
        upload_stream(options, "s3://bucket/x", io.BytesIO(b"text"))


def test_a_wrong_clock_is_not_reported_as_wrong_credentials() -> None:
    from botocore.exceptions import ClientError

    def fail() -> None:
        raise ClientError({"Error": {"Code": "RequestTimeTooSkewed", "Message": "too large"},
                           "ResponseMetadata": {"HTTPStatusCode": 403}}, "GetObject")     # type: ignore[typeddict-item]

    with pytest.raises(DataError, match="^s3://b/k: the clock of this machine differs too much from the clock of S3"):
        s3_client.retrying(s3_client.S3Options(), "s3://b/k", fail)


def test_errors_that_are_not_of_s3_are_not_dressed_up(s3: Any) -> None:
    def fail() -> None:
        raise KeyError("a mistake of the program")

    with pytest.raises(KeyError):
        s3_client.retrying(s3_client.S3Options(), "s3://b/k", fail)
