"""Utilities of all pairs of translations, compared with sacreBLEU's sentence scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from towernmt.core.errors import SettingsError
from towernmt.predict.minimum_bayes_risk import BleuUtility, ChrfUtility, CustomUtility, named_utility


def texts(seed: int, count: int) -> list[str]:
    """Return similar sentences, and some without common words."""
    rng = np.random.default_rng(seed)
    words = ["the", "cat", "cats", "sat", "on", "a", "mat", ",", "mat.", "the the", "\U0001f600", "über", "aaaa"]
    drawn = [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(count)]
    return [*drawn, "", " ", "x", "xy", "The cat sat on the mat.", drawn[0]]


def test_chrf_of_all_pairs_is_sacrebleus() -> None:
    candidates, references = texts(1, 12), texts(2, 9)
    metric = CHRF()
    expected = [[metric.sentence_score(one, [other]).score for other in references] for one in candidates]
    np.testing.assert_allclose(ChrfUtility().of_pairs(candidates, references), expected, rtol=0, atol=1e-9)


def test_bleu_of_all_pairs_is_sacrebleus() -> None:
    candidates, references = texts(3, 12), texts(4, 9)
    metric = BLEU(effective_order=True)
    expected = [[metric.sentence_score(one, [other]).score for other in references] for one in candidates]
    np.testing.assert_allclose(BleuUtility().of_pairs(candidates, references), expected, rtol=0, atol=1e-9)


def test_chrf_in_several_blocks_of_features_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = texts(5, 12)
    whole = ChrfUtility().of_pairs(candidates, candidates)
    monkeypatch.setattr("towernmt.predict.minimum_bayes_risk._MAX_ELEMENTS", 7 * 15)
    np.testing.assert_array_equal(ChrfUtility().of_pairs(candidates, candidates), whole)


def test_texts_without_characters_score_nothing() -> None:
    assert ChrfUtility().of_pairs(["", " "], ["", "a"]).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert BleuUtility().of_pairs([""], ["", "a"]).tolist() == [[0.0, 0.0]]


def test_the_mean_of_references_has_their_mean_counts() -> None:
    candidates, references, weights = ["abcab", "abd"], ["abc", "abab"], np.array([0.25, 0.75])
    found = ChrfUtility().of_mean(candidates, references, weights)
    for text, score in zip(candidates, found, strict=True):
        precision, recall, orders = 0.0, 0.0, 0
        for n in range(1, 7):
            have, mean = Counter(text[i:i + n] for i in range(len(text) - n + 1)), Counter[str]()
            for reference, weight in zip(references, weights, strict=True):
                for i in range(len(reference) - n + 1):
                    mean[reference[i:i + n]] += weight  # type: ignore[assignment]
            if have and mean:
                match = sum(min(have[gram], mean[gram]) for gram in have)
                precision += match / sum(have.values())
                recall += match / sum(mean.values())
                orders += 1
        precision, recall = precision / orders, recall / orders
        assert score == pytest.approx(100 * 5 * precision * recall / (4 * precision + recall))


def test_against_one_reference_the_mean_is_that_reference() -> None:
    candidates = texts(6, 5)
    one = ChrfUtility().of_pairs(candidates, candidates[:1])[:, 0]
    np.testing.assert_allclose(ChrfUtility().of_mean(candidates, candidates[:1], np.ones(1)), one, atol=1e-9)


def test_a_function_of_ones_own_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def same(candidates, references):\n"
                                      "    return [[one == other for other in references] for one in candidates]\n")
    utility = named_utility(f"{tmp_path}/mine.py:same")
    assert utility.of_pairs(["a", "b"], ["b", "b", "a"]).tolist() == [[0, 0, 1], [1, 1, 0]]


def test_what_is_no_utility_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--mbr none\.py:same: the file none\.py does not exist: name a Python "
                                            r"file and its function, such as --mbr my_utility\.py:score\."):
        named_utility("none.py:same")
    with pytest.raises(SettingsError, match="mbr=comet: choose chrf, bleu or a custom function"):
        named_utility("comet")
    with pytest.raises(SettingsError, match=r"returned an array \[2\] for 2 candidates and 3 references"):
        CustomUtility(lambda one, other: [1.0, 2.0], "mine").of_pairs(["a", "b"], ["a", "b", "c"])
    with pytest.raises(SettingsError, match="mine returned a number that is not finite for 1 candidates"):
        CustomUtility(lambda one, other: [[float("nan")]], "mine").of_pairs(["a"], ["a"])
    for result in ([[1.0], [2.0, 3.0]], None, [["good"]]):
        with pytest.raises(SettingsError, match="mine returned (a value that is not an array of numbers|an array|a n)"):
            CustomUtility(lambda one, other, result=result: result, "mine").of_pairs(["a", "b"], ["a", "b"])
