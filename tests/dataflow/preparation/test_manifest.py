"""Any content of a manifest either describes prepared data or is refused in a sentence with file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.manifest import parse_manifest
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("".join(f"{side}{n % 50} wort\n" for n in range(100)))
    return prepare(PrepareSettings(str(tmp_path / "train.de"), str(tmp_path / "train.en"), str(tmp_path / "out"),
                                   vocab_kind="word", shard_pairs=40, workers=1))


def edited(manifest: dict[str, Any], change: Any) -> bytes:
    copy = json.loads(json.dumps(manifest))
    change(copy)
    return json.dumps(copy).encode()


CHANGES = {
    "man_extra": (lambda m: m["shards"][0].update(evil=1), r"`shards\[0\].evil` is not known"),
    "man_negpairs": (lambda m: m["shards"][1].update(pairs=-5), r"`shards\[1\].pairs` holds -5 where 0 or more"),
    "huge pairs": (lambda m: m["shards"][1].update(pairs=1 << 70), r"`shards\[1\].pairs` holds \d+ where \d+ or less"),
    "man_strpairs": (lambda m: m["shards"][0].update(pairs="7"), r'`shards\[0\].pairs` holds "7" where a whole number'),
    "man_noratio": (lambda m: m.pop("length_ratio"), "`length_ratio` is missing"),
    "ratio of zero": (lambda m: m.update(length_ratio=0), "`length_ratio` holds 0.0 where 1e-09 or more"),
    "man_noshards": (lambda m: m.pop("shards"), "`shards` is missing"),
    "man_shardsnull": (lambda m: m.update(shards=None), "`shards` holds null where a list is expected"),
    "shards of numbers": (lambda m: m.update(shards=[1]), r"`shards\[0\]` holds 1 where an object"),
    "bytes of an id": (lambda m: m["shards"][0].update(id_bytes=3), r"`shards\[0\].id_bytes` holds 3 where 2 or 4"),
    "crc": (lambda m: m["shards"][0].update(crc32=-1), r"`shards\[0\].crc32` holds -1"),
    "no file": (lambda m: m["shards"][0].pop("file"), r"`shards\[0\].file` is missing"),
    "validation": (lambda m: m.update(validation_sets="no"), '`validation_sets` holds "no" where a list is expected'),
    "settings": (lambda m: m.update(settings=[]), "`settings` holds a list where an object"),
    "vocabularies": (lambda m: m["vocabularies"].pop("target"), "`vocabularies.target` is missing"),
    "no files": (lambda m: m.pop("files"), "`files` is missing"),
    "files": (lambda m: m["files"][0].update(bytes=None), r"`files\[0\].bytes` holds null"),
    "version": (lambda m: m.update(version=99), "version 99 of prepared data"),
    "version text": (lambda m: m.update(version="x" * 999), "version x{40} of prepared data"),
    "no version": (lambda m: m.pop("version"), "version None of prepared data"),
    "format": (lambda m: m.update(format="other"), "not the manifest of prepared data"),
    "absolute": (lambda m: m["shards"][0].update(file="/etc/passwd"), "names the file '/etc/passwd', which may lie"),
    "above": (lambda m: m["files"][0].update(file="../x"), "names the file '../x', which may lie outside")}


@pytest.mark.parametrize("case", CHANGES)
def test_an_invalid_manifest_is_reported_with_file_and_field(case: str, data: PreparedData,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    change, reason = CHANGES[case]
    (Path(data.directory) / "manifest.json").write_bytes(edited(data.manifest, change))
    with pytest.raises(DataError, match=rf"out/manifest.json.*{reason}"):
        PreparedData(data.directory)
    assert main(["inspect", str(data.directory)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("towernmt: ") and message.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b"[" * 99_999, b"\xff\xfe{}", b'{"format": NaN}'])
def test_a_file_that_is_not_a_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^x/manifest.json: (cannot be read \(|not the manifest of prepared data)"):
        parse_manifest(content, "x/manifest.json")


@pytest.mark.thorough
def test_every_field_with_every_absurd_value_is_read_or_refused_in_a_sentence(data: PreparedData) -> None:
    values = (None, True, -1, 1 << 80, 1.5, 1e300, "", "x", "../x", [], [None], {}, {"x": 1})

    def positions_in(value: Any) -> list[tuple[Any, Any]]:
        items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
        return [(value, key) for key, _ in items] + [position for _, item in items for position in positions_in(item)]

    count = len(positions_in(json.loads(json.dumps(data.manifest))))
    refused = 0
    for number in range(count):
        for value in values:
            copy = json.loads(json.dumps(data.manifest))
            parent, key = positions_in(copy)[number]
            parent[key] = value
            try:
                parse_manifest(json.dumps(copy).encode(), "manifest.json")
            except DataError as error:
                refused += 1
                assert str(error).startswith("manifest.json") and "\n" not in str(error)
    assert refused > 0.5 * count * len(values)
