"""How good a translation is if another were the right one: sentence chrF and BLEU, or a function of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from towernmt.core.errors import SettingsError
from towernmt.models.registry.locate import find_place, load
from towernmt.predict.reranking.ngrams import grams_by_order, matches_of_pairs, matches_with_mean

UTILITIES = ("chrf", "bleu")


class Utility(ABC):
    """A measure of a candidate against a reference."""

    @abstractmethod
    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """The utility of each candidate against each reference, float64 `[candidates, references]`."""

    def of_mean(self, candidates: Sequence[str], references: Sequence[str], weights: np.ndarray) -> np.ndarray:
        """The utility of each candidate against the mean of all references, float64 `[candidates]`.

        It takes time for each candidate, not for each pair (DeNero et al. 2009; Vamvas and Sennrich 2024).

        Args:
            weights: float64 `[references]`, together 1.
        Raises:
            SettingsError: the utility knows no mean reference.
        """
        raise SettingsError(f"{type(self).__name__} knows no mean of references, as chrf does: leave aggregation out.")


class ChrfUtility(Utility):
    """Sentence chrF2 exactly as sacreBLEU has it (Popović 2015; six orders of characters, beta 2), 0 to 100."""

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        counts = []
        for grams in grams_by_order([_characters(text) for text in texts], CHRF.CHAR_ORDER):
            totals = grams.totals(len(texts))
            counts.append((matches_of_pairs(grams, len(texts)), totals[:, None], totals[None]))
        return _f_score(counts)[np.ix_(candidate, reference)]

    def of_mean(self, candidates: Sequence[str], references: Sequence[str], weights: np.ndarray) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        share = np.bincount(reference, weights, minlength=len(texts))
        counts = []
        for grams in grams_by_order([_characters(text) for text in texts], CHRF.CHAR_ORDER):
            totals = grams.totals(len(texts))
            counts.append((matches_with_mean(grams, share), totals, np.full(len(texts), share @ totals)))
        return _f_score(counts)[candidate]


class BleuUtility(Utility):
    """Sentence BLEU exactly as sacreBLEU has it (13a tokens, exponential smoothing, effective order), 0 to 100."""

    def __init__(self) -> None:
        self._metric = BLEU(effective_order=True)

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        numbers: dict[str, int] = {}
        words = [np.array([numbers.setdefault(word, len(numbers)) for word in self._metric.tokenizer(
            text.rstrip()).split()], np.int64) for text in texts]
        matches, totals = [], []
        for grams in grams_by_order(words, self._metric.max_ngram_order):
            matches.append(matches_of_pairs(grams, len(texts)))
            totals.append(grams.totals(len(texts)))
        return _bleu(np.stack(matches), np.stack(totals))[np.ix_(candidate, reference)]


class OwnUtility(Utility):
    """A function of one's own: from candidates and references to a number for each pair of them."""

    def __init__(self, function: Callable[[list[str], list[str]], Any], name: str | None = None) -> None:
        """
        Args:
            function: gives `[candidates, references]`, as an array or as lists; the higher the better.
            name: of the function, for errors.
        """
        self._function, self._name = function, name or getattr(function, "__name__", repr(function))

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        found = np.asarray(self._function(list(candidates), list(references)), np.float64)
        if found.shape != (len(candidates), len(references)) or not np.isfinite(found).all():
            raise SettingsError(f"The utility {self._name} gave an array {list(found.shape)} for {len(candidates)} "
                                f"candidates and {len(references)} references: it must give a finite number for each "
                                "pair, [candidates, references].")
        return found


def named_utility(name: str) -> Utility:
    """The utility of that name.

    Args:
        name: "chrf", "bleu", or a function of one's own: FILE.py:FUNCTION or MODULE:FUNCTION.
    Raises:
        SettingsError: there is none of that name.
    """
    if name == "chrf":
        return ChrfUtility()
    if name == "bleu":
        return BleuUtility()
    if ":" not in name:
        raise SettingsError(f"mbr={name}: choose {', '.join(UTILITIES)} or a function of your own, as "
                            "my_utility.py:score.")
    return OwnUtility(load(find_place(name)), name)


def _distinct(candidates: Sequence[str], references: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The different texts, and the number of each candidate's and each reference's among them."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in (*candidates, *references)]
    return list(numbers), np.array(places[:len(candidates)], np.int64), np.array(places[len(candidates):], np.int64)


def _characters(text: str) -> np.ndarray:
    """The code points of a text without its white space, uint32."""
    return np.frombuffer("".join(text.split()).encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def _f_score(counts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """chrF from the matches and the n-grams of candidate and reference, of each order; arrays that broadcast.

    The mean precision and the mean recall are over the orders of which both have an n-gram.
    """
    precision, recall, orders = (np.zeros(counts[0][0].shape) for _ in range(3))
    for matches, candidate, reference in counts:
        both = (candidate > 0) & (reference > 0)
        precision += np.where(both, matches / np.maximum(candidate, 1), 0.0)
        recall += np.where(both, matches / np.where(reference > 0, reference, 1), 0.0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    factor = CHRF.BETA ** 2
    below = factor * precision + recall
    return 100.0 * (1 + factor) * precision * recall / np.where(below > 0, below, 1.0)


def _bleu(matches: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Sentence BLEU of all pairs, float64 `[texts, texts]`.

    Args:
        matches: int64 `[orders, texts, texts]`.
        totals: int64 `[orders, texts]`.
    """
    length = totals[0].astype(np.float64)
    ratio = length[None] / np.maximum(length, 1)[:, None]       # reference / candidate
    brevity = np.where(length[:, None] < length[None], np.exp(1 - ratio), 1.0) * (length > 0)[:, None]
    log_sum, smooth = np.zeros(matches.shape[1:]), np.ones(matches.shape[1:])
    for found, total in zip(matches, totals[:, :, None], strict=True):
        smooth *= np.where((found == 0) & (total > 0), 2.0, 1.0)
        precision = np.where(found == 0, 1 / smooth, found) / np.maximum(total, 1)
        log_sum += np.where(total > 0, np.log(100.0 * precision), 0.0)
    orders = np.maximum((totals > 0).sum(axis=0), 1)[:, None]
    return np.where(matches.any(axis=0), brevity * np.exp(log_sum / orders), 0.0)
