"""Gains of beads by lengths and by words, next to plain loops over single sentences."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from towernmt.dataflow.preparation.shards import reversed_block
from towernmt.documents.alignment.length_gains import SHAPE_GAINS, LengthGains, LengthModel
from towernmt.documents.alignment.sentence_paths import SHAPES, Bead
from towernmt.documents.alignment.word_gains import (
    WordGains,
    WordIds,
    WordLexicon,
    Words,
    same_words,
    word_frequency,
    word_pairs,
)

SOURCE = ["ein haus und ein hund", "der hund schläft", "das haus", "Nr. 42 ist neu", "ein hund"]
TARGET = ["a house and a dog", "the dog sleeps", "the house", "No. 42 is new", "a dog", "the end"]


def test_lengths_of_translations_gain_and_other_lengths_lose() -> None:
    source = np.array([20, 60, 31, 44, 95, 12, 70])
    target = np.array([22, 61, 75, 46, 94, 11, 73])
    gains = LengthGains(LengthModel(1.0, 6.8), source, target).of_rectangle(range(1, 8), range(1, 8))
    logs = np.log(target)
    mean, deviation = logs.mean(), logs.std()
    for row, column in ((2, 2), (3, 3), (3, 1)):
        one, other = float(source[row - 1]), float(target[column - 1])
        related = -(other - one) ** 2 / (2 * 6.8 * one) - 0.5 * math.log(2 * math.pi * 6.8 * one)
        unrelated = (-0.5 * ((math.log(other) - mean) / deviation) ** 2
                     - math.log(other * deviation * math.sqrt(2 * math.pi)))
        expected = max(related - unrelated, math.log(0.02)) + SHAPE_GAINS[0]
        assert gains[0, row - 1, column - 1] == pytest.approx(expected, rel=1e-4)
    assert gains[0, 1, 1] > 0 > gains[0, 2, 2]
    joined, single = gains[2, 3, 2] - SHAPE_GAINS[2], gains[0, 3, 2] - SHAPE_GAINS[0]
    assert joined > 1 > single      # the third target sentence is as long as the source sentences 3 and 4 together


def test_the_model_of_lengths_fits_beads_with_outliers() -> None:
    random = np.random.default_rng(1)
    source = random.integers(20, 200, 2000)
    target = np.round(1.3 * source + random.normal(0, np.sqrt(5.0 * 1.3 * source)))
    target[:50] = 10
    model = LengthModel.of_beads(source, target, LengthModel(1.0))
    assert model.ratio == pytest.approx(1.3, rel=0.05) and model.variance == pytest.approx(5.0, rel=0.25)
    assert LengthModel.of_beads(source[:9], target[:9], LengthModel(2.0)) == LengthModel(2.0)


@pytest.fixture
def learned() -> tuple[Words, Words, WordLexicon, WordLexicon, list[list[str]], list[list[str]]]:
    """Words of both texts, and the lexicons of source and of target words."""
    source_ids, target_ids = WordIds(), WordIds()
    source, target = source_ids.of_texts(SOURCE), target_ids.of_texts(TARGET)
    beads = [Bead(number, number + 1, number, number + 1) for number in range(5)]
    pairs = word_pairs(source, target, [*beads, *beads])
    frequencies = word_frequency([source], source_ids.size), word_frequency([target], target_ids.size)
    same = same_words(source_ids.ids, target_ids.ids, *frequencies)
    of_source = WordLexicon.learn([reversed_block(block) for block in pairs], frequencies[0], same[::-1],
                                  target_ids.size)
    of_target = WordLexicon.learn(pairs, frequencies[1], same, source_ids.size)
    names = [[list(ids.ids)[number - 2] for number in words.ids] for ids, words in
             ((source_ids, source), (target_ids, target))]
    split = [[side[words.offsets[n]:words.offsets[n + 1]] for n in range(len(words))]
             for side, words in zip(names, (source, target), strict=True)]
    assert of_target.given.size and {"42"} <= set(names[0]) & set(names[1])
    return source, target, of_source, of_target, *split


def sum_by_hand(words: Words, given: Words, lexicon: WordLexicon, sentences: range, given_sentences: range) -> float:
    """The gain of sentences by given sentences: the formula of the module, word by word."""
    others = [int(word) for n in given_sentences for word in given.ids[given.offsets[n]:given.offsets[n + 1]]]
    total = 0.0
    for n in sentences:
        for word in words.ids[words.offsets[n]:words.offsets[n + 1]]:
            entries = {int(lexicon.given[entry]): float(lexicon.ratio[entry])
                       for entry in range(lexicon.starts[word], lexicon.starts[word + 1])}
            ratio = sum(entries.get(other, 0.0) + float(lexicon.rest[other]) for other in others) + 1.0
            total += math.log(ratio / (len(others) + 1))
    return total


def test_word_gains_are_those_of_model_1(learned: tuple[Words, Words, WordLexicon, WordLexicon, object, object]
                                         ) -> None:
    source, target, of_source, of_target = learned[:4]
    words = WordGains(source, target, of_source, of_target)
    gains = words.of_rectangle(range(1, 6), range(0, 7))
    beads, expected = [], []
    for number, (rows, columns) in enumerate(SHAPES):
        for i in range(rows, 6):
            for j in range(columns, 7):
                one, other = range(i - rows, i), range(j - columns, j)
                by_hand = 0.5 * (sum_by_hand(source, target, of_source, one, other)
                                 + sum_by_hand(target, source, of_target, other, one))
                assert gains[number, i - 1, j] == pytest.approx(by_hand, abs=1e-4)
                beads.append(Bead(i - rows, i, j - columns, j))
                expected.append(by_hand)
    np.testing.assert_allclose(words.of_beads(beads)[0], expected, atol=1e-4)
    assert gains[0, 3, 4] > max(gains[0, 3, [1, 2, 3, 5, 6]])      # number 42 is in both


def test_a_word_that_occurs_in_one_pair_proves_nothing() -> None:
    source_ids, target_ids = WordIds(), WordIds()
    source, target = source_ids.of_texts(["eins zwei", "drei vier"]), target_ids.of_texts(["one two", "three four"])
    pairs = word_pairs(source, target, [Bead(0, 1, 0, 1), Bead(1, 2, 1, 2)])
    none = np.zeros((2, 0), np.int64)
    lexicon = WordLexicon.learn(pairs, word_frequency([target], target_ids.size), none, source_ids.size)
    assert not len(lexicon.given) and np.all(lexicon.rest == 1.0)


def test_probabilities_and_what_is_left_sum_to_one(
        learned: tuple[Words, Words, WordLexicon, WordLexicon, object, object]) -> None:
    _, target, _, of_target = learned[:4]
    frequency = Counter(target.ids.tolist())
    total = sum(frequency.values())
    left = of_target.rest.astype(float).copy()
    for word in range(len(of_target.starts) - 1):
        for entry in range(of_target.starts[word], of_target.starts[word + 1]):
            left[of_target.given[entry]] += of_target.ratio[entry] * max(frequency[word], 1) / total
    assert np.all(left < 1.1) and np.mean(np.abs(left - 1.0) < 1e-5) > 0.8
