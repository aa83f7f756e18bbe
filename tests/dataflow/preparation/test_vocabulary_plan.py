"""The automatic vocabularies of a preparation, for written-out measures and for small texts."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.directory_contents import contents
from towernmt.core.errors import DataError
from towernmt.dataflow.preparation import passes
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.text_tasks import TextMeasure, measure_sentences
from towernmt.dataflow.preparation.vocabulary_plan import (
    SIZES,
    VocabularyPlan,
    automatic_size,
    common_letters,
    estimate_words,
    plan_vocabularies,
    propose_sharing,
    propose_size,
)

LATIN, CYRILLIC = "the house on the hill", "дом стоит на горе"


def plan_of(source: list[str], target: list[str], share: float = 1.0, **settings: Any) -> VocabularyPlan:
    text = TextMeasure(share, {"source": measure_sentences(source), "target": measure_sentences(target)})
    return plan_vocabularies(PrepareSettings(**settings), lambda: text)


@pytest.mark.parametrize(("words", "size"), [
    (0, 2_000), (9_999, 2_000), (10_000, 4_000), (99_999, 4_000), (100_000, 8_000), (499_999, 8_000),
    (500_000, 16_000), (49_999_999, 16_000), (50_000_000, 32_000), (1e12, 32_000)])
def test_the_size_grows_with_the_words_of_a_language(words: float, size: int) -> None:
    assert propose_size(words, characters=100)[0] == size


@pytest.mark.parametrize(("characters", "size"), [(1000, 2_000), (1001, 3_000), (3_500, 7_000), (16_001, 33_000)])
def test_characters_fill_half_of_a_vocabulary_at_most(characters: int, size: int) -> None:
    proposed, reason = propose_size(9_000, characters)
    assert proposed == size >= 2 * characters
    assert (f"{characters:,} characters" in reason) == (size > 2_000)


def test_languages_without_spaces_between_words_have_fewer_subwords() -> None:
    chinese = ["我家在山上有一座房子"] * 100                   # 500,000 words of two characters
    assert plan_of(chinese, [LATIN] * 100, share=0.001).size == 8_000
    assert plan_of(["我 家 在 山 上"] * 100, [LATIN] * 100, share=0.001).size == 16_000
    assert [propose_size(words, 100, without_spaces=True)[0] for words in (19_999, 200_000, 10_000_000, 1e9)] == [
        2_000, 8_000, 16_000, 32_000]


@pytest.mark.parametrize(("words", "shared"), [
    (499_999, True), (500_000, False), (4_999_999, False), (5_000_000, True)])
def test_languages_with_common_letters_have_two_vocabularies_if_the_text_is_of_medium_size(words: float, shared: bool
                                                                                           ) -> None:
    assert propose_sharing(0.8, words)[0] == shared
    assert not propose_sharing(0.2, words)[0]


def test_sizes_stand_in_their_order() -> None:
    limits, sizes = zip(*SIZES, strict=True)
    assert list(limits) == sorted(limits) and list(sizes) == sorted(sizes) and limits[-1] == float("inf")


@pytest.mark.parametrize(("sentence", "words"), [
    ("the house on the hill", 5),
    ("我家在山上有一座房子", 5),                # ten characters without a space
    ("我 家 在 山 上", 5),                      # one of each: already divided into words
    ("ฉันรักคุณ", 4.5),
    ("Python を使う", 2),
])
def test_words_are_counted_by_characters_where_no_spaces_stand_between_them(sentence: str, words: float) -> None:
    assert estimate_words(measure_sentences([sentence])) == words


def test_letters_in_common_are_the_overlap_of_their_frequencies() -> None:
    assert common_letters(Counter("aab1"), Counter("abc 2 2")) == pytest.approx(1 / 3 + 1 / 3)
    assert common_letters(Counter("ab"), Counter("ba!")) == 1
    assert common_letters(Counter("12"), Counter("abc")) == 0


def test_a_foreign_name_makes_no_common_script() -> None:
    text = [CYRILLIC] * 20 + ["Python"]
    assert not plan_of(text, [LATIN] * 20).shared
    assert plan_of([LATIN] * 20, ["le toit de la petite maison"] * 20).shared
    assert [propose_sharing(share, 5)[0] for share in (0.35, 0.48)] == [False, True]      # the nearest measured texts


def test_without_a_word_of_the_user_both_are_chosen_with_reasons() -> None:
    assert plan_of([LATIN] * 100, [LATIN] * 100, share=0.02) == VocabularyPlan(4_000, True, (
        "--shared-vocab, because the languages have 100 % of their letters in common",
        "--vocab-size 4000, because each language has about 25,000 words"))
    assert plan_of([LATIN] * 100, [LATIN] * 100, share=0.001) == VocabularyPlan(16_000, False, (
        "--no-shared-vocab, because each language has about 500,000 words",
        "--vocab-size 16000, because each language has about 500,000 words"))
    assert plan_of([LATIN] * 100, [CYRILLIC] * 100, share=0.01) == VocabularyPlan(4_000, False, (
        "--no-shared-vocab, because the languages have 0 % of their letters in common",
        "--vocab-size 4000, because each language has about 45,000 words"))


def test_requested_values_replace_automatic_ones() -> None:
    def never() -> TextMeasure:
        raise AssertionError("measured")

    for settings, plan in (
            ({"vocab_size": 77}, VocabularyPlan(77, False)),
            ({"vocab_size": 77, "shared_vocab": True}, VocabularyPlan(77, True)),
            ({"vocab_kind": "word"}, VocabularyPlan(8_000, False)),
            ({"vocab_kind": "word", "shared_vocab": True}, VocabularyPlan(8_000, True)),
            ({"source_vocab": "a", "target_vocab": "b"}, VocabularyPlan(8_000, False)),
            ({"source_vocab": "a", "shared_vocab": True}, VocabularyPlan(8_000, True))):
        assert plan_vocabularies(PrepareSettings(**settings), never) == plan  # type: ignore[arg-type]
    for shared in (True, False):
        plan = plan_of([LATIN] * 5_000, [LATIN], shared_vocab=shared)
        assert (plan.size, plan.shared, len(plan.automatic)) == (4_000, shared, 1)


def test_a_vocabulary_next_to_an_existing_one_is_planned_by_its_own_text() -> None:
    plan = plan_of([LATIN] * 9_000, [LATIN], target_vocab="there.model")
    assert plan == VocabularyPlan(4_000, False, ("--vocab-size 4000, because the source has about 45,000 words",))


@pytest.mark.parametrize("lines", [[LATIN] * 300, [LATIN] * 9_000, ["".join(map(chr, range(0x4E00, 0x5000)))] * 20])
def test_the_size_for_sentences_is_that_of_the_plan(lines: list[str]) -> None:
    assert automatic_size(lines) == plan_of(lines, [LATIN], target_vocab="there.model").size


@pytest.mark.parametrize("shared", [None, True])
def test_codes_without_their_list_of_subwords_are_planned_by_the_text(shared: bool | None, tmp_path: Path) -> None:
    codes = {"source_vocab": str(tmp_path / "mine.codes"), "target_vocab": None if shared else "there.model"}
    settings = {**codes, "vocab_kind": "bpe-codes", "shared_vocab": shared}
    (tmp_path / "mine.codes").write_text("#version: 0.2\nt h\n")
    assert plan_of([LATIN] * 9_000, [LATIN] * 9_000, **settings).size == 4_000
    (tmp_path / "mine.pieces").touch()
    assert plan_of([LATIN] * 9_000, [LATIN] * 9_000, **settings).automatic == ()


def test_a_vocabulary_of_existing_codes_contains_all_of_their_subwords(tmp_path: Path) -> None:
    large, small = tmp_path / "large.codes", tmp_path / "small.codes"
    large.write_text("#version: 0.2\n" + "t h\n" * 5_000)
    small.write_text("t h\n")
    size = 5_000 + 2 * len(set(LATIN)) + 4
    plan = plan_of([LATIN] * 300, [LATIN] * 300, source_vocab=str(small), target_vocab=str(large))
    assert plan == VocabularyPlan(size, False, (
        f"--vocab-size {size}, because {large} has 5,000 codes, and rare subwords would otherwise be unknown",))
    assert plan_of([LATIN] * 300, [LATIN] * 300, source_vocab=str(small)).size == 2_000
    assert plan_of([LATIN], [LATIN], source_vocab=str(large), vocab_size=300).size == 300


def test_languages_with_existing_codes_share_no_vocabulary_unless_it_is_requested(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.codes").write_text("#version: 0.2\nt h\n")
    for codes in ({"source_vocab": str(tmp_path / "a.codes"), "target_vocab": str(tmp_path / "b.codes")},
                  {"target_vocab": str(tmp_path / "b.codes")}):
        assert plan_of([LATIN], [LATIN], share=0.1).shared      # by their letters
        assert not plan_of([LATIN], [LATIN], share=0.1, **codes).shared
    assert plan_of([LATIN], [LATIN], source_vocab=str(tmp_path / "a.codes"), shared_vocab=True).shared


@pytest.mark.parametrize(("settings", "size"), [
    ({}, 2_000),                                # the rare ones are less than a two-thousandth of the text
    ({"character_coverage": 1.0}, 3_000),
    ({"vocab_kind": "bpe-codes"}, 5_000),       # each inside a word and at its end
])
def test_characters_that_must_have_a_piece_are_those_that_the_kind_needs(settings: dict[str, Any], size: int) -> None:
    rare = "".join(chr(0x4E00 + n) for n in range(1_100))
    assert plan_of(["abcdefghij" * 250] * 1_000 + [rare], [LATIN], **settings).size == size


# In a preparation.

def text(directory: Path, lines: int = 300) -> PrepareSettings:
    for name, sentence in (("de", "das alte Haus {} steht auf dem Berg"), ("en", "the old house {} is on the hill")):
        (directory / f"train.{name}").write_text("".join(sentence.format(n) + "\n" for n in range(lines)))
    return PrepareSettings(str(directory / "train.de"), str(directory / "train.en"), str(directory / "out"), workers=1)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_tiny_text_has_as_many_pieces_as_can_be_made_of_it(kind: str, tmp_path: Path) -> None:
    settings, output = replace(text(tmp_path, 3), vocab_kind=kind), io.StringIO()
    data = prepare(settings, output)
    assert data.shared_vocabulary and data.source_vocabulary.size < 110
    assert "Automatic setting: --vocab-size 2000, because each language has about 24 words.\n" in output.getvalue()
    assert f"{data.source_vocabulary.size} ids rather than the 2000 chosen" in data.statistics_table


def test_automatic_values_are_saved_and_the_same_command_finds_them(tmp_path: Path) -> None:
    settings, output = text(tmp_path), io.StringIO()
    data = prepare(settings)
    saved = data.manifest["settings"]
    assert (saved["vocab_size"], saved["shared_vocab"]) == (2_000, True)
    note = data.manifest["notes"][1]
    assert note == "automatic setting: --vocab-size 2000, because each language has about 2,400 words"
    assert note in data.statistics_table
    before = contents(tmp_path / "out")
    prepare(settings, output)
    assert "kept" in output.getvalue() and contents(tmp_path / "out") == before
    prepare(replace(settings, vocab_size=2_000, shared_vocab=True))     # by words, the same
    with pytest.raises(DataError, match="vocab_size 2000 there, 1999 now"):
        prepare(replace(settings, vocab_size=1999, shared_vocab=True))


def test_a_chosen_vocabulary_is_the_one_that_is_asked_for_in_its_words(tmp_path: Path) -> None:
    settings = text(tmp_path)
    automatic = prepare(settings)
    requested = prepare(replace(settings, output=str(tmp_path / "asked"), vocab_size=2_000, shared_vocab=True))
    assert automatic.fingerprint == requested.fingerprint


def test_automatic_values_do_not_depend_on_the_division_or_the_path_of_the_text(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = text(tmp_path, 9_000)
    monkeypatch.setattr(passes, "MEASURED_LINES", 1_000)
    notes = [prepare(settings).manifest["notes"]]
    monkeypatch.setattr(passes, "CHUNKS_OF_A_PART", 1)
    pairs = zip(*((tmp_path / f"train.{name}").read_text().splitlines() for name in ("de", "en")), strict=True)
    (tmp_path / "train.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    from_table = replace(settings, source=str(tmp_path / "train.tsv"), target="", output=str(tmp_path / "table"))
    notes.append(prepare(from_table).manifest["notes"])
    assert notes[0] == notes[1]
    about = int(notes[0][1].split("about ")[1].split()[0].replace(",", ""))
    assert about == pytest.approx(9_000 * 8, rel=0.1)      # a ninth was read


def test_factors_after_the_words_are_not_part_of_the_text(tmp_path: Path) -> None:
    settings = text(tmp_path, 3)
    words = (tmp_path / "train.de").read_text()
    factored = "\n".join(" ".join(f"{word}|ДОМ" for word in line.split()) for line in words.splitlines()) + "\n"
    (tmp_path / "train.de").write_text(factored)
    notes = prepare(replace(settings, source_factors=1)).manifest["notes"]
    (tmp_path / "train.de").write_text(words)
    assert notes[:2] == prepare(replace(settings, output=str(tmp_path / "plain"))).manifest["notes"][:2]


@pytest.mark.processes
def test_workers_choose_what_one_process_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._POOL_BYTES", 0)
    monkeypatch.setattr(passes, "CHUNKS_OF_A_PART", 1)
    settings = text(tmp_path, 9_000)
    prepare(settings)
    prepare(replace(settings, workers=2, output=str(tmp_path / "two")))
    assert contents(tmp_path / "out") == contents(tmp_path / "two")


def test_a_measurement_that_an_interrupted_preparation_left_is_made_again(tmp_path: Path) -> None:
    settings = text(tmp_path)
    work = tmp_path / "out" / ".preparing" / "work"
    work.mkdir(parents=True)
    (work / "part-00000.measure.json").write_text(json.dumps({"source": [10**9, {"ж": 9}], "target": [1, {"a": 1}]}))
    assert prepare(settings).manifest["settings"]["vocab_size"] == 2_000
