"""Facts about the source text: counted by preparation, and copied from there to runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.training_data import open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, ReversedData
from towernmt.dataflow.vocabulary.source_text import SOURCE_TEXT, SourceCounts, SourceText, words_of

LINES = ["Das Haus, das rote Haus.", "Geht's dem E-Mail-Haus gut?", "haus 12 a1b 東京"]
RANKED = ["Haus", "das", "E", "Geht's", "Mail", "a", "b", "dem", "gut", "haus", "rote"]


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
    counts = SourceCounts.of(["c c, c.", "b a!”", "b c"])
    counts.add(SourceCounts.of(["a c?"]))
    assert counts.text() == (["c", "a", "b"], 0.75)
    first, second = SourceText(["x", "y", "z"], 0.9), SourceText(["z", "w"], 0.5)
    assert first.merged(second) == (["x", "z", "w", "y"], 0.5)
    assert first.merged(SourceText()) == SourceText().merged(first) == first


def test_words_at_the_beginning_of_lines_count_in_their_form_inside_lines() -> None:
    lines = ["Ich habe ein Haus.", "Ich auch, sage ich.", "Haus und Hof", "Hof", "haus"]
    words = SourceCounts.of(lines).text().words
    assert words[:3] == ["ich", "Haus", "Hof"] and "Ich" not in words and "haus" in words


def test_tags_do_not_hide_the_beginning_of_a_line() -> None:
    lines = ["Ich habe ein Haus.", "Ich auch, sage ich.", "Haus und Hof"]
    plain, tagged = (SourceCounts.of(f"{tag}{line}" for line in lines) for tag in ("", "<crawl> "))
    assert tagged.first == plain.first
    assert list(tagged.text().words) == ["crawl", *plain.text().words]


def test_preparation_writes_the_facts_and_runs_copy_them(data: PreparedData, tmp_path: Path) -> None:
    assert data.source_text == (RANKED, 0.6667)         # words by frequency, then in alphabetical order
    data.copy_vocabularies(tmp_path)
    assert SourceText.load(tmp_path) == data.source_text


def test_streams_copy_the_facts_next_to_their_vocabulary(data: PreparedData, tmp_path: Path) -> None:
    for location in (data.directory, Path(data.directory) / "vocabulary" / "source.model"):
        text = Path(data.directory).parent / "train.{de,en}"
        open_training_data(str(text), location).copy_vocabularies(tmp_path)
        assert SourceText.load(tmp_path) == data.source_text


def test_a_given_vocabulary_brings_its_facts_along(data: PreparedData, tmp_path: Path) -> None:
    vocabulary_file = str(Path(data.directory) / "vocabulary" / "source.model")
    new = prepared(tmp_path / "new", ["Der Garten", "der Garten"], vocab_size=None, source_vocab=vocabulary_file,
                   target_vocab=vocabulary_file)
    assert new.source_text.words[0] in ("Garten", "Haus") and new.source_text.marked == 0
    assert set(new.source_text.words) == {"Garten", "Der", "der", *data.source_text.words}


def test_data_without_facts_and_reversed_data_have_none(data: PreparedData, tmp_path: Path) -> None:
    assert ReversedData(data).source_text == SourceText()
    shutil.copytree(data.directory, tmp_path / "old")
    (tmp_path / "old" / "vocabulary" / SOURCE_TEXT).unlink()
    assert SourceText.load(tmp_path / "old") == SourceText()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"words": 3, "marked": 1}',
                                     b'{"words": ["a", 2], "marked": 1}', b'{"words": [], "marked": "1"}'])
def test_damaged_facts_are_refused_with_the_name_of_the_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / SOURCE_TEXT).write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path}/{SOURCE_TEXT}: .*Restore the file, or remove it"):
        SourceText.load(tmp_path)
