"""The values of `--data`, and the messages for missing data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.batches.training_data import StreamedCorpus, is_prepared, make_batches, open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import Corpora, SourceEntry
from towernmt.dataflow.sources.mixture import Ingredient
from towernmt.dataflow.text.validation_set import ValidationFiles, ValidationSet


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with text, `prepared` data and a `corpora.yaml`."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"ja {n} wort\tyes {n}\n" for n in range(20)))
    Path("valid.de").write_text("ja  wort\n")
    Path("valid.en").write_text("yes  word\n")
    prepare(PrepareSettings("pairs.tsv", output="prepared", vocab_kind="word"))
    Path("corpora.yaml").write_text("sources: [pairs.tsv]\nvocabulary: prepared\n"
                                    "validation: {source: valid.de, target: valid.en}\n")
    return tmp_path


@pytest.mark.parametrize(("text", "expected"), [
    ("prepared", True), ("nowhere", True), ("pairs.tsv", False), ("gone.tsv", False), ("x.{de,en}", False),
    ("part-*", False), ("corpora.yaml", False), ("sqlite:///x?table=t", False), ("s3://bucket/prepared/de-en", True),
    ("s3://bucket/prepared/de-en?endpoint_url=http://127.0.0.1:8333", True), ("s3://bucket/x.tsv.gz", False),
    ("s3://bucket/part-*?format=tsv", False), ("s3://bucket/x.{de,en}?endpoint_url=http://h", False),
    ("s3://bucket/part-?.tsv?region=eu", False), ("s3://bucket/part-?", False),
    ("s3://bucket/prepared/wmt14.de-en", True), ("s3://bucket/pairs?format=tsv", False), ("s3://bucket/*/x", False),
    ("s3://bucket/x.gz", False), ("S3://bucket/prepared", True), ("S3://bucket/x.tsv", False),
])
def test_a_name_tells_prepared_data_from_sources(directory: Path, text: str, expected: bool) -> None:
    assert is_prepared(text) is expected


def test_both_kinds_of_data_give_batches_of_the_same_pairs(directory: Path) -> None:
    reports: list[str] = []
    texts = []
    for location, kind in (("prepared", Batches), ("corpora.yaml", StreamBatches)):
        data = open_training_data(location)
        batches = make_batches(data, StreamBatchSettings(), 1, reports.append)
        assert isinstance(batches, kind)
        texts.append(sorted(data.source_vocabulary.decode(ids) for _, batch in batches.read() for ids in batch.source))
    assert texts[0] == texts[1] == sorted(f"ja {n} wort" for n in range(20))
    assert reports[0].startswith("20 pairs in about 1 batches an epoch")
    assert "pairs.tsv without preparation, in windows of 100,000 pairs" in reports[1]


@pytest.mark.parametrize(("shard_pairs", "limit", "warning"), [
    (4, 512, "The average batch has only 12 of batch_tokens=512, since no batch extends over two shards, and the "
             "5 shards of prepared-4 have only 4 pairs each"), (4, 3, None), (1_000_000, 512, None)])
def test_shards_too_small_for_batches_are_reported(directory: Path, shard_pairs: int, limit: int,
                                                   warning: str | None) -> None:
    output = f"prepared-{shard_pairs}"
    prepare(PrepareSettings("pairs.tsv", output=output, vocab_kind="word", shard_pairs=shard_pairs))
    reports: list[str] = []
    make_batches(open_training_data(output), StreamBatchSettings(batch_tokens=limit), 1, reports.append)
    assert [sentence for sentence in reports if "extends over two shards" in sentence] == [
        f"{warning}. Prepare with a larger --shard-pairs."] * (warning is not None)


def test_the_fingerprint_of_a_stream_is_that_of_its_sources_and_vocabularies(directory: Path) -> None:
    def fingerprint(text: str, vocabulary: str = "prepared") -> str:
        Path("corpora.yaml").write_text(text)
        return open_training_data("corpora.yaml", vocabulary).fingerprint

    plain = fingerprint("sources: [pairs.tsv]")
    assert plain == fingerprint("sources: [pairs.tsv]") == fingerprint("sources: [{uri: pairs.tsv, weight: 3}]")
    assert plain == open_training_data("pairs.tsv", "prepared").fingerprint and len(plain) == 32
    prepare(PrepareSettings("valid.de", "valid.en", output="other", vocab_kind="word"))
    changed = [fingerprint("sources: [{uri: pairs.tsv, tag: ja}]"), fingerprint("sources: [pairs.tsv, pairs.tsv]"),
               fingerprint("sources: [pairs.tsv]\nmax_length: 9"), fingerprint("sources: [./pairs.tsv]"),
               fingerprint("sources: [pairs.tsv]", "other")]
    assert len({plain, *changed}) == 6
    with open("pairs.tsv", "a") as file:
        file.write("ja\tyes\n")
    assert fingerprint("sources: [pairs.tsv]") == plain


def test_a_yaml_file_brings_vocabularies_and_validation_text(directory: Path) -> None:
    data = open_training_data("corpora.yaml")
    assert data.valid_source == ["ja wort"] and data.valid_target == ["yes  word"]
    assert str(data.directory) == "corpora.yaml" and not data.shared_vocabulary
    data.copy_vocabularies("copy")
    assert Path("copy/source.words").read_bytes() == Path("prepared/vocabulary/source.words").read_bytes()


def test_a_stream_has_all_its_validation_sets_with_all_references(directory: Path) -> None:
    Path("valid.2.en").write_text("sure word\n")
    Path("talks.de").write_text("ja  2\nwort\n")
    Path("talks.en").write_text("yes 2\nword\n")
    Path("corpora.yaml").write_text("sources: [pairs.tsv]\nvocabulary: prepared\nvalidation:\n"
                                    "- {source: valid.de, target: [valid.en, valid.2.en]}\n"
                                    "- {source: talks.de, target: talks.en}\n")
    data = open_training_data("corpora.yaml")
    assert data.validation_sets == [
        ValidationSet("valid", ["ja wort"], [["yes  word"], ["sure word"]]),
        ValidationSet("talks", ["ja 2", "wort"], [["yes 2", "word"]])]
    assert (data.valid_source, data.valid_target) == (["ja wort"], ["yes  word"])
    assert open_training_data("prepared").validation_sets == []


def test_the_vocabulary_of_the_command_line_comes_before_that_of_the_file_and_that_of_the_run(directory: Path) -> None:
    Path("other.words").write_text("<pad>\n<s>\n</s>\n<unk>\nja\n")
    assert open_training_data("corpora.yaml", "other.words").source_vocabulary.size == 5
    assert open_training_data("corpora.yaml", None, "other.words").source_vocabulary.size > 5
    single = open_training_data("pairs.tsv", None, "other.words")
    assert isinstance(single, StreamedCorpus)
    assert single.shared_vocabulary and single.source_vocabulary.size == 5


def test_sources_of_ones_own_are_training_data_without_a_uri(directory: Path, memory_source: Any) -> None:
    source = memory_source("own", 5)
    data = StreamedCorpus(Corpora("own", [Ingredient(source, tag="ja"), SourceEntry("pairs.tsv")],
                                  vocabulary="prepared",
                                  validation=[ValidationFiles("", "valid.de", ["valid.en"])]))
    batches = make_batches(data, StreamBatchSettings(), 1)
    assert sum(len(batch) for _, batch in batches.read()) >= 25 and source.pairs_read >= 5
    assert data.valid_source == ["ja wort"] and data.directory == "own" and len(data.fingerprint) == 32


def test_missing_training_data_are_named(directory: Path) -> None:
    with pytest.raises(SettingsError, match="unprepared text needs an existing vocabulary"):
        open_training_data("pairs.tsv")
    with pytest.raises(SettingsError, match="is prepared data, which includes its vocabularies"):
        open_training_data("prepared", "other.words")
    with pytest.raises(SettingsError, match="a word vocabulary has only one segmentation of a text. Set it to false"):
        make_batches(open_training_data("prepared"), StreamBatchSettings(subword_sampling=True))
    with pytest.raises(DataError, match="Make it with `towernmt prepare`"):
        open_training_data("nowhere")
    Path("corpora.yaml").write_text("sources:\n  - {uri: pairs.tsv, tag: <x>}\nvocabulary: prepared\n")
    with pytest.raises(SettingsError, match="the tag <x> is not in the source vocabulary"):
        open_training_data("corpora.yaml")
    Path("valid.en").write_text("one\ntwo\n")
    Path("corpora.yaml").write_text("sources: [pairs.tsv]\nvocabulary: prepared\n"
                                    "validation: {source: valid.de, target: valid.en}\n")
    with pytest.raises(DataError, match=r"valid\.de has 1 lines, but valid\.en has 2"):
        print(open_training_data("corpora.yaml").valid_source)
