"""Minimum Bayes risk decoding: choose the candidate that is most similar to all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from towernmt.core.errors import SettingsError
from towernmt.models.model_location import LocatedKind, find_location, load_attribute
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.reranking import Reranker, rescored

_MAX_ELEMENTS = 1 << 23
"""Maximum number of elements of a matrix of features."""


class NGrams(NamedTuple):
    """All n-grams of one order in several sequences, with one entry per occurrence.

    Attributes:
        sequence: int64 `[entries]`, index of the sequence.
        ngram: int64 `[entries]`, number of the n-gram from 0; equal n-grams have equal numbers.
    """

    sequence: np.ndarray
    ngram: np.ndarray

    def totals(self, sequences: int) -> np.ndarray:
        """Return the number of n-grams of each sequence, int64 `[sequences]`."""
        return np.bincount(self.sequence, minlength=sequences)


def ngrams_by_order(sequences: Sequence[np.ndarray], orders: int) -> Iterator[NGrams]:
    """Yield the n-grams of order 1, 2, ... `orders`.

    Args:
        sequences: characters or words as integers, `[length]` each.
        orders: highest order.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    if not lengths.sum():
        empty = np.zeros(0, np.int64)
        yield from (NGrams(empty, empty) for _ in range(orders))
        return
    symbols, code = np.unique(np.concatenate([np.asarray(s, np.int64) for s in sequences]), return_inverse=True)
    sequence = np.repeat(np.arange(len(sequences)), lengths)
    remaining = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(code))     # symbols up to the end
    position, ngram = np.arange(len(code)), code
    for order in range(1, orders + 1):
        if order > 1:
            fits = remaining[position] >= order
            position = position[fits]
            key = ngram[fits] * len(symbols) + code[position + order - 1]
            ngram = np.unique(key, return_inverse=True)[1]
        yield NGrams(sequence[position], ngram)


