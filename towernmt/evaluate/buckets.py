"""Evaluate systems by sentence length, by word frequency, and by required terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.word_segmentation import matching_form, occurrences, words
from towernmt.evaluate.comparison import System
from towernmt.evaluate.metrics import MetricSettings, score_corpus
from towernmt.predict.lines.terminology import AnchoredPhrase, Terminology

LENGTHS = (5, 10, 15, 20, 30, 50)
"""The maximum sentence length, in words, of each bucket except the last."""
FREQUENCIES = (0, 1, 4, 9, 99, 999)
"""The maximum frequency of each bucket except the last."""


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of similar length.

    Attributes:
        label: the range of lengths, in words.
        sentences: number of sentences.
        scores: for each metric, the corpus score of each system on these sentences.
    """

    label: str
    sentences: int
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class WordMatches:
    """Precision and recall of the words of a bucket, from 0 to 1.

    Attributes:
        precision: share of the words of translations that are in the reference of the same sentence.
        recall: share of the words of references that are in the translation.
    """

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True)
class FrequencyBucket:
    """Words of similar frequency.

    Attributes:
        label: the range of frequencies.
        words: number of occurrences of such words in the first reference.
        matches: one for each system.
    """

    label: str
    words: int
    matches: list[WordMatches]


def by_length(lengths: Sequence[int], systems: Sequence[System], references: Sequence[Sequence[str]],
              metrics: MetricSettings, bounds: Sequence[int] = LENGTHS, source: Sequence[str] | None = None
              ) -> list[LengthBucket]:
    """Score the sentences of each range of lengths; empty ranges are left out.

    Args:
        lengths: length of each sentence, in words.
        systems: the systems to score.
        references: all sentences by each translator.
        metrics: the metrics.
        bounds: maximum length of each range except the last.
        source: the source text for custom metrics, or None.

    Raises:
        SettingsError: `bounds` are not in ascending order.
    """
    indices: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for sentence, length in enumerate(lengths):
        indices[bucket_of(length, bounds)].append(sentence)
    buckets = []
    least = min([1, *bounds[:1], *lengths])     # blank sentences, or a range for them, begin at 0
    for label, bucket_indices in zip(labels(bounds, least), indices, strict=True):
        if not bucket_indices:
            continue
        subset = [[lines[i] for i in bucket_indices] for lines in references]
        sources = None if source is None else [source[i] for i in bucket_indices]
        results = [score_corpus([system.hypotheses[i] for i in bucket_indices], subset, metrics, sources)
                   for system in systems]
        buckets.append(LengthBucket(label, len(bucket_indices), {
            metric: [scores[metric][0] for scores in results] for metric in results[0]}))
    return buckets


