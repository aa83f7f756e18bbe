"""Words, in scripts with and without spaces."""

from __future__ import annotations

import pytest

from towernmt.predict.evaluation.words import word_spans, words


@pytest.mark.parametrize(("text", "expected"), [
    ("It's 3.5 km, isn't it?", ["It", "'", "s", "3", ".", "5", "km", ",", "isn", "'", "t", "it", "?"]),
    ("Müde\u0301r  Straße", ["Müde\u0301r", "Straße"]),
    ("我喜欢TensorFlow。", ["我", "喜", "欢", "TensorFlow", "。"]),
    ("猫がいる", ["猫", "が", "い", "る"]),
    ("한국어 문장", ["한국어", "문장"]),
    ("<b>&amp;", ["<", "b", ">", "&", "amp", ";"]),
    ("  ", []),
])
def test_a_word_is_a_run_of_letters_a_mark_or_a_character_of_a_script_without_spaces(text, expected):
    assert words(text) == expected


def test_spans_are_where_the_words_stand():
    text = " a,  我们 bc"
    assert [text[start:end] for start, end in word_spans(text)] == words(text)
    assert word_spans(text)[-1] == (8, 10)
