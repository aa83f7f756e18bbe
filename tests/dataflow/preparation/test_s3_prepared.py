"""Prepared data in S3: the same blocks as on a disk, either complete or refused, through a small cache."""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.preparation import s3_upload as upload
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, RemotePreparedData, open_prepared
from towernmt.dataflow.preparation.s3_upload import prepare_to_s3, upload_prepared
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.dataflow.storage import s3_client, s3_storage
from towernmt.dataflow.storage.object_cache import ObjectCache
from towernmt.dataflow.storage.s3_storage import parse_s3_folder

LINES = 3_000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> PrepareSettings:
    """Settings whose output is a local preparation in several shards."""
    folder = tmp_path_factory.mktemp("corpus")
    draws = np.random.default_rng(5)
    for side in ("de", "en"):
        words = (draws.integers(0, 50, draws.integers(3, 12)) for _ in range(LINES))
        lines = (" ".join(f"{side}{word}" for word in sentence) for sentence in words)
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n")
        (folder / f"valid.{side}").write_text(f"{side}1 {side}2\n{side}3\n")
        (folder / f"talks.{side}").write_text(f"{side}4\n")
    prepare_settings = PrepareSettings(
        source=str(folder / "train.de"), target=str(folder / "train.en"), output=str(folder / "out"),
        valid_source=[str(folder / "valid.de"), str(folder / "talks.de")], vocab_kind="word",
        valid_target=[str(folder / name) for name in ("valid.en", "valid.de", "talks.en", "talks.de")],
        vocab_size=60, shard_pairs=700)
    prepare(prepare_settings)
    return prepare_settings


@pytest.fixture
def local(settings: PrepareSettings) -> PreparedData:
    return PreparedData(settings.output)


@pytest.fixture
def uri(s3: Any) -> str:
    return f"s3://{s3.new_bucket()}/prepared/de-en?endpoint_url={s3.url}"


def keys(s3: Any, uri: str) -> dict[str, int]:
    bucket = uri.split("/")[2]
    page = s3.client().list_objects_v2(Bucket=bucket)
    return {item["Key"].removeprefix("prepared/de-en/"): item["Size"] for item in page.get("Contents", [])}


def block_bytes(block: PairBlock) -> list[bytes]:
    columns = [getattr(block, field.name) for field in dataclasses.fields(block)]
    return [np.asarray(column).tobytes() for column in columns if column is not None]


def all_blocks(data: PreparedData) -> list[list[bytes]]:
    return [block_bytes(data.read_block(index)) for index in range(data.num_blocks)]


def small_cache(folder: Path, data: PreparedData, shards: float) -> ObjectCache:
    largest = max(os.path.getsize(Path(data.directory) / shard["file"]) for shard in data.manifest["shards"])
    return ObjectCache(folder, int(shards * largest))


