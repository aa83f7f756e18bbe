"""The benchmark of word alignments: the links of a made language, and the error rate of the aligner on it."""

from __future__ import annotations

import random
from pathlib import Path

import align_words
import pytest

WORDS = [f"word{number}" for number in range(40)]


def sentences(count: int) -> list[list[str]]:
    drawn = random.Random(5)
    return [drawn.choices(WORDS, k=drawn.randint(4, 9)) for _ in range(count)]


def test_each_link_of_a_made_language_joins_a_word_with_one_of_its_translations() -> None:
    language = align_words.MadeLanguage(WORDS, seed=1)
    translations: dict[str, set[str]] = {word: set() for word in WORDS}
    unlinked, moved = set(), 0
    for sentence in sentences(500):
        words, links = language.translate(sentence)
        assert all(0 <= i < len(words) and 0 <= j < len(sentence) for i, j in links)
        for i, j in links:
            translations[sentence[j]].add(words[i].removesuffix("b"))
        unlinked |= {word for i, word in enumerate(words) if i not in {linked for linked, _ in links}}
        order = [j for _, j in sorted(links)]
        moved += order != sorted(order)
    assert all(1 <= len(found) <= 3 for found in translations.values())
    assert unlinked and all(word.startswith("x") for word in unlinked)
    assert 0 < moved < 500 * language.MOVED


def test_the_aligner_finds_most_links_of_a_made_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences(800)), encoding="utf-8")
    pairs = align_words.read_pairs(text, None, 800, seed=1)
    assert pairs.gold is not None
    figures = align_words.score(align_words.align(pairs), pairs.gold)
    assert figures["AER"] < 20 and figures["precision"] > 90
    shuffled = pairs._replace(source=pairs.source[1:] + pairs.source[:1])          # no sentence has its translation
    assert align_words.score(align_words.align(shuffled), pairs.gold)["AER"] > 70
