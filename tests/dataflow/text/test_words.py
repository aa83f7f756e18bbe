"""Words and characters, in scripts with and without spaces."""

from __future__ import annotations

import pytest

from tests.processor_time import processor_seconds
from towernmt.dataflow.text.word_segmentation import (
    characters,
    joined_sentences,
    may_end_word,
    occurrences,
    word_spans,
    words,
)


@pytest.mark.parametrize(("text", "expected"), [
    ("It's 3.5 km, isn't it?", ["It", "'s", "3.5", "km", ",", "isn't", "it", "?"]),
    ("Müde\u0301r  Straße", ["Müde\u0301r", "Straße"]),
    ("我喜欢TensorFlow。", ["我", "喜", "欢", "TensorFlow", "。"]),
    ("猫がいる", ["猫", "が", "い", "る"]),
    ("東京タワーは人々", ["東", "京", "タワー", "は", "人々"]),
    ("한국어 문장", ["한국어", "문장"]),
    ("<b>&amp;", ["<", "b", ">", "&", "amp", ";"]),
    ("किताब कि", ["किताब", "कि"]), ("தமிழ் நாடு", ["தமிழ்", "நாடு"]),
    ("เมากาแฟ", ["เมา", "กา", "แฟ"]), ("ภาษา\u200bไทย", ["ภา", "ษา", "ไท", "ย"]),
    ("ភាសាខ្មែរ", ["ភា", "សា", "ខ្មែ", "រ"]), ("မြန်မာ က္က", ["မြန်", "မာ", "က္က"]),
    ("كِتَاب שָׁלוֹם", ["كِتَاب", "שָׁלוֹם"]), ("צה\"ל ג'ורג'", ["צה\"ל", "ג'ורג'"]),
    ("l'eau dell’acqua don't dog's O'Brien", ["l'", "eau", "dell’", "acqua", "don't", "dog", "'s", "O'Brien"]),
    ("Ankara'da Qu'il комп'ютер", ["Ankara", "'da", "Qu'", "il", "комп'ютер"]),
    ("e-mail 1,000 5km EU:s", ["e", "-", "mail", "1,000", "5km", "EU", ":s"]),
    ("example.com U.S.A. house.The", ["example.com", "U.S.A", ".", "house", ".", "The"]),
    ("👩\u200d💻👍🏽🇩🇪🇫🇷1\ufe0f\u20e3", ["👩\u200d💻", "👍🏽", "🇩🇪", "🇫🇷", "1\ufe0f\u20e3"]),
    ("Haus\u00adboot", ["Haus\u00adboot"]), ("  ", []), ("", []),
])
def test_words_are_those_of_unicode_and_syllables_of_scripts_without_spaces(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_spans_are_where_the_words_stand() -> None:
    text = " a,  我们 bc"
    assert [text[start:end] for start, end in word_spans(text)] == words(text)
    assert word_spans(text)[-1] == (8, 10)


@pytest.mark.parametrize("text", ["कि" * 20_000, "a'" * 20_000, "A" + "b" * 50_000 + "'c", "ខ្" * 20_000, "々" * 20_000])
def test_long_words_take_time_in_proportion_to_their_length(text: str) -> None:
    def segment() -> None:
        assert words(text) and "".join(characters(text)) == text

    assert processor_seconds(segment) < 5


def test_searching_a_long_text_takes_time_in_proportion_to_its_length() -> None:
    assert processor_seconds(lambda: occurrences("b", "a b " * 20_000)) < 5


def test_a_word_may_begin_behind_a_sign_and_behind_a_character_of_a_script_without_spaces() -> None:
    assert [may_end_word(text) for text in ("(", "-", "👍🏽", "東", "ก็")] == [True] * 5
    assert [may_end_word(text) for text in ("", "a", "कि", "a\u0301", "7", "_", "के\u200d")] == [False] * 7


@pytest.mark.parametrize(("sentences", "expected"), [
    (["One.", "", "Two."], "One. Two."), (["これは本です。", "はい。"], "これは本です。はい。"),
    (["他说：“好。”", "我走……", "“你？”"], "他说：“好。”我走……“你？”"),
    (["我走。", "OK.", "你来。"], "我走。 OK. 你来。"),
    (["ฉันอยู่ที่นี่", "คุณอยู่ที่นั่น"], "ฉันอยู่ที่นี่ คุณอยู่ที่นั่น"), (["안녕.", "네."], "안녕. 네."), ([], "")])
def test_sentences_are_joined_by_spaces_except_in_chinese_and_japanese(sentences: list[str], expected: str) -> None:
    assert joined_sentences(sentences) == expected


@pytest.mark.parametrize(("phrase", "text", "count"), [
    ("कि", "किताब", 1), ("क", "किताब", 0), ("ताब", "किताब", 0), ("東京", "私は東京に住む", 1),
    ("scho\u0308n", "schön", 1),
    ("a", "a\u0301", 0), ("l’eau", "de l'eau", 1), ("eau", "l'eau", 1), ("👩", "👩\u200d💻", 0)])
def test_an_occurrence_begins_with_a_word_and_ends_with_a_character(phrase: str, text: str, count: int) -> None:
    assert occurrences(phrase, text) == count
