"""Unprepared sources with source factors: the subwords of prepared data, resuming, sampling, errors with their line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.training_data import TrainingData, make_batches, open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings

WORDS = ["ja|A", "nein|B", "ja|B", "wort|N"]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with text, `prepared` data and a `corpora.yaml`."""
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(WORDS[(n >> 2 * k) % 4] for k in range(1 + n % 4)) for n in range(40)]
    Path("pairs.tsv").write_text("".join(f"{line}\tyes {n}\n" for n, line in enumerate(lines)))
    Path("valid.de").write_text("ja|A  nein|B\n")
    Path("valid.en").write_text("yes  no\n")
    prepare(PrepareSettings("pairs.tsv", output="prepared", vocab_kind="bpe", vocab_size=30, source_factors=1))
    Path("corpora.yaml").write_text("sources: [pairs.tsv]\nvocabulary: prepared\nsource_factors: 1\n"
                                    "validation: {source: valid.de, target: valid.en}\n")
    return tmp_path


def batches(data: TrainingData, position: Any = None, **settings: Any) -> list[Any]:
    new_batches = make_batches(data, StreamBatchSettings(batch_tokens=60, window=15, **settings), 2)
    return [(position, [array.tolist() for array in batch.arrays()]) for position, batch in new_batches.read(position)]


def rows(contents: list[Any]) -> list[Any]:
    return sorted(row[:length] for _, arrays in contents for row, length in zip(arrays[0], arrays[1], strict=True))


def test_a_stream_gives_the_pieces_and_factors_of_prepared_data_and_resumes(directory: Path) -> None:
    streamed = batches(open_training_data("corpora.yaml"))
    assert rows(streamed) == rows(batches(open_training_data("prepared")))
    assert np.shape(streamed[0][1][0])[2] == 2
    middle = len(streamed) // 2
    assert batches(open_training_data("corpora.yaml"), streamed[middle][0]) == streamed[middle + 1:]


def test_a_stream_with_drawn_segmentations_keeps_the_factors_of_the_words(directory: Path) -> None:
    data = open_training_data("corpora.yaml")
    factor = data.source_vocabulary.factors[0]
    spelt = set()
    for row in rows(batches(data, subword_sampling=True, subword_alpha=0.5)):
        pieces = [(data.source_vocabulary.id_to_piece(id), factor.id_to_piece(value)) for id, value in row[:-1]]
        text = "".join(f"{piece}|{value}" for piece, value in pieces)
        word, value = "", ""
        for piece, tag in pieces:
            if piece.startswith("▁") and word:
                spelt.add(f"{word}|{value}")
                word = ""
            assert not word or tag == value, text
            word, value = word + piece.lstrip("▁"), tag
        spelt.add(f"{word}|{value}")
    assert spelt == set(WORDS)


def test_preparing_from_the_yaml_file_takes_its_factors(directory: Path) -> None:
    assert main(["prepare", "--source", "corpora.yaml", "--output", "again", "--vocab-kind", "bpe", "--vocab-size",
                 "30"]) == 0
    assert rows(batches(open_training_data("again"))) == rows(batches(open_training_data("prepared")))
    assert open_training_data("again").valid_source == ["ja|A nein|B"]


def test_a_word_without_its_factor_is_reported_with_source_and_line(directory: Path) -> None:
    with open("pairs.tsv", "a") as file:
        file.write("ja|A oh\tyes\n")
    with pytest.raises(DataError, match=r"pairs.tsv, window 3 of epoch 1, line 11: 'oh' does not have the form"):
        batches(open_training_data("corpora.yaml"))
    assert main(["inspect", "corpora.yaml"]) == 1


def test_preparing_names_the_source_of_a_word_without_its_factor_and_not_a_temporary_file(directory: Path) -> None:
    settings = PrepareSettings("pairs.tsv", output="again", vocab_kind="word", source_factors=1)
    with open("pairs.tsv", "a") as file:
        file.write("ja|A oh\tyes\n")
    with pytest.raises(DataError, match=r"^pairs.tsv, pair 41: 'oh' does not have the form word\|factor1"):
        prepare(settings)
    Path("corpora.yaml").write_text("sources: [{uri: pairs.tsv, tag: <a>}]\nsource_factors: 1\n")
    with pytest.raises(SettingsError, match=r"^corpora.yaml: the tag '<a>' does not have the form word\|factor1"):
        prepare(dataclasses.replace(settings, source="corpora.yaml"))


def test_inspection_measures_the_words_and_names_the_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "corpora.yaml"]) == 0
    assert "0.00 % / " in capsys.readouterr().out
    with open("pairs.tsv", "a") as file:
        file.write("ja|A oh\tyes\n")
    assert main(["inspect", "corpora.yaml"]) == 1
    assert "error: pairs.tsv line 41: 'oh' does not have the form word|factor1" in capsys.readouterr().out


@pytest.mark.parametrize(("changed", "message"), [
    ("source_factors: 2", "prepared: the vocabulary has 1 source factors, but the text has 2"),
    ("source_factors: 0", "prepared: the vocabulary has 1 source factors, but the text has 0"),
    ("source_factors: x", "source_factors x: expected the number"),
])
def test_a_different_number_of_factors_is_refused(directory: Path, changed: str, message: str) -> None:
    text = Path("corpora.yaml").read_text().replace("source_factors: 1", changed)
    Path("corpora.yaml").write_text(text)
    with pytest.raises((SettingsError, DataError), match=message):
        open_training_data("corpora.yaml")


def test_vocabularies_named_by_file_include_the_factors_next_to_them(directory: Path) -> None:
    text = Path("corpora.yaml").read_text().replace(
        "vocabulary: prepared", "vocabulary: {source: prepared/vocabulary/source.model, target: "
                                "prepared/vocabulary/target.model}")
    Path("corpora.yaml").write_text(text)
    assert open_training_data("corpora.yaml").source_vocabulary.streams == 2


def test_a_tag_and_validation_text_need_factors_too(directory: Path) -> None:
    tagged = Path("corpora.yaml").read_text().replace("[pairs.tsv]", "[{uri: pairs.tsv, tag: TAG}]")
    Path("corpora.yaml").write_text(tagged.replace("TAG", "ja"))
    with pytest.raises(SettingsError, match=r"corpora.yaml: the tag 'ja' does not have the form word\|factor1"):
        open_training_data("corpora.yaml")
    Path("corpora.yaml").write_text(tagged.replace("TAG", "ja|Z"))
    with pytest.raises(SettingsError, match=r"the tag ja\|Z is not in the source vocabulary"):
        open_training_data("corpora.yaml")
    Path("corpora.yaml").write_text(tagged.replace("TAG", "ja|A"))
    Path("valid.de").write_text("ja nein\n")
    data = open_training_data("corpora.yaml")
    assert all(row[0] == list(data.source_vocabulary.encode("ja|A")[0]) for row in rows(batches(data)))
    with pytest.raises(DataError, match="valid.de line 1: 'ja' does not have the form"):
        _ = data.valid_source


@pytest.mark.parametrize("location", ["corpora.yaml", "prepared"])
def test_guided_alignment_without_alignments_says_how_to_get_them(directory: Path, location: str) -> None:
    message = f"{location} has no word alignments. .*towernmt prepare --alignments learn"
    with pytest.raises(SettingsError, match=message):
        make_batches(open_training_data(location), StreamBatchSettings(), 1, alignments=True)
