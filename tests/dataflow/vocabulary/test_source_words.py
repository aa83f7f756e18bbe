"""Words of the source text: counted by preparation, and copied from there to runs."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from towernmt.dataflow.batches.training_data import open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, ReversedData
from towernmt.dataflow.vocabulary.source_words import (
    SOURCE_WORDS,
    load_source_words,
    merged,
    most_frequent_words,
    words_of,
)

LINES = ["Das Haus, das rote Haus.", "Geht's dem E-Mail-Haus gut?", "haus 12 a1b 東京"]
RANKED = ["Haus", "Das", "E", "Geht's", "Mail", "a", "b", "das", "dem", "gut", "haus", "rote"]


def prepared(directory: Path, lines: list[str] = LINES, **options: object) -> PreparedData:
    directory.mkdir()
    for name in ("train.de", "train.en"):
        (directory / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    prepare(PrepareSettings(source=str(directory / "train.de"), target=str(directory / "train.en"), workers=1,
                            output=str(directory / "out"), **{"vocab_size": 60} | options))   # type: ignore[arg-type]
    return PreparedData(directory / "out")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepared(tmp_path_factory.mktemp("words") / "first")


def test_words_are_runs_of_letters_in_scripts_with_spaces() -> None:
    text = "L’eau, it's 3 o'clock: naïve_x Ёлка 'so' हिन्दी ไทย x9y"
    assert [match[0] for match in words_of(text)] == ["L’eau", "it's", "o'clock", "naïve", "x", "Ёлка", "so", "x", "y"]
    assert list(words_of("a" * 41)) == []


def test_words_are_ordered_by_frequency_and_merged_by_the_better_rank() -> None:
    assert most_frequent_words(Counter({"b": 2, "a": 2, "c": 5})) == ["c", "a", "b"]
    assert merged(["x", "y", "z"], ["z", "w"]) == ["x", "z", "w", "y"]


def test_preparation_writes_the_words_and_runs_copy_them(data: PreparedData, tmp_path: Path) -> None:
    assert data.source_words == RANKED      # by frequency, then in alphabetical order
    data.copy_vocabularies(tmp_path)
    assert load_source_words(tmp_path) == data.source_words


def test_streams_copy_the_words_of_their_vocabulary(data: PreparedData, tmp_path: Path) -> None:
    for location in (data.directory, Path(data.directory) / "vocabulary" / "source.model"):
        text = Path(data.directory).parent / "train.{de,en}"
        open_training_data(str(text), location).copy_vocabularies(tmp_path)
        assert load_source_words(tmp_path) == data.source_words


def test_a_given_vocabulary_brings_its_words_along(data: PreparedData, tmp_path: Path) -> None:
    given = str(Path(data.directory) / "vocabulary" / "source.model")
    new = prepared(tmp_path / "new", ["Der Garten", "der Garten"], vocab_size=None, source_vocab=given,
                   target_vocab=given)
    assert new.source_words[0] in ("Garten", "Haus")
    assert set(new.source_words) == {"Garten", "Der", "der", *data.source_words}


def test_data_without_words_and_reversed_data_have_none(data: PreparedData, tmp_path: Path) -> None:
    assert ReversedData(data).source_words == []
    shutil.copytree(data.directory, tmp_path / "old")
    (tmp_path / "old" / "vocabulary" / SOURCE_WORDS).unlink()
    assert load_source_words(tmp_path / "old") == []