def count_words(lines: Iterable[str], lowercase: bool = False) -> Counter[str]:
    """Return the frequency of each word in a text."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_words(line, lowercase))
    return counts


def by_frequency(counts: Counter[str], systems: Sequence[System], references: Sequence[Sequence[str]],
                 lowercase: bool = False, bounds: Sequence[int] = FREQUENCIES) -> list[FrequencyBucket]:
    """Return precision and recall of words for each range of frequencies; empty ranges are left out.

    Each word of a translation matches at most one word of the reference of the same sentence. If a sentence
    has several references, the one that shares most words with the translation counts.

    Args:
        counts: the frequency of each word, in the training data or in the reference.
        systems: the systems to evaluate.
        references: all sentences by each translator.
        lowercase: ignore case.
        bounds: maximum frequency of each range except the last.

    Raises:
        SettingsError: `bounds` are not in ascending order.
    """
    size = len(bounds) + 1
    bucket = {word: bucket_of(count, bounds) for word, count in counts.items()}
    unseen = bucket_of(0, bounds)
    reference_words = [[Counter(_words(line, lowercase)) for line in lines] for lines in references]
    reference_sums = _sums(reference_words[0], bucket, unseen, size)
    tables = []
    for system in systems:
        translations = [Counter(_words(line, lowercase)) for line in system.hypotheses]
        nearest = [_nearest(words, candidates)
                   for words, *candidates in zip(translations, *reference_words, strict=True)]
        shared = (words & reference for words, reference in zip(translations, nearest, strict=True))
        sums = zip(*(_sums(words, bucket, unseen, size) for words in (shared, translations, nearest)), strict=True)
        tables.append([WordMatches(_share(matched, translated), _share(matched, expected))
                       for matched, translated, expected in sums])
    return [FrequencyBucket(label, reference_sums[i], [table[i] for table in tables])
            for i, label in enumerate(labels(bounds, 0)) if reference_sums[i]]


def bucket_of(value: int, bounds: Sequence[int]) -> int:
    """Return the index of the first bound that is not below `value`, or the number of bounds."""
    return next((i for i, bound in enumerate(bounds) if value <= bound), len(bounds))


def labels(bounds: Sequence[int], least: int) -> list[str]:
    """Return the ranges between bounds as text.

    Args:
        bounds: maximum value of each range except the last.
        least: minimum value of the first range.

    Raises:
        SettingsError: `bounds` are not in ascending order.
    """
    if any(bound >= next_bound for bound, next_bound in pairwise([least - 1, *bounds])):
        raise SettingsError(f"{', '.join(map(str, bounds))}: the bounds of ranges must ascend, from {least} or more.")
    starts = [least, *(bound + 1 for bound in bounds)]
    ends = [f"{first:,}" if first == last else f"{first:,}-{last:,}"
            for first, last in zip(starts, bounds, strict=False)]
    return [*ends, f"{starts[-1]:,}+"]


def _words(line: str, lowercase: bool) -> list[str]:
    return words(line.lower() if lowercase else line)


def _nearest(text: Counter[str], references: Sequence[Counter[str]]) -> Counter[str]:
    """Return the one of `references` that shares most words with `text`."""
    return max(references, key=lambda reference: (text & reference).total())


def _sums(texts: Iterable[Counter[str]], bucket: dict[str, int], unseen: int, size: int) -> list[int]:
    """Return the number of words in each range."""
    sums = [0] * size
    for text in texts:
        for word, count in text.items():
            sums[bucket.get(word, unseen)] += count
    return sums


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0


@dataclass(frozen=True)
class TermAccuracy:
    """The term accuracy of a system on a test set.

    Attributes:
        required: number of required phrases in all sentences.
        met: number of required phrases that the translations contain.
    """

    required: int
    met: int

    @property
    def share(self) -> float:
        """Share of the required phrases that are met, 0 to 1; 1 if none are required."""
        return self.met / self.required if self.required else 1.0


def required_phrases(source: str, terminology: Terminology | None, constraints: Sequence[str] = ()) -> list[str]:
    """Return the required phrases of a line's translation, as the search defines them.

    Args:
        source: the source line, in which terms are searched.
        terminology: the terms, or None.
        constraints: phrases for this line; a repeated phrase must occur as often.
    """
    terms = [] if terminology is None else terminology.terms_in(source)
    return [*constraints, *(term.target for term in terms if term.target not in constraints)]


def term_accuracy(required: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> TermAccuracy:
    """Count the required phrases that translations contain.

    A phrase matches at the beginning of a word, with the same case; the word may continue, as "hounds" does after
    "hound".

    Args:
        required: the required phrases of each sentence.
        hypotheses: the translation of each sentence.
    """
    met = sum(min(times, _met(phrase, text))
              for phrases, text in zip(required, hypotheses, strict=True) for phrase, times in Counter(phrases).items())
    return TermAccuracy(sum(map(len, required)), met)


def _met(phrase: str, text: str) -> int:
    """Return how often a translation contains a phrase, which may have the anchors `<s>` and `</s>`."""
    anchored, text = AnchoredPhrase.of(phrase), matching_form(text)
    form = matching_form(anchored.text)
    if anchored.at_beginning and not text.startswith(form) or anchored.at_end and not text.endswith(form):
        return 0
    if anchored.at_beginning and anchored.at_end and text != form:
        return 0
    count = occurrences(form, text)
    return min(count, 1) if anchored.at_beginning or anchored.at_end else count