def test_data_prepared_to_s3_are_those_prepared_to_a_disk(
        s3: Any, settings: PrepareSettings, local: PreparedData, uri: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    stream = io.StringIO()
    prepared = prepare_to_s3(dataclasses.replace(settings, output=uri), stream)
    data = open_prepared(uri)
    assert type(prepared) is type(data) is RemotePreparedData and data.directory == uri.partition("?")[0]
    assert data.pairs == local.pairs == sum(len(local.read_block(index)) for index in range(local.num_blocks))
    assert data.num_blocks == local.num_blocks == 5 and data.length_ratio == local.length_ratio
    assert all_blocks(data) == all_blocks(local) == all_blocks(data)
    assert (data.valid_source, data.valid_target) == (local.valid_source, local.valid_target)
    assert [len(validation_set.references) for validation_set in data.validation_sets] == [2, 2]
    assert data.validation_sets == local.validation_sets
    assert data.statistics == local.statistics and data.statistics_table == local.statistics_table
    data.copy_vocabularies(tmp_path / "vocabulary")
    for name in ("source.words", "target.words"):
        assert (tmp_path / "vocabulary" / name).read_bytes() == (
            Path(settings.output) / "vocabulary" / name).read_bytes()
    assert "uploaded shard-00004.pairs" in stream.getvalue() and "write-test" not in keys(s3, uri)


def test_source_factors_and_alignments_come_back_from_s3(
        s3: Any, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    for name, line in (("source", "das|D Haus|N"), ("target", "the house"), ("links", "0-0 1-1")):
        (tmp_path / name).write_text(f"{line}\n" * 50)
    annotated = PrepareSettings(
        source=str(tmp_path / "source"), target=str(tmp_path / "target"), output=str(tmp_path / "out"),
        source_factors=1, alignments=str(tmp_path / "links"), vocab_kind="word", shard_pairs=20)
    local = prepare(annotated)
    prepare_to_s3(dataclasses.replace(annotated, output=uri))
    data = open_prepared(uri)
    assert data.has_alignments and data.source_vocabulary.streams == 2
    assert all_blocks(data) == all_blocks(local) and len(block_bytes(data.read_block(0))) == 7
    assert "vocabulary/source_factor_1.words" in keys(s3, uri)
    prepare_to_s3(dataclasses.replace(annotated, output=uri, alignments=None, overwrite=True))
    assert not open_prepared(uri).has_alignments


def test_a_second_run_finds_the_work_done_and_another_corpus_is_not_replaced(
        s3: Any, settings: PrepareSettings, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    remote = dataclasses.replace(settings, output=uri)
    prepare_to_s3(remote)
    before, stream = keys(s3, uri), io.StringIO()
    assert prepare_to_s3(remote, stream).pairs == PreparedData(settings.output).pairs
    name = uri.partition("?")[0]
    assert f"{name} was already prepared" in stream.getvalue() and "uploaded" not in stream.getvalue()
    changed = dataclasses.replace(remote, max_length=8, shard_pairs=2_000)
    with pytest.raises(DataError, match=f"{name} contains another preparation .*--overwrite"):
        prepare_to_s3(changed)
    assert keys(s3, uri) == before
    data = prepare_to_s3(dataclasses.replace(changed, overwrite=True))
    assert data.num_blocks == 2 and sum(len(data.read_block(i).source_offsets) - 1 for i in range(2)) == data.pairs
    folder = data.manifest["folder"]
    assert [key for key in keys(s3, uri) if "shard" in key] == [f"{folder}/shard-0000{n}.pairs" for n in range(2)]
    assert all(key.startswith(f"{folder}/") for key in keys(s3, uri) if key != "manifest.json")
    assert prepare_to_s3(changed).fingerprint == data.fingerprint


def test_large_shards_go_up_in_parts(
        s3: Any, settings: PrepareSettings, local: PreparedData, uri: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_storage, "PART_BYTES", 5 << 20)      # the minimum size of a part in S3
    folder = parse_s3_folder(uri)
    path = tmp_path / "shard-00000.pairs"
    path.write_bytes(np.random.default_rng(1).bytes(12 << 20))
    entry = upload._Uploader(folder, None).upload(path, "shard-00000.pairs")
    assert entry["bytes"] == 12 << 20
    head = s3.client().head_object(Bucket=uri.split("/")[2], Key="prepared/de-en/shard-00000.pairs")
    assert head["ETag"].strip('"').endswith("-3")           # three parts
    assert folder.read("shard-00000.pairs") == path.read_bytes()


def test_uploads_and_reads_survive_errors_and_cuts(
        s3: Any, fault_proxy: Any, settings: PrepareSettings, local: PreparedData, tmp_path: Path) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    uri = f"s3://{s3.new_bucket()}/prepared/de-en?endpoint_url={fault_proxy.url}"
    fault_proxy.applies = lambda method, path: method in ("PUT", "POST")
    fault_proxy.script = [None, INTERNAL_ERROR, None, SLOW_DOWN, None, Cut(0), None, INTERNAL_ERROR]
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    assert fault_proxy.script == []
    data = RemotePreparedData(uri, small_cache(tmp_path, local, 2))
    fault_proxy.applies = lambda method, path: method == "GET" and "shard" in path
    fault_proxy.script = [SLOW_DOWN, Cut(1_000), Cut(0), None, INTERNAL_ERROR, Cut(5_000, True)]
    assert all_blocks(data) == all_blocks(local)
    assert fault_proxy.script == []


def test_parts_survive_errors_and_an_answer_that_is_lost(
        s3: Any, fault_proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    monkeypatch.setattr(s3_storage, "PART_BYTES", 5 << 20)
    path = tmp_path / "shard-00000.pairs"
    path.write_bytes(np.random.default_rng(2).bytes(11 << 20))
    folder = parse_s3_folder(f"s3://{s3.new_bucket()}/x?endpoint_url={fault_proxy.url}")
    fault_proxy.applies = lambda method, path: method == "PUT"
    fault_proxy.script = [SLOW_DOWN, None, INTERNAL_ERROR]
    upload._Uploader(folder, None).upload(path, "parts")
    assert fault_proxy.script == [] and folder.read("parts") == path.read_bytes()
    fault_proxy.applies = lambda method, path: method == "POST" and "uploadId=" in path
    fault_proxy.script = [Cut(0)]
    upload._Uploader(folder, None).upload(path, "finished")
    assert fault_proxy.script == [] and folder.read("finished") == path.read_bytes()


def test_an_incomplete_corpus_is_not_read_and_the_next_upload_resumes(
        s3: Any, fault_proxy: Any, settings: PrepareSettings, local: PreparedData, tmp_path: Path) -> None:
    from tests.servers.fault_proxy import Answer

    bucket = s3.new_bucket()
    uri = f"s3://{bucket}/prepared/de-en?endpoint_url={fault_proxy.url}&retries=0"
    fault_proxy.applies = lambda method, path: method == "PUT" and "shard-00003" in path
    fault_proxy.script = [Answer(403, "AccessDenied")]
    with pytest.raises(DataError, match=r"shard-00003.pairs: .* denies access .*AccessDenied"):
        upload_prepared(Path(settings.output), parse_s3_folder(uri))
    assert "manifest.json" not in keys(s3, uri) and "shard-00002.pairs" in keys(s3, uri)
    with pytest.raises(DataError, match=rf"s3://{bucket}/prepared/de-en: no manifest.json there.*did not finish"):
        open_prepared(uri)
    fault_proxy.seen.clear()
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    written = [request.path.rpartition("/")[2].partition("?")[0]
               for request in fault_proxy.seen if request.method == "PUT"]
    assert written == ["shard-00003.pairs", "shard-00004.pairs", "manifest.json"]
    assert all_blocks(RemotePreparedData(uri, small_cache(tmp_path, local, 9))) == all_blocks(local)


def test_a_corpus_is_whole_until_the_one_that_replaces_it_is(
        s3: Any, fault_proxy: Any, settings: PrepareSettings, local: PreparedData, tmp_path: Path) -> None:
    from tests.servers.fault_proxy import Answer

    uri = f"s3://{s3.new_bucket()}/prepared/de-en?endpoint_url={fault_proxy.url}&retries=0"
    folder = parse_s3_folder(uri)
    upload_prepared(Path(settings.output), folder)
    replacement = prepare(dataclasses.replace(settings, output=str(tmp_path / "other"), seed=2))
    for refused in ("shard-00000", "shard-00003", "manifest"):
        fault_proxy.applies = lambda method, path: method == "PUT" and refused in path  # noqa: B023
        fault_proxy.script = [Answer(403, "AccessDenied")]
        with pytest.raises(DataError, match="AccessDenied"):
            upload_prepared(tmp_path / "other", folder)
        assert all_blocks(RemotePreparedData(uri, small_cache(tmp_path / refused, local, 9))) == all_blocks(local)
    fault_proxy.seen.clear()
    upload_prepared(tmp_path / "other", folder)
    changes = [(request.method, request.path.rpartition("/")[2].partition("?")[0]) for request in fault_proxy.seen
               if request.method in ("PUT", "POST", "DELETE")]
    assert changes[0] == ("PUT", "manifest.json") and {method for method, _ in changes[1:]} == {"DELETE"}
    assert all_blocks(RemotePreparedData(uri, small_cache(tmp_path / "new", local, 9))) == all_blocks(replacement)
    fault_proxy.seen.clear()
    upload_prepared(tmp_path / "other", folder)     # the same data again: only the manifest is read
    assert [request.method for request in fault_proxy.seen if request.method in ("PUT", "DELETE")] == ["PUT"]


def test_a_manifest_in_s3_names_no_file_outside_its_place(
        s3: Any, settings: PrepareSettings, uri: str, tmp_path: Path) -> None:
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    object_name = {"Bucket": uri.split("/")[2], "Key": "prepared/de-en/manifest.json"}
    manifest = json.loads(s3.client().get_object(**object_name)["Body"].read())
    names = (str(victim), "../above", "a/../../above", "C:\\drive", "back\\slash")
    for change in (change for name in names for change in (
            {"files": [{**manifest["files"][0], "file": name}]}, {"shards": [{**manifest["shards"][0], "file": name}]},
            {"folder": name})):
        s3.client().put_object(**object_name, Body=json.dumps(manifest | change).encode())
        for read in (open_prepared, lambda uri: prepare_to_s3(dataclasses.replace(settings, output=uri))):
            with pytest.raises(DataError, match=r"manifest.json names the file .* may lie outside its directory"):
                read(uri)
    assert victim.read_text() == "mine"


def test_objects_of_other_people_stay(s3: Any, settings: PrepareSettings, uri: str) -> None:
    def put(name: str) -> None:
        s3.client().put_object(Bucket=uri.split("/")[2], Key=f"prepared/de-en/{name}", Body=name.encode())

    foreign = ("statistics.txt.bak", "vocabulary/notes.txt", "write-test", "shard-1.pairs", "data-0/shard-00000.pairs")
    for name in foreign:
        put(name)
    prepare_to_s3(dataclasses.replace(settings, output=uri))
    prepare_to_s3(dataclasses.replace(settings, output=uri, seed=2, overwrite=True))
    folder = parse_s3_folder(uri)
    assert {name: folder.read(name) for name in foreign} == {name: name.encode() for name in foreign}
    foreign_uri = f"s3://{s3.new_bucket()}/other?endpoint_url={s3.url}"
    s3.client().put_object(Bucket=foreign_uri.split("/")[2], Key="other/valid.source", Body=b"mine")
    with pytest.raises(DataError, match="other contains valid.source, but no preparation"):
        prepare_to_s3(dataclasses.replace(settings, output=foreign_uri))
    assert parse_s3_folder(foreign_uri).read("valid.source") == b"mine"


def test_permission_to_write_is_asked_for_before_the_work(
        s3: Any, settings: PrepareSettings, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with pytest.raises(DataError, match="bucket no-such-bucket does not exist"):
        prepare_to_s3(dataclasses.replace(settings, output=f"s3://no-such-bucket/x?endpoint_url={s3.url}"), stream)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    s3_client._clients.clear()
    with pytest.raises(DataError, match="denies access with these credentials"):
        prepare_to_s3(dataclasses.replace(settings, output=uri), stream)
    assert stream.getvalue() == ""


def _epochs(uri: str, folder: Path, limit: int, seed: int, results: Any) -> None:
    data = RemotePreparedData(uri, ObjectCache(folder, limit))
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(data.num_blocks), 4))
    recent_blocks = [(int(index), data.read_block(int(index))) for index in order[:3]]
    pairs, blocks = 0, []
    for index in order:
        block = data.read_block(int(index))
        pairs += len(block.source_offsets) - 1
        recent_blocks = [*recent_blocks[1:], (int(index), block)]     # mapped, while the cache removes them
        blocks = [(number, block_bytes(block)) for number, block in recent_blocks]
    results.put((pairs, blocks))


def test_processes_share_a_cache_smaller_than_the_corpus(
        s3: Any, settings: PrepareSettings, local: PreparedData, uri: str, tmp_path: Path) -> None:
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    cache, blocks = small_cache(tmp_path, local, 2.1), all_blocks(local)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_epochs, args=(uri, tmp_path, cache.limit_bytes, seed, results))
               for seed in range(3)]
    for worker in workers:
        worker.start()
    for _ in workers:
        pairs, read_blocks = results.get(timeout=PATIENCE)
        assert pairs == 4 * local.pairs
        assert all(content == blocks[index] for index, content in read_blocks)
    for worker in workers:
        worker.join()
    assert cache.bytes() <= cache.limit_bytes


def test_a_damaged_copy_in_the_cache_is_fetched_again(
        s3: Any, settings: PrepareSettings, local: PreparedData, uri: str, tmp_path: Path) -> None:
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    cache = small_cache(tmp_path, local, 9)
    all_blocks(RemotePreparedData(uri, cache))
    for harm in ("truncated", "one bit", "emptied", "another shard"):
        copies = [path for path in tmp_path.iterdir() if path.name != "lock"]
        contents = [path.read_bytes() for path in copies]
        assert len(copies) == local.num_blocks
        for n, path in enumerate(copies):
            damaged = bytearray(contents[n])
            damaged[-3] ^= 4
            path.write_bytes({"truncated": contents[n][:-1], "one bit": bytes(damaged), "emptied": b"",
                              "another shard": contents[n - 1]}[harm])
        assert all_blocks(RemotePreparedData(uri, cache)) == all_blocks(local), harm


@pytest.mark.parametrize(("harm", "reason"), [
    ("truncated", r"shard-00001.pairs: \d+ bytes where the manifest announces \d+: the shard is truncated"),
    ("one bit", r"shard-00001.pairs: the shard is damaged \(its checksum is wrong\)"),
    ("gone", r"shard-00001.pairs: the object does not exist")])
def test_a_damaged_shard_in_s3_is_refused_and_not_kept(
        s3: Any, settings: PrepareSettings, local: PreparedData, uri: str, tmp_path: Path, harm: str, reason: str
        ) -> None:
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    object_name = {"Bucket": uri.split("/")[2], "Key": "prepared/de-en/shard-00001.pairs"}
    damaged = bytearray((Path(settings.output) / "shard-00001.pairs").read_bytes())
    damaged[-3] ^= 4
    if harm == "gone":
        s3.client().delete_object(**object_name)
    else:
        s3.client().put_object(**object_name, Body=bytes(damaged[:-1] if harm == "truncated" else damaged))
    cache = small_cache(tmp_path, local, 9)
    data = RemotePreparedData(uri, cache)
    with pytest.raises(DataError, match=reason):
        data.read_block(1)
    assert cache.bytes() == 0
    assert block_bytes(data.read_block(0)) == block_bytes(local.read_block(0))


def test_damaged_small_files_and_manifests_are_named(s3: Any, settings: PrepareSettings, uri: str) -> None:
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    bucket, client = uri.split("/")[2], s3.client()

    def put(file: str, body: bytes) -> None:
        client.put_object(Bucket=bucket, Key=f"prepared/de-en/{file}", Body=body)

    manifest = client.get_object(Bucket=bucket, Key="prepared/de-en/manifest.json")["Body"].read()
    put("vocabulary/source.words", b"other")
    with pytest.raises(DataError, match=r"vocabulary/source.words: the file is damaged"):
        open_prepared(uri)
    put("manifest.json", manifest[:100])
    with pytest.raises(DataError, match=r"prepared/de-en/manifest.json: cannot be read"):
        open_prepared(uri)


def test_a_block_in_the_cache_needs_no_server(
        s3: Any, fault_proxy: Any, settings: PrepareSettings, local: PreparedData, tmp_path: Path) -> None:
    uri = f"s3://{s3.new_bucket()}/prepared/de-en?endpoint_url={fault_proxy.url}"
    upload_prepared(Path(settings.output), parse_s3_folder(uri))
    data = RemotePreparedData(uri, small_cache(tmp_path, local, 9))
    first = all_blocks(data)
    fault_proxy.seen.clear()
    assert all_blocks(data) == first and fault_proxy.seen == []


@pytest.mark.parametrize(("uri", "reason"), [
    ("s3://bucket/x?endpoint=http://h:1", "unknown option endpoint.*endpoint_url, region, retries"),
    ("s3://bucket/x?retries=many", "retries=many: expected a whole number")])
def test_options_that_do_not_exist_are_refused(uri: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        open_prepared(uri)


def test_a_failed_upload_resumes_without_preparing_again(
        fault_proxy: Any, s3: Any, settings: PrepareSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.fault_proxy import Answer

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    uri = f"s3://{s3.new_bucket()}/prepared/de-en?endpoint_url={fault_proxy.url}&retries=0"
    remote = dataclasses.replace(settings, output=uri)
    fault_proxy.applies = lambda method, path: method == "PUT" and "shard-00003" in path
    for _ in range(2):
        fault_proxy.script = [Answer(403, "AccessDenied")]
        with pytest.raises(DataError, match="AccessDenied"):
            prepare_to_s3(remote, stream := io.StringIO())
    assert "was already prepared" in stream.getvalue() and "encoding" not in stream.getvalue()
    changed = dataclasses.replace(remote, seed=2)
    prepare_to_s3(changed, stream := io.StringIO())
    assert "encoding" in stream.getvalue() and set(tmp_path.iterdir()) == before
    assert open_prepared(uri).manifest["settings"]["seed"] == 2