def matches_of_pairs(grams: NGrams, sequences: int) -> np.ndarray:
    """Return the number of n-grams that each pair of sequences shares, int64 `[sequences, sequences]`."""
    sequence, feature = _occurrences(grams, sequences)
    # The diagonal counts the n-grams that only one sequence has.
    shared = np.bincount(feature)[feature] > 1 if len(feature) else np.zeros(0, bool)
    feature, sequence = np.unique(feature[shared], return_inverse=True)[1], sequence[shared]
    order = np.argsort(feature, kind="stable")
    feature, sequence = feature[order], sequence[order]
    matches = np.zeros([sequences, sequences], np.int64)
    block = max(1, _MAX_ELEMENTS // max(sequences, 1))
    features = int(feature[-1]) + 1 if len(feature) else 0
    for first in range(0, features, block):
        entries = slice(*np.searchsorted(feature, [first, first + block]))
        is_present = np.zeros([sequences, min(block, features - first)], np.float32)
        is_present[sequence[entries], feature[entries] - first] = 1.0
        matches += np.rint(is_present @ is_present.T).astype(np.int64)  # exact in float32 up to 16 million
    np.fill_diagonal(matches, grams.totals(sequences))
    return matches


def matches_with_mean(grams: NGrams, weights: np.ndarray) -> np.ndarray:
    """Return the matches of each sequence with the weighted mean of all counts, float64 `[sequences]`.

    Args:
        grams: n-grams of all sequences.
        weights: float64 `[sequences]`; their sum is 1.
    """
    mean = np.bincount(grams.ngram, weights[grams.sequence])
    key, count = np.unique(grams.sequence * len(mean) + grams.ngram, return_counts=True)
    sequence, ngram = np.divmod(key, max(len(mean), 1))
    return np.bincount(sequence, np.minimum(count, mean[ngram]), minlength=len(weights))


def _occurrences(grams: NGrams, sequences: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sequence and feature of each entry; a feature is an n-gram and the number of its previous occurrences."""
    key = grams.ngram * sequences + grams.sequence
    order = np.argsort(key, kind="stable")
    key = key[order]
    position = np.arange(len(key))
    is_first = np.ones(len(key), bool)
    is_first[1:] = key[1:] != key[:-1]
    occurrence = position - np.maximum.accumulate(np.where(is_first, position, 0)) if len(key) else position
    ngram, sequence = np.divmod(key, max(sequences, 1))
    return sequence, np.unique(ngram * (occurrence.max(initial=0) + 1) + occurrence, return_inverse=True)[1]


UTILITIES = ("chrf", "bleu")
_UTILITY_FUNCTION = LocatedKind("function", "my_utility.py:score", "--mbr")


class Utility(ABC):
    """A utility: the quality of a candidate for a reference."""

    @abstractmethod
    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Return the utility of each candidate for each reference, float64 `[candidates, references]`."""

    def of_mean(self, candidates: Sequence[str], references: Sequence[str], weights: np.ndarray) -> np.ndarray:
        """Return the utility of each candidate for the mean of all references, float64 `[candidates]`.

        The time grows with the number of candidates, not of pairs (DeNero et al. 2009; Vamvas and Sennrich 2024).

        Args:
            candidates: the candidates.
            references: the references.
            weights: float64 `[references]`; their sum is 1.

        Raises:
            SettingsError: the utility does not support a mean reference.
        """
        raise SettingsError(f"{type(self).__name__} does not support a mean of references; only chrf does. Leave out "
                            "the aggregation.")


class ChrfUtility(Utility):
    """Sentence chrF2 exactly as in sacreBLEU (Popović 2015; six orders of characters, beta 2), 0 to 100."""

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        counts = []
        for grams in ngrams_by_order([_characters(text) for text in texts], CHRF.CHAR_ORDER):
            totals = grams.totals(len(texts))
            counts.append((matches_of_pairs(grams, len(texts)), totals[:, None], totals[None]))
        return _f_score(counts)[np.ix_(candidate, reference)]

    def of_mean(self, candidates: Sequence[str], references: Sequence[str], weights: np.ndarray) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        text_weights = np.bincount(reference, weights, minlength=len(texts))
        counts = []
        for grams in ngrams_by_order([_characters(text) for text in texts], CHRF.CHAR_ORDER):
            totals = grams.totals(len(texts))
            counts.append((matches_with_mean(grams, text_weights), totals, np.full(len(texts), text_weights @ totals)))
        return _f_score(counts)[candidate]


class BleuUtility(Utility):
    """Sentence BLEU exactly as in sacreBLEU (13a tokens, exponential smoothing, effective order), 0 to 100."""

    def __init__(self) -> None:
        self._metric = BLEU(effective_order=True)

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        texts, candidate, reference = _distinct(candidates, references)
        word_ids: dict[str, int] = {}
        words = [np.array([word_ids.setdefault(word, len(word_ids)) for word in self._metric.tokenizer(
            text.rstrip()).split()], np.int64) for text in texts]
        matches, totals = [], []
        for grams in ngrams_by_order(words, self._metric.max_ngram_order):
            matches.append(matches_of_pairs(grams, len(texts)))
            totals.append(grams.totals(len(texts)))
        return _bleu(np.stack(matches), np.stack(totals))[np.ix_(candidate, reference)]


class CustomUtility(Utility):
    """A custom function of candidates and references as a utility.

    Args:
        function: returns `[candidates, references]`, as an array or as lists; higher is better.
        name: name of the function, for errors; None for its own name.
    """

    def __init__(self, function: Callable[[list[str], list[str]], Any], name: str | None = None) -> None:
        self._function, self._name = function, name or getattr(function, "__name__", repr(function))

    def of_pairs(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        result = self._function(list(candidates), list(references))
        try:
            utilities = np.asarray(result, np.float64)
        except (TypeError, ValueError) as error:
            raise self._error(f"a value that is not an array of numbers ({error})", candidates, references) from error
        if utilities.shape != (len(candidates), len(references)):
            raise self._error(f"an array {list(utilities.shape)}", candidates, references)
        if not np.isfinite(utilities).all():
            raise self._error("a number that is not finite", candidates, references)
        return utilities

    def _error(self, returned: str, candidates: Sequence[str], references: Sequence[str]) -> SettingsError:
        return SettingsError(f"The utility {self._name} returned {returned} for {len(candidates)} candidates and "
                             f"{len(references)} references: it must return a finite number for each pair, "
                             "[candidates, references].")


def named_utility(name: str) -> Utility:
    """Return the utility with a name.

    Args:
        name: "chrf", "bleu", or a custom function: FILE.py:FUNCTION or MODULE:FUNCTION.

    Raises:
        SettingsError: the utility does not exist.
    """
    if name == "chrf":
        return ChrfUtility()
    if name == "bleu":
        return BleuUtility()
    if ":" not in name:
        raise SettingsError(f"mbr={name}: choose {', '.join(UTILITIES)} or a custom function, such as "
                            f"{_UTILITY_FUNCTION.example}.")
    return CustomUtility(load_attribute(find_location(name, _UTILITY_FUNCTION)), name)


def _distinct(candidates: Sequence[str], references: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the distinct texts, and the index of each candidate and each reference among them."""
    index_of: dict[str, int] = {}
    indices = [index_of.setdefault(text, len(index_of)) for text in (*candidates, *references)]
    return list(index_of), np.array(indices[:len(candidates)], np.int64), np.array(indices[len(candidates):], np.int64)


def _characters(text: str) -> np.ndarray:
    """Return the code points of a text without white space, uint32."""
    return np.frombuffer("".join(text.split()).encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def _f_score(counts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return chrF from (matches, n-grams of the candidate, n-grams of the reference) of each order.

    The arrays are broadcast. Mean precision and mean recall are over the orders for which both texts have an n-gram.
    """
    precision, recall, orders = (np.zeros(counts[0][0].shape) for _ in range(3))
    for matches, candidate, reference in counts:
        has_ngrams = (candidate > 0) & (reference > 0)
        precision += np.where(has_ngrams, matches / np.maximum(candidate, 1), 0.0)
        recall += np.where(has_ngrams, matches / np.where(reference > 0, reference, 1), 0.0)
        orders += has_ngrams
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    factor = CHRF.BETA ** 2
    denominator = factor * precision + recall
    return 100.0 * (1 + factor) * precision * recall / np.where(denominator > 0, denominator, 1.0)


def _bleu(matches: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return sentence BLEU of all pairs, float64 `[texts, texts]`.

    Args:
        matches: int64 `[orders, texts, texts]`.
        totals: int64 `[orders, texts]`.
    """
    length = totals[0].astype(np.float64)
    ratio = length[None] / np.maximum(length, 1)[:, None]       # reference / candidate
    brevity = np.where(length[:, None] < length[None], np.exp(1 - ratio), 1.0) * (length > 0)[:, None]
    log_sum, smooth = np.zeros(matches.shape[1:]), np.ones(matches.shape[1:])
    for matched, total in zip(matches, totals[:, :, None], strict=True):
        smooth *= np.where((matched == 0) & (total > 0), 2.0, 1.0)
        precision = np.where(matched == 0, 1 / smooth, matched) / np.maximum(total, 1)
        log_sum += np.where(total > 0, np.log(100.0 * precision), 0.0)
    orders = np.maximum((totals > 0).sum(axis=0), 1)[:, None]
    return np.where(matches.any(axis=0), brevity * np.exp(log_sum / orders), 0.0)


class MinimumBayesRisk(Reranker):
    """Reranker by the mean utility of each hypothesis for all hypotheses of its line.

    Each hypothesis counts as often as it occurs, so samples represent the model's probabilities. Only one of equal
    texts is kept. The new score is the mean utility.

    Args:
        utility: "chrf", "bleu", FILE.py:FUNCTION, or a function; see `CustomUtility`.
        aggregate: compare with the mean of the references instead of each one, which is faster and gives slightly
            different scores. Only for chrF.

    Raises:
        SettingsError: the utility does not exist, or does not support a mean of references.
    """

    def __init__(self, utility: str | Utility | Callable[[list[str], list[str]], Any] = "chrf",
                 aggregate: bool = False) -> None:
        if isinstance(utility, str):
            utility = named_utility(utility)
        self._utility = utility if isinstance(utility, Utility) else CustomUtility(utility)
        self._aggregate = aggregate
        if aggregate and type(self._utility).of_mean is Utility.of_mean:
            raise SettingsError("Only the utility chrf supports the mean of references: leave aggregation out, or "
                                "choose chrf.")

    def __call__(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        return [self.ordered(hypotheses) for hypotheses in lists]

    def ordered(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the distinct hypotheses of a line, best first; of equally good ones, the earlier first."""
        counts = Counter(hypothesis.text for hypothesis in hypotheses)
        first_of_text = {hypothesis.text: hypothesis for hypothesis in reversed(hypotheses)}
        texts = list(counts)
        utilities = self.expected_utilities(texts, texts, [counts[text] for text in texts])
        order = np.argsort(-utilities, kind="stable")
        return [rescored(first_of_text[texts[index]], utilities[index]) for index in order]

    def expected_utilities(self, candidates: Sequence[str], references: Sequence[str],
                           weights: Sequence[float] | None = None) -> np.ndarray:
        """Return the mean utility of each candidate for references, float64 `[candidates]`.

        Args:
            candidates: the candidates.
            references: the references.
            weights: weights of the references; None for equal weights.
        """
        normalised = np.ones(len(references)) if weights is None else np.asarray(weights, np.float64)
        normalised = normalised / normalised.sum()
        if self._aggregate:
            return self._utility.of_mean(candidates, references, normalised)
        return self._utility.of_pairs(candidates, references) @ normalised
